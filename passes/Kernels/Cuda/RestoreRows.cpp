//===- RestoreRows.cpp - Nests of one row ---------------------------------===//

#include "passes/Kernels/Cuda/RestoreRows.h"
#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace mgq::kernels;

/// Makes `run`, neighbours without a parallel loop among them, a row. What
/// takes no result of the row's code goes in front of it. A row whose results
/// are taken elsewhere stays as it is.
static void wrapRow(ArrayRef<Operation *> run) {
  SmallVector<Operation *> row;
  llvm::SmallPtrSet<Operation *, 16> isOfRow;
  auto isResult = [&](Value value) {
    return isOfRow.contains(value.getDefiningOp());
  };
  for (Operation *op : run) {
    bool isFree = isa<memref::AllocOp>(op) ||
                  (op->getNumRegions() == 0 && isMemoryEffectFree(op) &&
                   llvm::none_of(op->getOperands(), isResult));
    if (!isFree) {
      row.push_back(op);
      isOfRow.insert(op);
    } else if (!row.empty()) {
      op->moveBefore(row.front());
    }
  }
  auto isInside = [&](Operation *user) {
    for (; user; user = user->getParentOp())
      if (isOfRow.contains(user))
        return true;
    return false;
  };
  for (Operation *op : row)
    if (!llvm::all_of(op->getUsers(), isInside))
      return;
  if (row.empty())
    return;
  OpBuilder builder(row.front()->getContext());
  builder.setInsertionPointAfter(row.back()); // stays outside
  LoopBuilder loops(builder, row.front()->getLoc());
  loops.parallel({1}, [&](ValueRange) {
    for (Operation *op : row)
      op->moveBefore(builder.getInsertionBlock(), builder.getInsertionPoint());
  });
}

void mgq::kernels::restoreRows(Block &body) {
  SmallVector<Operation *> run;
  for (Operation &op : llvm::make_early_inc_range(body)) {
    if (!isa<scf::ParallelOp>(op)) {
      run.push_back(&op);
      continue;
    }
    wrapRow(run);
    run.clear();
  }
  wrapRow(run);
}
