//===- Tensor.cpp - Values of the reference interpreter -------------------===//

#include "dialects/NN/Interpreter/Tensor.h"

using namespace mlir;
using namespace mgq::nn;

void mgq::nn::forEachIndex(Index shape, llvm::function_ref<void(Index)> body) {
  if (llvm::is_contained(shape, 0))
    return;
  SmallVector<int64_t> index(shape.size(), 0);
  while (true) {
    body(index);
    int64_t dim = shape.size() - 1;
    while (dim >= 0 && ++index[dim] == shape[dim])
      index[dim--] = 0;
    if (dim < 0)
      return;
  }
}

int64_t mgq::nn::offsetOf(Index shape, Index index) {
  int64_t offset = 0;
  for (auto [dim, i] : llvm::zip_equal(shape, index))
    offset = offset * dim + i;
  return offset;
}

SmallVector<int64_t> mgq::nn::withAxis(Index index, int64_t axis,
                                       int64_t value) {
  SmallVector<int64_t> changed(index);
  changed[axis] = value;
  return changed;
}

const Number &Tensor::broadcastAt(Index index) const {
  SmallVector<int64_t> own(index.take_back(rank()));
  for (auto [i, dim] : llvm::zip_equal(own, shape()))
    if (dim == 1)
      i = 0;
  return at(own);
}

Number mgq::nn::roundTo(Type element, Number value) {
  if (auto type = dyn_cast<FloatType>(element)) {
    if (type.isF64())
      return value;
    APFloat rounded(value.real);
    bool lost;
    rounded.convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven,
                    &lost);
    return {rounded.convertToDouble(), 0};
  }
  unsigned width = element.getIntOrFloatBitWidth();
  APInt wrapped(width, value.whole, /*isSigned=*/true, /*implicitTrunc=*/true);
  bool isUnsigned = element.isUnsignedInteger() || width == 1;
  return {0.0, isUnsigned ? int64_t(wrapped.getZExtValue())
                          : wrapped.getSExtValue()};
}

void Tensor::round() {
  for (Number &value : data)
    value = roundTo(type.getElementType(), value);
}

Tensor::Tensor(DenseElementsAttr attr)
    : Tensor(cast<RankedTensorType>(attr.getType())) {
  Type element = type.getElementType();
  if (isFloat()) {
    for (auto [value, from] : llvm::zip_equal(data, attr.getValues<APFloat>()))
      value.real = from.convertToDouble();
    return;
  }
  bool isUnsigned = element.isUnsignedInteger() || element.isInteger(1);
  for (auto [value, from] : llvm::zip_equal(data, attr.getValues<APInt>()))
    value.whole =
        isUnsigned ? int64_t(from.getZExtValue()) : from.getSExtValue();
}

DenseElementsAttr Tensor::toAttr() const {
  Type element = type.getElementType();
  SmallVector<Attribute> values;
  for (const Number &value : data)
    values.push_back(isFloat()
                         ? Attribute(FloatAttr::get(element, value.real))
                         : Attribute(IntegerAttr::get(
                               element, APInt(element.getIntOrFloatBitWidth(),
                                              value.whole, true, true))));
  return DenseElementsAttr::get(type, values);
}
