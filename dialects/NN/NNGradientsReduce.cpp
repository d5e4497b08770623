//===- NNGradientsReduce.cpp - Gradients of reductions and norms ----------===//

#include "dialects/NN/NNBuild.h"

using namespace mlir;
using namespace mgq::nn;

using Needed = llvm::BitVector;
using Gradients = MutableArrayRef<Value>;

//===----------------------------------------------------------------------===//
// reduce, cumsum, pool
//===----------------------------------------------------------------------===//

/// Gives a reduction's result (or its gradient) its reduced dimensions back, as
/// 1, so that it broadcasts against the input.
static Value keepDims(Build &b, ReduceOp op, Value x) {
  SmallVector<int64_t> shape(tensorType(op.getInput()).getShape());
  for (int64_t axis : op.getAxes())
    shape[axis] = 1;
  return b.reshape(x, shape);
}

/// g times the product of the other elements: the product of all that are not
/// zero, divided by the element, unless another element is zero.
static Value productGradient(Build &b, ReduceOp op, Value g) {
  Value x = op.getInput();
  Type element = tensorType(x).getElementType();
  Value isZero = b.compare(ComparePredicate::Eq, x, 0.0);
  Value nonZero = b.select(isZero, b.scalar(element, 1.0), x);
  Value zero = b.cast(isZero, element);
  Value product = b.reduce(ReduceKind::Prod, nonZero, op.getAxes(), true);
  Value zeros = b.reduce(ReduceKind::Sum, zero, op.getAxes(), true);
  Value alone = b.compare(ComparePredicate::Eq, zeros, zero);
  return b.mul(g, b.keepWhere(alone, b.div(product, nonZero)));
}

/// Equal extrema share the gradient, as in torch.amax.
static Value extremumGradient(Build &b, ReduceOp op, Value g) {
  Value x = op.getInput();
  Value hit =
      b.compare(ComparePredicate::Eq, x, keepDims(b, op, op.getResult()));
  Value count =
      b.reduce(ReduceKind::Sum, b.cast(hit, tensorType(x).getElementType()),
               op.getAxes(), true);
  return b.keepWhere(hit, b.div(g, count));
}

LogicalResult ReduceOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                      const Needed &needed, Gradients out) {
  if (!needed[0])
    return success();
  Build b(builder, getLoc());
  Value g = keepDims(b, *this, grads[0]);
  switch (getKind()) {
  case ReduceKind::Sum:
    out[0] = b.broadcast(g, tensorType(getInput()).getShape());
    break;
  case ReduceKind::Prod:
    out[0] = productGradient(b, *this, g);
    break;
  case ReduceKind::Max:
  case ReduceKind::Min:
    out[0] = extremumGradient(b, *this, g);
    break;
  }
  return success();
}

LogicalResult CumsumOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                      const Needed &needed, Gradients out) {
  if (needed[0])
    out[0] = CumsumOp::create(builder, getLoc(), grads[0], getAxis(),
                              getExclusive(), !getReverse());
  return success();
}

LogicalResult PoolOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                    const Needed &needed, Gradients out) {
  if (!needed[0])
    return success();
  // An average reads no element of its input, only its shape.
  Value input = getInput();
  if (getKind() == PoolKind::Average)
    input = Build(builder, getLoc()).zeros(tensorType(input));
  out[0] = PoolGradOp::create(builder, getLoc(), getInput().getType(),
                              getKind(), input, grads[0], getWindow(),
                              getStrides(), getDilations(), getPadsBefore(),
                              getPadsAfter(), getGroups(), getCountPadding());
  return success();
}

//===----------------------------------------------------------------------===//
// softmax, log_softmax
//===----------------------------------------------------------------------===//

// y (g - sum(g y)).
LogicalResult SoftmaxOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                       const Needed &needed, Gradients out) {
  if (!needed[0])
    return success();
  Build b(builder, getLoc());
  Value y = getResult(), g = grads[0];
  Value dot =
      b.reduce(ReduceKind::Sum, b.mul(g, y), {int64_t(getAxis())}, true);
  out[0] = b.mul(y, b.sub(g, dot));
  return success();
}

// g - exp(y) sum(g).
LogicalResult LogSoftmaxOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                          const Needed &needed, Gradients out) {
  if (!needed[0])
    return success();
  Build b(builder, getLoc());
  Value g = grads[0];
  Value sum = b.reduce(ReduceKind::Sum, g, {int64_t(getAxis())}, true);
  out[0] = b.sub(g, b.mul(b.unary(UnaryKind::Exp, getResult()), sum));
  return success();
}

//===----------------------------------------------------------------------===//
// layer_norm, rms_norm
//===----------------------------------------------------------------------===//

// Operands are input, scale, bias; scale and bias may be missing.
LogicalResult LayerNormOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                         const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  Value g = grads[0];
  unsigned scale = 1, bias = getScale() ? 2 : 1;
  if (needed[0]) {
    Value scaled = getScale() ? b.mul(g, getScale()) : g;
    out[0] = LayerNormGradOp::create(builder, getLoc(), getInput(), scaled,
                                     getAxisAttr(), getEpsilonAttr());
  }
  if (getScale() && needed[scale]) {
    Value normed =
        LayerNormOp::create(builder, getLoc(), getInput(), Value(), Value(),
                            getAxisAttr(), getEpsilonAttr());
    out[scale] = b.sumTo(b.mul(g, normed), tensorType(getScale()));
  }
  if (getBias() && needed[bias])
    out[bias] = b.sumTo(g, tensorType(getBias()));
  return success();
}

LogicalResult RMSNormOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                       const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  Value g = grads[0];
  if (needed[0]) {
    Value scaled = getScale() ? b.mul(g, getScale()) : g;
    out[0] = RMSNormGradOp::create(builder, getLoc(), getInput(), scaled,
                                   getAxisAttr(), getEpsilonAttr());
  }
  if (getScale() && needed[1]) {
    Value normed = RMSNormOp::create(builder, getLoc(), getInput(), Value(),
                                     getAxisAttr(), getEpsilonAttr());
    out[1] = b.sumTo(b.mul(g, normed), tensorType(getScale()));
  }
  return success();
}
