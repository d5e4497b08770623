//===- Step.h - Runs one optimizer step -------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_STEP_H
#define MGQ_RUNTIME_COMMON_STEP_H

#include "runtime/src/common/Clipping.h"
#include "runtime/src/common/CompressedGradients.h"
#include "runtime/src/common/DeviceTimes.h"
#include "runtime/src/common/FrozenCache.h"
#include "runtime/src/common/OpList.h"
#include "runtime/src/common/Optimizer.h"
#include "runtime/src/common/Reducer.h"
#include "runtime/src/common/Slowdown.h"
#include <functional>

namespace mgq::rt {

/// What one step needs to know.
struct StepInput {
  int64_t step;          ///< From 0: selects the records, and what drops.
  int64_t updates;       ///< AdamW updates so far.
  double epoch;          ///< Before the step, for clipping.
  double learningFactor; ///< The schedule's.
  int signal;            ///< That asked this rank to end, 0: none.
  double lossScale = 1;  ///< The factor on the backward seed.
  bool last = false;     ///< No step follows.
};

/// The same on all ranks.
struct StepResult {
  double loss = 0;
  double gradNorm = 0;
  double bubble = -1;        ///< Share of waiting; negative: not measured.
  double busy = 0, span = 0; ///< Seconds of computing, and from the first start
                             ///< to the last gradient; all ranks together.
  int signal = 0;            ///< That asked some rank to end: nothing was run.
  bool empty = false;        ///< No valid target: nothing has changed.
  /// What was not finite, so that the step was skipped: "gradients" or, with a
  /// loss scale, "loss". Null: the step was not skipped.
  const char *nonfinite = nullptr;
};

/// Whether the loss of a step is a mean over its valid targets. Throws
/// UsageError if the model has none and the options ask for it.
bool reducesByTokens(const mgq_program &program, const Options &options);

/// Executes a rank's ops of a step. run() allocates nothing.
class StepRunner : private CallHook {
public:
  /// What a rank works with, besides its tables.
  struct Parts {
    Arena &arena;
    Executor &executor;
    Optimizer &optimizer;
    Clipping &clipping;
    Trace &trace;
    Group &group;
  };

  StepRunner(const RankView &view, const Options &options, const Parts &parts);

  /// Throws Error for gradients that are not finite under --on-nonfinite=stop.
  StepResult run(const StepInput &input, const DataReader &data,
                 RecordOrder &order) {
    double before = parts.executor.loadSeconds();
    StepResult result = runOps(input, data, order);
    (runs++ ? loadedLater : loadedFirst) +=
        parts.executor.loadSeconds() - before;
    return result;
  }

  /// For an accelerator that records: what run() enqueues in a step in which
  /// all micro-batches run.
  void record();

  /// For a moment in which nothing is enqueued: an accelerator says from here
  /// on when it computed, and when messages travelled. Without that, bubble and
  /// communication() are not known of it.
  void timeDevice();

  /// Called once, with the gradients of the next step before clipping.
  void onGradients(std::function<void()> hook) {
    gradientHook = std::move(hook);
  }

  /// Skips what it knows of the frozen prefix from now on.
  void setCache(FrozenCache *frozenCache) { cache = frozenCache; }

  /// Added to this rank's clock it is rank 0's, in seconds.
  void setClockOffset(double seconds) { clockOffset = seconds; }

  /// Spent on reading data, mean of the steps but the first, which warms up.
  double dataSeconds() const {
    return runs > 1 ? loadedLater / static_cast<double>(runs - 1) : loadedFirst;
  }

  /// In all steps so far.
  SentBytes sent() const {
    SentBytes bytes = ops.sent();
    bytes.of[MGQ_TRAFFIC_GRADIENT] += reducer.sentBytes(MGQ_OP_ALL_REDUCE);
    bytes.of[MGQ_TRAFFIC_PARAMETER] += reducer.sentBytes(MGQ_OP_ALL_GATHER);
    return bytes;
  }

  /// What ran beside the kernels, of the steps but the first, which warms up.
  const CommunicationTime &communication() const { return times.time(); }

