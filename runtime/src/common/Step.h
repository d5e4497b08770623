//===- Step.h - Runs one optimizer step ----------------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_COMMON_STEP_H
#define MGQ_RUNTIME_COMMON_STEP_H

#include "runtime/src/common/Clipping.h"
#include "runtime/src/common/DataReader.h"
#include "runtime/src/common/Optimizer.h"
#include "runtime/src/local/Executor.h"
#include <functional>

namespace mgq::rt {

/// What one step needs to know.
struct StepInput {
  int64_t step;          ///< From 0: selects the records.
  int64_t updates;       ///< AdamW updates so far.
  double epoch;          ///< Before the step, for clipping.
  double learningFactor; ///< The schedule's.
};

struct StepResult {
  double loss = 0;
  double gradNorm = 0;
  bool empty = false;     ///< No valid target: nothing has changed.
  bool nonfinite = false; ///< Gradients were not finite, step skipped.
};

/// Means over the records of a data set.
struct Evaluation {
  double loss = 0;
  std::vector<double> scalars; ///< Of Evaluator's scalar outputs, in order.
};

/// Executes the program's ops. run() allocates nothing.
class StepRunner {
public:
  /// Throws Error if the program's ops are not forward, backward of each
  /// micro-batch in turn and one optimizer.
  StepRunner(const mgq_program &program, const Options &options, Arena &arena,
             Executor &executor, Optimizer &optimizer, Clipping &clipping,
             Trace &trace);

  /// Throws Error for gradients that are not finite under --on-nonfinite=stop.
  StepResult run(const StepInput &input, const DataReader &data,
                 RecordOrder &order);

  /// Called once, with the gradients of the next step before clipping.
  void onGradients(std::function<void()> hook) {
    gradientHook = std::move(hook);
  }

  /// Forward only, over all records.
  Evaluation evaluate(const DataReader &data);

  /// Indices of the scalar outputs besides the loss.
  const std::vector<int32_t> &scalarOutputs() const { return scalars; }

private:
  void countTargets(const StepInput &input, const DataReader &data,
                    RecordOrder &order);
  void loadInputs(const DataReader &data, int64_t record);
  void loadCountInputs(const DataReader &data, int64_t record);
  double readCount();
  void optimize(const StepInput &input, StepResult &result);
  float seedOf(int32_t microBatch) const;

  const mgq_program &program;
  Arena &arena;
  Executor &executor;
  Optimizer &optimizer;
  Clipping &clipping;
  Trace &trace;
  bool byTokens, skipNonfinite;
  std::vector<int32_t> countInputs, scalars;
  std::vector<double> counts, losses; ///< Of each micro-batch of the step.
  double total = 0;                   ///< Sum of counts.
  std::function<void()> gradientHook;
  bool isFirst = true; ///< The running backward is the step's first.
  std::function<void(int32_t)> afterCall;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_STEP_H
