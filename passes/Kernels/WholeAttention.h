//===- WholeAttention.h - Attention that stays one op ---------------------===//
#ifndef MGQ_PASSES_KERNELS_WHOLEATTENTION_H
#define MGQ_PASSES_KERNELS_WHOLEATTENTION_H

#include "passes/Kernels/Lowering.h"

namespace mgq::kernels {

/// Head sizes of attention that a GPU computes tile by tile: multiples of
/// kHeadSizeStep up to kMostHeadSize. With others, gradients of keys and values
/// spill registers.
constexpr int64_t kMostHeadSize = 128, kHeadSizeStep = 4;

/// Lowers attention to kern.attention or kern.attention_grad if the target has
/// kernels for it; the one place that decides.
bool keepAttention(Lowering &l, nn::AttentionOp op);
bool keepAttention(Lowering &l, nn::AttentionGradOp op);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_WHOLEATTENTION_H
