//===- Phases.h - The road of a model, phase by phase ---------------------===//
//
// The only place that orders passes. A phase has a name (--stop-after,
// --dump-ir), and ends with a pass that checks what it promises
// (docs/Architecture.md).
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_COMPILER_PIPELINES_PHASES_H
#define MGQ_COMPILER_PIPELINES_PHASES_H

#include "compiler/Pipelines/Options.h"

#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/ArrayRef.h"

namespace mgq {

/// A phase between `import` and `emit`.
struct Phase {
  llvm::StringLiteral name;
  llvm::StringLiteral help;
  /// Adds the phase's passes; the pass manager is one of the module.
  void (*build)(mlir::OpPassManager &passes, const Options &options);
};

/// Phases in order; the first is `import`, the last `emit`, which are not made
/// of passes (`build` is null).
llvm::ArrayRef<Phase> allPhases();

/// Whether `name` names a phase.
bool isPhase(llvm::StringRef name);

} // namespace mgq

#endif // MGQ_COMPILER_PIPELINES_PHASES_H
