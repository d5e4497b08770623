//===- NNFold.cpp - Constant folding of nn ops that move data -------------===//
//
// Folds constants, so that shape arithmetic in exports disappears, and ops
// that change nothing. Every fold keeps all bits of the result. Arithmetic is
// in NNFoldMath.cpp.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/NN.h"
#include "dialects/NN/NNElements.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace mgq::nn;

bool mgq::nn::isFoldableSize(ShapedType type) {
  // Integers and booleans are masks and positions (512 x 512 and the like),
  // which later phases want to see through; floats are tables.
  constexpr int64_t maxIntegers = int64_t(1) << 22, maxFloats = 65536;
  return type.hasStaticShape() &&
         type.getNumElements() <=
             (isa<FloatType>(type.getElementType()) ? maxFloats : maxIntegers);
}

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

/// Reads `attr` if an op with a result of this type may fold it.
static std::optional<Elements> readFor(Attribute attr, Value result) {
  if (!attr || !typeOf(result).hasStaticShape())
    return std::nullopt;
  auto elements = readElements(attr);
  if (!elements || (!elements->splat && !isFoldableSize(typeOf(result))))
    return std::nullopt;
  return elements;
}

/// The constant of type `result` that reads `input` at strided offsets.
static DenseElementsAttr readStrided(const Elements &input, Value result,
                                     ArrayRef<int64_t> strides,
                                     int64_t offset = 0) {
  Elements output{typeOf(result), input.splat, {}};
  if (input.splat) {
    output.words = input.words;
    return writeElements(output);
  }
  output.words.reserve(output.type.getNumElements());
  forEachOffset(output.type.getShape(), strides, offset,
                [&](int64_t at) { output.words.push_back(input.words[at]); });
  return writeElements(output);
}

OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }

OpFoldResult ReshapeOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType())
    return getInput();
  if (auto dense = dyn_cast_or_null<DenseElementsAttr>(adaptor.getInput()))
    if (getType().hasStaticShape())
      return dense.reshape(getType());
  auto inner = getInput().getDefiningOp<ReshapeOp>();
  if (inner && typeOf(inner.getInput()).hasStaticShape() &&
      getType().hasStaticShape()) {
    getInputMutable().assign(inner.getInput());
    return getResult();
  }
  return {};
}

OpFoldResult TransposeOp::fold(FoldAdaptor adaptor) {
  ArrayRef<int64_t> permutation = getPermutation();
  if (llvm::equal(permutation, llvm::seq<int64_t>(0, permutation.size())))
    return getInput();
  if (auto inner = getInput().getDefiningOp<TransposeOp>()) {
    SmallVector<int64_t> joined;
    for (int64_t dim : permutation)
      joined.push_back(inner.getPermutation()[dim]);
    setPermutation(joined);
    getInputMutable().assign(inner.getInput());
    return getResult();
  }
  auto input = readFor(adaptor.getInput(), getResult());
  if (!input)
    return {};
  SmallVector<int64_t> own = rowMajor(input->type.getShape()), strides;
  for (int64_t dim : permutation)
    strides.push_back(own[dim]);
  return readStrided(*input, getResult(), strides);
}

OpFoldResult BroadcastOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType())
    return getInput();
  auto input = readFor(adaptor.getInput(), getResult());
  if (!input)
    return {};
  return readStrided(
      *input, getResult(),
      broadcastStrides(input->type.getShape(), getType().getShape()));
}

OpFoldResult SliceOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType() &&
      llvm::all_of(getStrides(), [](int64_t stride) { return stride == 1; }))
    return getInput();
  auto input = readFor(adaptor.getInput(), getResult());
  if (!input)
    return {};
  SmallVector<int64_t> strides = rowMajor(input->type.getShape());
  int64_t offset = 0;
  for (auto [stride, start, step] :
       llvm::zip_equal(strides, getStarts(), getStrides())) {
    offset += start * stride;
    stride *= step;
  }
  return readStrided(*input, getResult(), strides, offset);
}

