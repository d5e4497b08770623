//===- Distribute.h - Rows of a kernel on the threads of a block ----------===//
//
// A kernel computes rows (the iterations of the outermost parallel loop). A row
// is run by a group of threads, its lanes: 1, 2, 4, ... 32 or a whole block.
// Each lane runs the row's code; loops whose iterations are independent, or
// sums, are cut: lane i of g takes iterations i, i + g, i + 2 g, ... Where rows
// can be read in vectors of v elements, these are groups of v iterations: LLVM
// unrolls the loop over a group and joins its loads and stores.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_DISTRIBUTE_H
#define MGQ_PASSES_KERNELS_CUDA_DISTRIBUTE_H

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"

namespace mgq::kernels {

/// Threads of a warp.
constexpr int64_t kWarp = 32;

/// A loop-carried value that lanes can sum on their own and combine at the end.
struct LaneSum {
  unsigned index; ///< of the carried value
  mlir::Operation *combiner;
};

/// A loop that is cut.
struct LaneLoop {
  mlir::scf::ForOp loop;
  llvm::SmallVector<LaneSum> sums;
};

/// How the code of a row is spread over lanes.
struct LanePlan {
  int64_t lanes = 1;
  int64_t vector = 1; ///< iterations of a group
  llvm::MapVector<mlir::Operation *, LaneLoop> loops;
  /// Ops before which lanes wait for each other: what one wrote is read, or
  /// written again, by another.
  llvm::SetVector<mlir::Operation *> barriers;
  /// Stores of values that all lanes have; lane 0 does them.
  llvm::SmallVector<mlir::Operation *> uniformStores;
  bool hasSums() const;
};

/// Decides for the code of one row in `row`.
LanePlan planLanes(mlir::Block &row);

/// Elements in 16 bytes of the widest type that ops inside `block` load or
/// store, at most 8.
int64_t vectorOf(mlir::Block &block);

/// Makes the code of `loop`, from its induction variable on, a loop over
/// `count` consecutive values of it.
void groupIterations(mlir::scf::ForOp loop, int64_t count);

/// Carries the plan out. `lane` is in [0, plan.lanes). `makeShared` gives a
/// buffer of `count` elements that the block shares.
void distributeRow(
    const LanePlan &plan, mlir::Value lane, mlir::Value thread,
    llvm::function_ref<mlir::Value(mlir::Type, int64_t)> makeShared);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_DISTRIBUTE_H
