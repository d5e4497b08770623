//===- Executor.h - Runs a program's sequences ---------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_LOCAL_EXECUTOR_H
#define MGQ_RUNTIME_LOCAL_EXECUTOR_H

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Trace.h"
#include "runtime/src/common/Weights.h"
#include <functional>

namespace mgq::rt {

/// Measured time of one layer, summed over all its calls in seconds.
struct LayerTime {
  double forward = 0;
  double backward = 0;
};

/// Runs sequences on one arena. Arguments are resolved once, at construction;
/// run() allocates nothing.
class Executor {
public:
  /// Throws Error if a reference leaves the arena or the parameters.
  Executor(const mgq_program &program, Arena &arena, const Weights &weights,
           Trace &trace);

  /// Runs a sequence of the program. Throws Error after an index outside its
  /// range, naming node and layer.
  void runForward(int32_t microBatch);
  /// `afterCall` is told the number of each call that has run.
  void runBackward(int32_t microBatch,
                   const std::function<void(int32_t)> &afterCall);
  void runEvaluate() { run(evaluate, Phase::Evaluate, -1); }
  void runCount() { run(count, Phase::Count, -1); }
  void runPrepareFrozen() { run(prepareFrozen, Phase::Prepare, -1); }
  void runPrepareTrainable() { run(prepareTrainable, Phase::Prepare, -1); }

  const std::vector<LayerTime> &layerTimes() const { return times; }
  int64_t forwardRuns() const { return forwards; }

  /// Forgets measured times: after the first step, which warms up.
  void resetTimes();

private:
  struct Prepared {
    const mgq_sequence *sequence;
    std::vector<void *> pointers;     ///< Of all calls, in order.
    std::vector<size_t> firstPointer; ///< Of each call.
  };

  Prepared prepare(const mgq_sequence &sequence, const Weights &weights);
  void run(Prepared &prepared, Phase phase, int32_t microBatch,
           const std::function<void(int32_t)> *afterCall = nullptr);

  const mgq_program &program;
  Arena &arena;
  Trace &trace;
  std::vector<LayerTime> times;
  int64_t forwards = 0;
  Prepared prepareFrozen, prepareTrainable, forward, backward, evaluate, count;
};

/// Throws Error if mgq_index_error was called since the last check. `where`
/// names the layer function.
void checkIndexError(const char *where);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_EXECUTOR_H
