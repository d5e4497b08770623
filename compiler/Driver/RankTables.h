//===- RankTables.h - A rank's plan as constant tables --------------------===//
#ifndef MGQ_COMPILER_DRIVER_RANKTABLES_H
#define MGQ_COMPILER_DRIVER_RANKTABLES_H

#include "compiler/Driver/ConstantBuilder.h"
#include "dialects/Pipe/Pipe.h"

#include "mlir/IR/BuiltinOps.h"

namespace mgq {

/// Numbers by name in the tables of the whole program.
struct TableIndex {
  llvm::StringMap<int32_t> params, inputs, outputs, layers;
};

/// The mgq_rank of runtime/include/rt.h.
llvm::Constant *buildRankTable(ConstantBuilder &make, mlir::ModuleOp module,
                               pipe::PlanOp plan, pipe::RankOp rank,
                               const TableIndex &index);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_RANKTABLES_H
