//===- Trainer.h - A whole training run ----------------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_COMMON_TRAINER_H
#define MGQ_RUNTIME_COMMON_TRAINER_H

#include "runtime/src/common/Checkpoint.h"
#include "runtime/src/common/Log.h"
#include "runtime/src/common/Progress.h"
#include "runtime/src/common/Schedule.h"
#include "runtime/src/common/Step.h"
#include "runtime/src/local/ThreadPool.h"
#include <optional>

namespace mgq::rt {

/// Times of a run's steps.
struct RunTimes {
  int64_t steps = 0;
  double total = 0;           ///< Seconds of all steps.
  std::vector<double> recent; ///< Seconds of the last steps, a ring.

  RunTimes();
  void add(double seconds);
  /// Median of the recent steps, without the first one, which warms up.
  double median() const;
};

class Trainer {
public:
  /// Opens and checks everything, resumes. Throws Error or UsageError.
  Trainer(const mgq_program &program, const Options &options);
  ~Trainer();

  /// Trains. Returns the exit status: 0, or 130 after an interrupt.
  int run();

private:
  void resume();
  void warnAboutOrder(const TrainerState &loaded) const;
  void describe();
  void checkOutputs() const;
  double epochAfter(int64_t steps) const;
  void trainOne();
  void evaluateNow();
  void save();
  void finish();
  void writeSummary();
  void writeProfile();

  const mgq_program &program;
  const Options &options;
  std::unique_ptr<DataReader> data, evalData;
  std::optional<RecordOrder> order;
  int64_t totalSteps = 0;
  std::optional<Schedule> schedule;
  Clipping clipping;
  ThreadPool pool;
  Trace trace; // Before the arena, whose peak does not count it.
  Arena arena;
  Weights weights;
  Executor executor;
  Optimizer optimizer;
  StepRunner runner;
  TrainerState state;
  LogFile log;
  JsonLine line;
  std::optional<Progress> progress;
  RunTimes times;
  std::optional<Evaluation> lastEvaluation;
  int64_t evaluatedStep = -1, savedStep = -1, firstStep = 0;
};

/// Checks that runtime and program agree. Throws Error.
const mgq_program &checkProgram(const mgq_program &program);

/// From now on SIGINT and SIGTERM end a run after its step. A second SIGINT
/// kills.
void catchInterrupts();

/// The signal that asked to end, 0: none.
int interruptSignal();

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_TRAINER_H
