//===- PlanReport.h - What --plan shows -------------------------*- C++ -*-===//
#ifndef MGQ_COMPILER_DRIVER_PLANREPORT_H
#define MGQ_COMPILER_DRIVER_PLANREPORT_H

#include "compiler/Pipelines/Options.h"
#include "passes/Pipe/PlanModel.h"

namespace mgq {

/// Puts the sizes that the memory plan found in place of the planner's
/// estimates.
void takeExactMemory(mlir::ModuleOp module, pipe::PlannedModel &planned);

/// Bytes that the fullest rank lacks on its device; 0: all ranks fit.
int64_t lackingBytes(const pipe::PlannedModel &planned);

/// Says which rank does not fit, by how much, and what would make it fit.
llvm::Error memoryError(const pipe::PlannedModel &planned);

/// Prints the plan of the program number `start` and what the others would
/// take, and writes the files that were asked for.
llvm::Error reportPlan(const Options &options,
                       llvm::ArrayRef<pipe::PlannedModel *> programs,
                       size_t start);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_PLANREPORT_H
