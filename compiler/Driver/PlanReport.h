//===- PlanReport.h - What --plan shows -------------------------*- C++ -*-===//
#ifndef MGQ_COMPILER_DRIVER_PLANREPORT_H
#define MGQ_COMPILER_DRIVER_PLANREPORT_H

#include "compiler/Pipelines/Options.h"
#include "passes/Pipe/PlanModel.h"

namespace mgq {

/// Puts the sizes that the memory plan found in place of the planner's
/// estimates. Error if a rank needs more than its device has: which one, by how
/// much, what would make it fit.
llvm::Error takeExactMemory(mlir::ModuleOp module, pipe::PlannedModel &planned);

/// Prints the plan and writes the files that were asked for.
llvm::Error reportPlan(const Options &options, pipe::PlannedModel &planned);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_PLANREPORT_H