  /// What was run for the next step is lost: its memory had another use.
  void forgetAhead() { aheadStep = -1; }

  /// Called between kernels: the rank is alive, and what is under way goes on.
  void pulse() {
    parts.group.pulse();
    reducer.progress();
  }

  /// What compressed gradients have not sent yet.
  CompressedGradients &residuals() { return compressed; }

private:
  StepResult runOps(const StepInput &input, const DataReader &data,
                    RecordOrder &order);
  void countTargets(const StepInput &input, const DataReader &data,
                    RecordOrder &order);
  void runAhead(StepInput input, const DataReader &data, RecordOrder &order);
  void runOp(OpList::Entry &entry, const StepInput &input,
             const DataReader &data, RecordOrder &order);
  void prefetchNext(StepInput input, const DataReader &data,
                    RecordOrder &order);
  int exchangeCounts(int signal);
  void compute(OpList::Entry &entry, const StepInput &input,
               const DataReader &data, RecordOrder &order);
  void decideCached(StepInput input, RecordOrder &order);
  void findFirstReady();
  void afterCall(int32_t call) override;
  void plan(int32_t call, WorkKey &key) override;
  void enqueue(int32_t call) override;
  void finish(int32_t call) override;
  bool enqueuesMore(int32_t call) const override;
  void optimize(const StepInput &input, StepResult &result);
  void readDeviceTimes();
  void exchangeResults(StepResult &result);
  void sumLosses(StepResult &result) const;
  RecordList recordsOf(const StepInput &input, int32_t microBatch,
                       RecordOrder &order);
  RandomKey keyOf(const StepInput &input, int32_t microBatch) const;
  /// Whether the step's gradients are compressed; then they are unscaled, too.
  bool compresses(const StepInput &input) const {
    return compressed.isUsed() && input.step >= compressionWarmup;
  }
  bool skipsNonfinite(const StepInput &input, StepResult &result,
                      const GradientNorm &norm) const;
  float seedOf(const StepInput &input, int32_t microBatch) const;

  const RankView &view;
  const mgq_program &program;
  Parts parts;
  HiddenTime times;
  std::optional<DeviceTimes> deviceTimes; ///< Of an accelerator that is timed.
  CompressedGradients compressed;
  Reducer reducer;
  Slowdown slowdown;
  OpList ops;
  std::vector<int32_t> firstReady; ///< By op: the call whose owned gradient is
                                   ///< final first, -1: none is.
  int64_t compressionWarmup;
  const Runnable *count;
  float *countPlace;
  /// By micro-batch, what the device has counted, and its loss sums.
  HostCells<float> countCells, lossCells;
  bool byTokens, skipNonfinite, scaled;
  uint64_t seed;                ///< Of dropout.
  std::vector<int64_t> records; ///< Of the micro-batch that is read.
  int32_t lossRank;             ///< In the first replica.
  std::vector<int32_t> owners;  ///< Stage of each trainable parameter.
  double clockOffset = 0;
  double loadedFirst = 0, loadedLater = 0; ///< Seconds, see dataSeconds().
  int64_t runs = 0;
  std::function<void()> gradientHook;
  FrozenCache *cache = nullptr;
  std::vector<int64_t> cacheRecords;

  // Of the running step. Counts: of own micro-batches behind the signal;
  // gathered: the same of all ranks.
  std::vector<double> counts, allCounts;
  double total = 0; ///< Sum of counts over all replicas.
  // Squared norms of trainable parameters, losses of own micro-batches, then
  // when the rank began, when its last gradient was done, how long it computed.
  std::vector<double> results, allResults, norms;
  double began = 0, ended = 0, busy = 0;
  bool optimized = false, updated = false;
  int64_t aheadStep = -1; ///< The step for which `ahead` ops have been run.
  bool hasAhead;
  const OpList::Entry *running = nullptr; ///< The op whose calls run.
  /// Planned behind its calls: all, and which are behind each.
  std::vector<Optimizer::Addition> additions;
  std::vector<std::pair<size_t, size_t>> additionsAfter;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_STEP_H
