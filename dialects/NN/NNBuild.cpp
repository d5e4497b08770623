//===- NNBuild.cpp - Short calls that build nn ops ------------------------===//

#include "dialects/NN/NNBuild.h"

using namespace mlir;
using namespace mgq::nn;

Value Build::scalar(Type element, double value) {
  auto type = RankedTensorType::get({}, element);
  Attribute attr;
  if (isa<FloatType>(element))
    attr = FloatAttr::get(element, value);
  else
    attr = IntegerAttr::get(element, static_cast<int64_t>(value));
  return ConstantOp::create(builder, loc, DenseElementsAttr::get(type, attr));
}

Value Build::filled(RankedTensorType type, double value) {
  return broadcast(scalar(type.getElementType(), value), type.getShape());
}

Value Build::unary(UnaryKind kind, Value x) {
  return UnaryOp::create(builder, loc, kind, x);
}

Value Build::binary(BinaryKind kind, Value a, Value b) {
  return BinaryOp::create(builder, loc, kind, a, b);
}

Value Build::binary(BinaryKind kind, Value a, double b) {
  return binary(kind, a, scalar(tensorType(a).getElementType(), b));
}

Value Build::from(double c, Value x) {
  return sub(scalar(tensorType(x).getElementType(), c), x);
}

Value Build::compare(ComparePredicate predicate, Value a, Value b) {
  return CompareOp::create(builder, loc, predicate, a, b);
}

Value Build::compare(ComparePredicate predicate, Value a, double b) {
  return compare(predicate, a, scalar(tensorType(a).getElementType(), b));
}

Value Build::select(Value condition, Value onTrue, Value onFalse) {
  return SelectOp::create(builder, loc, condition, onTrue, onFalse);
}

Value Build::keepWhere(Value condition, Value x) {
  return select(condition, x, scalar(tensorType(x).getElementType(), 0.0));
}

Value Build::dropWhere(Value condition, Value x) {
  return select(condition, scalar(tensorType(x).getElementType(), 0.0), x);
}

Value Build::cast(Value x, Type element) {
  if (tensorType(x).getElementType() == element)
    return x;
  auto type = RankedTensorType::get(tensorType(x).getShape(), element);
  return CastOp::create(builder, loc, type, x);
}

Value Build::matmul(Value a, Value b, bool transposeA, bool transposeB) {
  return MatmulOp::create(builder, loc, a, b, transposeA, transposeB);
}

Value Build::reshape(Value x, ArrayRef<int64_t> shape) {
  if (tensorType(x).getShape() == shape)
    return x;
  return ReshapeOp::create(builder, loc, tensorType(x).clone(shape), x);
}

Value Build::broadcast(Value x, ArrayRef<int64_t> shape) {
  if (tensorType(x).getShape() == shape)
    return x;
  return BroadcastOp::create(builder, loc, tensorType(x).clone(shape), x);
}

Value Build::transpose(Value x, ArrayRef<int64_t> permutation) {
  return TransposeOp::create(builder, loc, x, permutation);
}

Value Build::reduce(ReduceKind kind, Value x, ArrayRef<int64_t> axes,
                    bool keepDims) {
  return ReduceOp::create(builder, loc, kind, x, axes, keepDims);
}

Value Build::sumTo(Value x, RankedTensorType type) {
  ArrayRef<int64_t> from = tensorType(x).getShape(), to = type.getShape();
  int64_t extra = from.size() - to.size();
  SmallVector<int64_t> axes;
  for (int64_t i = 0, e = from.size(); i < e; ++i)
    if (from[i] != 1 && (i < extra || to[i - extra] == 1))
      axes.push_back(i);
  if (!axes.empty())
    x = reduce(ReduceKind::Sum, x, axes, /*keepDims=*/false);
  return reshape(x, to);
}
