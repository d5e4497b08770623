//===- FlashAttentionBlocks.h - Shared by attention forward and backward --===//
#ifndef MGQ_PASSES_KERNELS_FLASHATTENTIONBLOCKS_H
#define MGQ_PASSES_KERNELS_FLASHATTENTIONBLOCKS_H

#include "passes/Kernels/FlashAttention.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace mgq::kernels {

/// Index of a field in AttentionShape's table; a tensor's is its first stride.
enum AttentionField : int64_t {
  BATCH,
  HEADS,
  KV_HEADS,
  QUERIES,
  KEYS,
  DEPTH,
  VALUE_DEPTH,
  CAUSAL_OFFSET,
  SCALE,
  SCALE_IN,
  SCALE_OUT,
  Q,
  K = Q + 3,
  V = K + 3,
  O = V + 3,
  GRAD_O = O + 3,
  GRAD_Q = GRAD_O + 3,
  GRAD_K = GRAD_Q + 3,
  GRAD_V = GRAD_K + 3,
  MASK = GRAD_V + 3
};

/// Rows and columns of a tile of scores. A multiple of the rows of both
/// families' micro-kernels; larger blocks of keys gain 1 to 2 % forward only.
constexpr int64_t kQueryBlock = 96;
constexpr int64_t kKeyBlock = 128;
constexpr int64_t kGradientKeyBlock = 64;

/// Elements between rows of a tile: room for a whole last vector, and no power
/// of two, which would put a column into one cache set.
inline int64_t tileStride(const CpuFamily &family) {
  return kKeyBlock + family.lanes;
}

/// Runs body(column, mask, carried) for whole vectors of [0, count), then for
/// what is left with a lane mask; the mask is null before.
KernelBuilder::Vals vectorLoop(
    KernelBuilder &kb, Val count, llvm::ArrayRef<Val> inits,
    llvm::function_ref<KernelBuilder::Vals(Val, Val, KernelBuilder::Vals)>
        body);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_FLASHATTENTIONBLOCKS_H
