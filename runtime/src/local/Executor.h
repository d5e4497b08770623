//===- Executor.h - Runs a rank's sequences ---------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_LOCAL_EXECUTOR_H
#define MGQ_RUNTIME_LOCAL_EXECUTOR_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/common/Arena.h"
#include "runtime/src/common/DataReader.h"
#include "runtime/src/common/Program.h"
#include "runtime/src/common/Trace.h"
#include "runtime/src/common/Weights.h"
#include <deque>
#include <functional>

namespace mgq::rt {

/// Measured time of one layer, summed over all its calls in seconds.
struct LayerTime {
  double forward = 0;
  double backward = 0; ///< With weight gradients, unless they were split off.
  double weight = 0;   ///< Of those.
};

/// The slot of a micro-batch in each local chunk, -1: none.
using Slots = std::vector<int32_t>;

/// A sequence whose places are resolved.
struct Runnable {
  const mgq_sequence *sequence;
  int32_t chunk;                    ///< Local index, -1: none.
  Slots slots;                      ///< Those that it uses; others are -1.
  std::vector<void *> pointers;     ///< Arguments of all calls, in order.
  std::vector<size_t> firstPointer; ///< Of each call.
  std::vector<std::byte *> loads;   ///< Where each load goes.
};

/// What dropout depends on: see MGQ_RANDOM_INPUT.
struct RandomKey {
  uint64_t seed = 0;
  int64_t step = 0, firstSample = 0;
  bool off = true; ///< Evaluation.
};

/// Knows what some calls of a sequence would do. `args` are the call's.
class CallFilter {
public:
  virtual ~CallFilter() = default;
  /// Whether the others may be true of a call; else neither is asked.
  virtual bool handles(int32_t call) const = 0;
  /// Does what a call would, and returns true; or false: it must run.
  virtual bool skips(int32_t call, void *const *args) = 0;
  /// A call has run.
  virtual void ran(int32_t call, void *const *args) = 0;
};

/// What else happens after the calls of a sequence.
class CallHook {
public:
  virtual ~CallHook() = default;
  /// Number `call` has run, or is enqueued.
  virtual void afterCall(int32_t call) = 0;

  // The same in parts, for calls that are enqueued at once. First, in their
  // order, what shall be enqueued behind each is decided, and said in `key`;
  virtual void plan(int32_t call, WorkKey &key) = 0;
  // then that is enqueued, unless the device has it recorded;
  virtual void enqueue(int32_t call) = 0;
  // then comes the rest.
  virtual void finish(int32_t call) = 0;
  /// Whether finish() enqueues something.
  virtual bool enqueuesMore(int32_t call) const = 0;
};

/// Runs sequences on one arena. Places are resolved once, by prepare(); load()
/// and run() allocate nothing.
class Executor {
public:
  /// `pulse` is called after each call: see Group.
  Executor(const RankView &view, Arena &arena, const Weights &weights,
           Trace &trace, std::function<void()> pulse);

  /// Resolves a sequence for a micro-batch with these slots. The same sequence
  /// with the same slots is resolved once. Throws Error if a reference leaves
  /// the arena, the parameters or the slots.
  const Runnable &prepare(const mgq_sequence &sequence, int32_t chunk,
                          const Slots &slots);

  /// The place of `bytes` at `ref`; null where it is nowhere. `what` is for the
  /// error.
  std::byte *resolve(const mgq_ref &ref, int64_t bytes, const Slots &slots,
                     const char *what);

  /// Copies what a sequence loads of a micro-batch, and makes its keys. The
  /// same as Device's write().
  void load(const Runnable &runnable, const DataReader &data,
            const RecordList &micro, const RandomKey &key);

  /// The step, from 0, whose micro-batches run from here on: it says which
  /// kernels layers of progressive precision run.
  void setStep(int64_t number) { step = number; }

  /// Runs the calls, or enqueues them. Throws Error after an index outside its
  /// range, naming node and layer.
  void run(const Runnable &runnable, Phase phase, int32_t microBatch,
           CallHook *hook = nullptr, CallFilter *filter = nullptr);

  /// An accelerator that is recording, see there: records what run() with that
  /// hook and filter enqueues, but for what finish() does and the calls that
  /// the filter handles. From then on run() uses what is recorded.
  void record(const Runnable &runnable, CallHook *hook = nullptr,
              CallFilter *filter = nullptr);
  /// The same for what depends on no micro-batch.
  void recordCommon() { record(*prepareTrainable); }
  /// Whether calls run other kernels in this step than in the one before.
  bool changesIn(int64_t number) const;

  void runPrepareFrozen() { run(*prepareFrozen, Phase::Prepare, -1); }
  /// Packs the weights that are spread over ranks, and keeps this rank's
  /// slices.
  void prepareShards();
  void runPrepareTrainable() { run(*prepareTrainable, Phase::Prepare, -1); }

  Device &device() const { return arena.device(); }
  /// An accelerator rehearses the calls of all sequences, see there.
  void rehearse(Accelerator &accelerator);

  /// An accelerator says from here on how long calls take on it, when asked by
  /// collectTimes(); else times are those of enqueueing. For a moment in which
  /// nothing is enqueued.
  void timeDevice();
  /// After Device::synchronize(): notes the times of the calls since the last
  /// time.
  void collectTimes();

  const std::vector<LayerTime> &layerTimes() const { return times; }
  /// Forward runs of a local chunk that layerTimes() covers.
  int64_t forwardRuns(int32_t chunk) const { return forwards[chunk]; }

  /// Spent in load() so far.
  double loadSeconds() const { return loading; }

  /// Forgets measured times: after the first step, which warms up.
  void resetTimes();

private:
  /// A call between two marks of an accelerator.
  struct TimedCall {
    const mgq_call *call;
    Phase phase;
    int32_t microBatch, begin, end;
  };
  /// Calls that are enqueued at once, and the hook behind them.
  struct Part {
    const Runnable *runnable;
    int32_t first, end;
    CallHook *hook;
  };
  void noteCall(const mgq_call &call, Phase phase, int32_t microBatch,
                double start, double seconds);
  mgq_kernel kernelOf(const mgq_call &call) const;
  void callKernel(const Runnable &runnable, int32_t index);
  void enqueueParts(const Runnable &runnable, CallHook *hook,
                    CallFilter *filter, bool finishes);
  void enqueueFiltered(const Runnable &runnable, int32_t index, CallHook *hook,
                       CallFilter &filter);
  void enqueuePart();

  int64_t step = 0;
  const RankView &view;
  Arena &arena;
  const Weights &weights;
  Trace &trace;
  std::function<void()> pulse;
  std::vector<int32_t> randomOps; ///< By input; -1: data.
  std::vector<LayerTime> times;
  std::vector<int64_t> forwards;
  double loading = 0;
  Accelerator *timed = nullptr;      ///< Null: times are the host's.
  std::vector<TimedCall> timedCalls; ///< Whose times are not known yet.
  std::deque<Runnable> runnables;    // Addresses stay.
  bool recorded = false;             ///< An accelerator has recorded sequences.
  Part part = {};                    ///< That is being enqueued.
  WorkKey key;                       ///< Of it.
  std::function<void()> work;        ///< enqueuePart().
  const Runnable *prepareFrozen, *prepareTrainable;
  std::vector<const Runnable *> packs; ///< Of each shard.
};

/// Throws Error if mgq_index_error was called by this thread's pool since the
/// last check. `where` names the layer function.
void checkIndexError(const char *where);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_EXECUTOR_H
