//===- ModelCompiler.h - One model, from file to schedule -----------------===//
#ifndef MGQ_COMPILER_DRIVER_MODELCOMPILER_H
#define MGQ_COMPILER_DRIVER_MODELCOMPILER_H

#include "compiler/Pipelines/Phases.h"
#include "passes/Pipe/PlanModel.h"

#include "mlir/IR/BuiltinOps.h"
#include <chrono>

namespace mgq {

/// The name under which mgq-compile reports.
inline constexpr llvm::StringLiteral kCompilerName = "mgq-compile";

/// Runs one model down the road, phase by phase. Faults are printed; functions
/// return an exit status.
class ModelCompiler {
public:
  /// `label` stands before the names of phases (-v) and folders (--dump-ir).
  ModelCompiler(mlir::MLIRContext &context, const Options &options,
                std::string label = "");

  /// Runs all phases up to `last`, `emit` left out.
  int runUntil(llvm::StringRef last);

  /// Runs passes on the module; --dump-ir writes them to the folder `name`.
  int runPasses(llvm::StringRef name,
                llvm::function_ref<void(mlir::OpPassManager &)> build);

  /// Prints the time since the last phase's end, and memory (-v).
  void finishPhase(llvm::StringRef name);

  /// Whether the next step's frozen prefix runs ahead: not where there is no
  /// memory for it.
  bool runsAhead() const { return options.runAhead; }

  mlir::OwningOpRef<mlir::ModuleOp> module;
  /// What the planner answered, with the sizes of the memory plan.
  pipe::PlannedModel planned;

private:
  int importModel();
  int runPhase(const Phase &phase);
  int fitMemory();
  int planAgain();
  mlir::FailureOr<bool> planLeaving(int64_t bytes);

  mlir::MLIRContext &context;
  Options options;
  std::string label;
  mlir::OwningOpRef<mlir::ModuleOp> unplanned; // before phase `partition`
  std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();
};

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_MODELCOMPILER_H
