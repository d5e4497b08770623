//===- RestoreRows.h - Nests of one row -------------------------*- C++ -*-===//

#ifndef MGQ_PASSES_KERNELS_CUDA_RESTOREROWS_H
#define MGQ_PASSES_KERNELS_CUDA_RESTOREROWS_H

namespace mlir {
class Block;
} // namespace mlir

namespace mgq::kernels {

/// Puts a parallel loop of one iteration around what has none in `body`, the
/// region of a kern.loops: canonicalization took it from nests of one row.
/// cuda-outline makes a kernel of each such loop, so values that loops of a row
/// share (the mean of a norm) stay in one kernel.
void restoreRows(mlir::Block &body);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_RESTOREROWS_H
