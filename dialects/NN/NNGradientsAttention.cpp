//===- NNGradientsAttention.cpp - Gradients of attention, rope and loss ---===//

#include "dialects/NN/NNBuild.h"

#include <limits>

using namespace mlir;
using namespace mgq::nn;

using Needed = llvm::BitVector;
using Gradients = MutableArrayRef<Value>;

//===----------------------------------------------------------------------===//
// attention
//===----------------------------------------------------------------------===//

/// x [batch, kv heads, length, width] with a copy of each head per query head
/// that reads it.
static Value repeatHeads(Build &b, Value x, int64_t heads) {
  SmallVector<int64_t> shape(tensorType(x).getShape());
  int64_t copies = heads / shape[1];
  if (copies == 1)
    return x;
  SmallVector<int64_t> spread(shape);
  spread.insert(spread.begin() + 2, 1);
  x = b.reshape(x, spread);
  spread[2] = copies;
  x = b.broadcast(x, spread);
  shape[1] = heads;
  return b.reshape(x, shape);
}

/// [queries, keys], true where a causal query sees a key.
static Value causalMask(Build &b, int64_t queries, int64_t keys, bool fromEnd) {
  Type i64 = b.builder.getI64Type();
  auto range = [&](int64_t first, int64_t count, ArrayRef<int64_t> shape) {
    SmallVector<int64_t> values =
        llvm::to_vector(llvm::seq<int64_t>(first, first + count));
    auto attr = DenseElementsAttr::get(RankedTensorType::get(shape, i64),
                                       ArrayRef<int64_t>(values));
    return ConstantOp::create(b.builder, b.loc, attr).getResult();
  };
  int64_t shift = fromEnd ? keys - queries : 0;
  return b.compare(ComparePredicate::Ge, range(shift, queries, {queries, 1}),
                   range(0, keys, {1, keys}));
}

/// The probabilities of an attention, [batch, heads, queries, keys].
static Value probabilities(Build &b, AttentionOp op) {
  ArrayRef<int64_t> q = tensorType(op.getQ()).getShape();
  Type element = tensorType(op.getQ()).getElementType();
  Value keys = repeatHeads(b, op.getK(), q[1]);
  Value scores = b.mul(b.matmul(op.getQ(), keys, false, true),
                       op.getScale().convertToDouble());
  double cap = op.getSoftcap().convertToDouble();
  if (cap > 0)
    scores = b.mul(b.unary(UnaryKind::Tanh, b.mul(scores, 1 / cap)), cap);
  Value never = b.scalar(element, -std::numeric_limits<double>::infinity());
  if (Value mask = op.getMask())
    scores =
        isFloat(mask) ? b.add(scores, mask) : b.select(mask, scores, never);
  if (op.getCausal())
    scores = b.select(causalMask(b, q[2], tensorType(keys).getDimSize(2),
                                 op.getCausalFromEnd()),
                      scores, never);
  // A row that sees no key: its maximum is -inf and its sum 0; both are put
  // right so that its probabilities are zeros.
  Value top = b.reduce(ReduceKind::Max, scores, {3}, true);
  top = b.dropWhere(b.compare(ComparePredicate::Eq, top, never), top);
  Value exp = b.unary(UnaryKind::Exp, b.sub(scores, top));
  Value sum = b.reduce(ReduceKind::Sum, exp, {3}, true);
  sum = b.select(b.compare(ComparePredicate::Eq, sum, 0.0),
                 b.scalar(element, 1.0), sum);
  return b.div(exp, sum);
}

/// Gradient of the scores after capping, which is also the float mask's:
/// P (dO V^T - rowsum(dO O)).
static Value scoreGradient(Build &b, AttentionOp op, Value g) {
  int64_t heads = tensorType(op.getQ()).getDimSize(1);
  Value values = repeatHeads(b, op.getV(), heads);
  Value dot = b.reduce(ReduceKind::Sum, b.mul(g, op.getResult()), {3}, true);
  Value dp = b.matmul(g, values, false, true);
  return b.mul(probabilities(b, op), b.sub(dp, dot));
}

// Operands are q, k, v, mask. The mask's gradient needs all scores, so only it
// builds them.
LogicalResult AttentionOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                         const Needed &needed, Gradients out) {
  if (needed[0] || needed[1] || needed[2]) {
    auto grad = AttentionGradOp::create(
        builder, getLoc(), getQ(), getK(), getV(), getResult(), grads[0],
        getMask(), getScaleAttr(), getCausalAttr(), getCausalFromEndAttr(),
        getSoftcapAttr());
    for (unsigned i = 0; i < 3; ++i)
      if (needed[i])
        out[i] = grad->getResult(i);
  }
  if (getMask() && needed[3] && isFloat(getMask())) {
    Build b(builder, getLoc());
    Value g = b.sumTo(scoreGradient(b, *this, grads[0]), tensorType(getMask()));
    out[3] = b.cast(g, tensorType(getMask()).getElementType());
  }
  return success();
}

//===----------------------------------------------------------------------===//
// rope
//===----------------------------------------------------------------------===//

/// rotate(x): what rope adds times sin.
static Value rotate(Build &b, RopeOp op, Value x) {
  Type element = tensorType(op.getCos()).getElementType();
  return RopeOp::create(b.builder, b.loc, x, b.scalar(element, 0.0),
                        b.scalar(element, 1.0), op.getInterleaved());
}

LogicalResult RopeOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                    const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  Value x = getInput(), g = grads[0];
  if (needed[0])
    out[0] = RopeOp::create(builder, getLoc(), g, getCos(), getSin(),
                            getInterleaved(), !getTransposed());
  if (needed[1])
    out[1] = b.cast(b.sumTo(b.mul(g, x), tensorType(getCos())),
                    tensorType(getCos()).getElementType());
  if (needed[2]) {
    Value product = getTransposed() ? b.mul(x, rotate(b, *this, g))
                                    : b.mul(g, rotate(b, *this, x));
    out[2] = b.cast(b.sumTo(product, tensorType(getSin())),
                    tensorType(getSin()).getElementType());
  }
  return success();
}

//===----------------------------------------------------------------------===//
// cross_entropy
//===----------------------------------------------------------------------===//

/// Gradient of the class weights: the unweighted loss of each row, added up by
/// label.
static Value weightGradient(Build &b, CrossEntropyOp op, Value g) {
  Value labels = op.getLabels();
  Value loss = CrossEntropyOp::create(b.builder, b.loc, op.getLogits(), labels,
                                      Value(), op.getIgnoreIndexAttr());
  // Ignored rows have loss 0: add it to class 0 rather than out of range.
  if (std::optional<uint64_t> ignored = op.getIgnoreIndex())
    labels = b.dropWhere(
        b.compare(ComparePredicate::Eq, labels, double(int64_t(*ignored))),
        labels);
  return GatherGradOp::create(b.builder, b.loc, op.getWeight().getType(),
                              b.mul(g, loss), labels, /*axis=*/0);
}

LogicalResult CrossEntropyOp::buildGradient(OpBuilder &builder,
                                            ValueRange grads,
                                            const Needed &needed,
                                            Gradients out) {
  Build b(builder, getLoc());
  if (needed[0])
    out[0] =
        CrossEntropyGradOp::create(builder, getLoc(), getLogits(), getLabels(),
                                   grads[0], getWeight(), getIgnoreIndexAttr());
  if (getWeight() && needed[2])
    out[2] = weightGradient(b, *this, grads[0]);
  return success();
}
