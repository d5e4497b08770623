//===- Trainer.h - A rank's training run ------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_TRAINER_H
#define MGQ_RUNTIME_COMMON_TRAINER_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/common/Chief.h"
#include "runtime/src/common/MicroBatchControl.h"
#include "runtime/src/common/Schedule.h"
#include "runtime/src/common/Setup.h"
#include "runtime/src/common/Variants.h"
#include "runtime/src/local/ThreadPool.h"
#include <optional>

namespace mgq::rt {

/// What one rank does from start to end. Rank 0 has a Chief besides.
///
/// After an exception the trainer must live until the transport has been told
/// of it (abort): others may still copy from its memory.
class Trainer {
public:
  Trainer(const mgq_program &program, const Options &options, Group &group);
  ~Trainer();

  /// Trains. Returns the exit status, the same on all ranks: 0, or 128 and the
  /// signal after an interrupt. Throws Error or UsageError.
  int run();

  /// After an exception, before its text is printed.
  void endBar() {
    if (chief)
      chief->endBar();
  }

private:
  void setUp();
  void openDevice(const Host &host);
  bool timesMessages() const;
  bool recordsWork() const;
  void record();
  void makeArena(const Host &host);
  std::string memoryShortage(int64_t bytes, const std::string &what);
  void makeParts();
  void openData();
  void resume();
  TrainerState loadState();
  void warnAboutOrder(const TrainerState &loaded) const;
  void describe();
  double epochAfter(int64_t steps) const;
  void checkEvalData() const;
  int64_t arenaBytes() const;
  void dumpGradients();
  StepResult runStep(const StepInput &input);
  bool trainOne();
  void evaluateNow();
  void evaluateOnly();
  void save();
  void finish();
  void report();

  const mgq_program &program;
  const Options &options;
  Group &group;
  RankView view;
  Orders orders;
  std::optional<Chief> chief; ///< On rank 0.
  Clipping clipping;
  LossScale lossScale;
  std::optional<MicroBatchControl> microBatches;
  std::optional<ThreadPool> pool;
  std::optional<Trace> trace; // Before the arena, whose peak does not count it.
  std::unique_ptr<Accelerator> accelerator; ///< Null: the host.
  std::optional<Arena> arena;
  std::optional<Weights> weights;
  std::optional<Variants> variants;
  std::optional<Evaluator> evaluator;
  std::optional<Transfer> transfer;
  std::optional<DataReader> data, evalData;
  std::optional<FrozenCache> cache;
  std::optional<RecordOrder> order;
  std::optional<Schedule> schedule;
  int64_t totalSteps = 0, stepsRun = 0;
  bool gradientsAreDue = false; ///< --dump-gradients
  TrainerState state;
  double clockOffset = 0;
  int64_t evaluatedStep = -1, savedStep = -1;
  int endSignal = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_TRAINER_H