OpFoldResult ConcatOp::fold(FoldAdaptor adaptor) {
  if (getInputs().size() == 1)
    return getInputs().front();
  if (!isFoldableSize(getType()))
    return {};
  SmallVector<Elements> inputs;
  for (Attribute attr : adaptor.getInputs()) {
    auto input = readFor(attr, getResult());
    if (!input)
      return {};
    inputs.push_back(std::move(*input));
  }
  // Rows of the inputs interleave: one run per input and outer position.
  int64_t axis = getAxis(), outer = 1;
  for (int64_t dim : getType().getShape().take_front(axis))
    outer *= dim;
  Elements output{getType(), false, {}};
  for (int64_t row = 0; row < outer; ++row)
    for (const Elements &input : inputs) {
      int64_t run = input.type.getNumElements() / outer;
      for (int64_t i = row * run; i < (row + 1) * run; ++i)
        output.words.push_back(input.word(i));
    }
  return writeElements(output);
}

OpFoldResult GatherOp::fold(FoldAdaptor adaptor) {
  auto input = readFor(adaptor.getInput(), getResult());
  auto indices = readFor(adaptor.getIndices(), getResult());
  if (!input || !indices || !isFoldableSize(getType()))
    return {};
  ArrayRef<int64_t> shape = input->type.getShape();
  int64_t axis = getAxis(), outer = 1, inner = 1, size = shape[axis];
  for (int64_t dim : shape.take_front(axis))
    outer *= dim;
  for (int64_t dim : shape.drop_front(axis + 1))
    inner *= dim;
  Elements output{getType(), false, {}};
  int64_t count = indices->type.getNumElements();
  for (int64_t row = 0; row < outer; ++row)
    for (int64_t i = 0; i < count; ++i) {
      int64_t index = static_cast<int64_t>(indices->word(i));
      index += index < 0 ? size : 0;
      if (index < 0 || index >= size)
        return {};
      int64_t base = (row * size + index) * inner;
      for (int64_t j = 0; j < inner; ++j)
        output.words.push_back(input->word(base + j));
    }
  return writeElements(output);
}

OpFoldResult GatherNDOp::fold(FoldAdaptor adaptor) {
  auto input = readFor(adaptor.getInput(), getResult());
  auto indices = readFor(adaptor.getIndices(), getResult());
  if (!input || !indices || !isFoldableSize(getType()))
    return {};
  ArrayRef<int64_t> shape = input->type.getShape(),
                    tuples = indices->type.getShape();
  int64_t width = tuples.back(), batch = getBatchDims(), batches = 1;
  for (int64_t dim : shape.take_front(batch))
    batches *= dim;
  SmallVector<int64_t> strides = rowMajor(shape);
  int64_t inner = 1;
  for (int64_t dim : shape.drop_front(batch + width))
    inner *= dim;
  int64_t count = width == 0 ? 0 : indices->type.getNumElements() / width;
  if (count == 0 || batches == 0)
    return {};
  int64_t perBatch = input->type.getNumElements() / batches;
  Elements output{getType(), false, {}};
  for (int64_t i = 0; i < count; ++i) {
    int64_t base = i / (count / batches) * perBatch;
    for (int64_t j = 0; j < width; ++j) {
      int64_t size = shape[batch + j];
      int64_t index = static_cast<int64_t>(indices->word(i * width + j));
      index += index < 0 ? size : 0;
      if (index < 0 || index >= size)
        return {};
      base += index * strides[batch + j];
    }
    for (int64_t j = 0; j < inner; ++j)
      output.words.push_back(input->word(base + j));
  }
  return writeElements(output);
}

OpFoldResult NonZeroOp::fold(FoldAdaptor) {
  // The result type has a dynamic dimension; a constant has none. The importer
  // computes it.
  return {};
}

OpFoldResult ShapeOp::fold(FoldAdaptor) {
  RankedTensorType input = typeOf(getInput());
  if (!input.hasStaticShape())
    return {};
  return DenseElementsAttr::get(getType(), input.getShape());
}
