//===- LowerKernAttention.cpp - kern.attention to generated kernels -------===//
//
// kern.attention and kern.attention_grad on f32 memrefs whose rows are
// contiguous become calls of a private function per shape, as products do
// (LowerMatmul.cpp); the function calls mgq_attention_* (FlashAttention.h).
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/FlashAttention.h"
#include "passes/Kernels/HandKernels.h"

using namespace mlir;
using namespace mgq::kernels;
namespace kern = mgq::kern;

/// Strides of batch, head and row of a buffer [batch, heads, rows, columns].
static std::optional<AttentionShape::Strides> readStrides(Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (type.getRank() != 4 || !type.hasStaticShape() ||
      !type.getElementType().isF32() ||
      failed(type.getStridesAndOffset(strides, offset)) ||
      llvm::is_contained(strides, ShapedType::kDynamic))
    return std::nullopt;
  if (strides[3] != 1 && type.getDimSize(3) != 1)
    return std::nullopt;
  return AttentionShape::Strides{strides[0], strides[1], strides[2]};
}

/// Sets what the mask says of `kind` and `shape`.
static LogicalResult readMask(Value mask, AttentionKind &kind,
                              AttentionShape &shape) {
  if (!mask)
    return success();
  auto type = cast<MemRefType>(mask.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (type.getRank() > 4 || !type.hasStaticShape() ||
      failed(type.getStridesAndOffset(strides, offset)) ||
      llvm::is_contained(strides, ShapedType::kDynamic))
    return failure();
  if (type.getElementType().isInteger(1))
    kind.mask = MaskKind::boolean;
  else if (type.getElementType().isF32())
    kind.mask = MaskKind::additive;
  else
    return failure();
  // Missing dimensions and those of one element are broadcast.
  SmallVector<int64_t, 4> full(4 - type.getRank(), 0);
  for (auto [size, stride] : llvm::zip(type.getShape(), strides))
    full.push_back(size == 1 ? 0 : stride);
  kind.maskByQuery = full[3] == 0;
  shape.mask = {full[0], full[1], full[2]};
  return success(full[3] <= 1);
}

/// What both ops say; nothing if the layout of q, k, v or mask does not fit.
template <typename OpTy>
static std::optional<std::pair<AttentionKind, AttentionShape>>
readAttention(OpTy op) {
  AttentionKind kind;
  AttentionShape shape;
  auto q = readStrides(op.getQ()), k = readStrides(op.getK());
  auto v = readStrides(op.getV());
  if (!q || !k || !v || failed(readMask(op.getMask(), kind, shape)))
    return std::nullopt;
  shape.q = *q;
  shape.k = *k;
  shape.v = *v;
  auto sizesOfQ = cast<MemRefType>(op.getQ().getType()).getShape();
  auto sizesOfV = cast<MemRefType>(op.getV().getType()).getShape();
  shape.batch = sizesOfQ[0];
  shape.heads = sizesOfQ[1];
  shape.queries = sizesOfQ[2];
  shape.depth = sizesOfQ[3];
  shape.kvHeads = sizesOfV[1];
  shape.keys = sizesOfV[2];
  shape.valueDepth = sizesOfV[3];
  shape.scale = op.getScale().convertToDouble();
  shape.softcap = op.getSoftcap().convertToDouble();
  kind.softcap = shape.softcap > 0;
  kind.causal = op.getCausal();
  if (op.getCausalFromEnd())
    shape.causalOffset = shape.keys - shape.queries;
  return std::pair(kind, shape);
}

namespace mgq::kernels {

void callAttention(kern::AttentionOp op, KernelCalls &calls) {
  auto read = readAttention(op);
  auto o = readStrides(op.getInit());
  if (!read || !o)
    return;
  auto [kind, shape] = *read;
  shape.o = *o;
  FlashAttention attention(calls.getGemms());
  calls.replace(op, "kern_attention", attention.getForward(kind),
                {op.getQ(), op.getK(), op.getV(), op.getMask(), op.getInit()},
                shape.getFields());
}

void callAttentionGrad(kern::AttentionGradOp op, KernelCalls &calls) {
  auto read = readAttention(op);
  auto o = readStrides(op.getResult()), gradO = readStrides(op.getGrad());
  ValueRange inits = op.getInits();
  auto gradQ = readStrides(inits[0]), gradK = readStrides(inits[1]);
  auto gradV = readStrides(inits[2]);
  if (!read || !o || !gradO || !gradQ || !gradK || !gradV)
    return;
  auto [kind, shape] = *read;
  shape.o = *o;
  shape.gradO = *gradO;
  shape.gradQ = *gradQ;
  shape.gradK = *gradK;
  shape.gradV = *gradV;
  FlashAttention attention(calls.getGemms());
  calls.replace(op, "kern_attention_grad", attention.getBackward(kind),
                {op.getQ(), op.getK(), op.getV(), op.getResult(), op.getGrad(),
                 op.getMask(), inits[0], inits[1], inits[2]},
                shape.getFields());
}

} // namespace mgq::kernels
