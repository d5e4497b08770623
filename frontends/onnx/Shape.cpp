//===- Shape.cpp - Operators on shapes ------------------------------------===//
//
// Shapes are static, so Shape, Size and all arithmetic on them fold away. The
// one exception are values behind a NonZero (torch.masked_scatter): these have
// a dynamic dimension, which `nn-simplify` removes.
//
//===----------------------------------------------------------------------===//

#include "frontends/onnx/Registry.h"
#include "frontends/onnx/Tensors.h"

#include "dialects/NN/NNElements.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::Elements;

static Value importShape(Node &n) {
  Value x = n.input(0);
  if (!x)
    return n.fail("has no input");
  Value dims = n.make<nn::ShapeOp>(x);
  int64_t rank = rankOf(x);
  auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  int64_t start = clamp(n.getInt("start", 0));
  int64_t end = std::max(start, clamp(n.getInt("end", rank)));
  return n.slice(dims, 0, start, end);
}

static Value importSize(Node &n) {
  Value x = n.input(0);
  if (!x || !typeOf(x).hasStaticShape())
    return n.fail("not supported yet: a size that depends on data");
  return n.scalar(typeOf(x).getNumElements(), n.builder.getI64Type());
}

/// Resolves 0 (copy) and -1 (the rest) in a requested shape.
static bool resolveShape(Node &n, SmallVectorImpl<int64_t> &shape,
                         ArrayRef<int64_t> input, bool allowZero) {
  int64_t known = 1, rest = -1, total = 1;
  bool isDynamic = false;
  for (int64_t dim : input) {
    isDynamic |= ShapedType::isDynamic(dim);
    total *= isDynamic ? 1 : dim;
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !allowZero) {
      if (i >= input.size()) {
        n.fail("copies dimension " + Twine(i) + " of a tensor of rank " +
               Twine(input.size()));
        return false;
      }
      shape[i] = input[i];
    }
    if (shape[i] == -1 && rest == -1) {
      rest = i;
      continue;
    }
    if (shape[i] < 0 && !ShapedType::isDynamic(shape[i])) {
      n.fail("has dimension " + Twine(shape[i]) + " in its shape");
      return false;
    }
    isDynamic |= ShapedType::isDynamic(shape[i]);
    if (!ShapedType::isDynamic(shape[i]) &&
        llvm::MulOverflow(known, shape[i], known)) {
      n.fail("has a shape that is too large");
      return false;
    }
  }
  if (rest == -1)
    return true;
  if (isDynamic) {
    shape[rest] = ShapedType::kDynamic;
  } else if (known == 0) {
    shape[rest] = 0;
  } else if (total % known != 0) {
    n.fail("cannot arrange " + Twine(total) + " elements in rows of " +
           Twine(known));
    return false;
  } else {
    shape[rest] = total / known;
  }
  return true;
}

static Value importReshape(Node &n) {
  MaybeInts shape = n.intsOf("shape", 1);
  if (!shape || !n.input(0))
    return n.fail("has no shape");
  if (!resolveShape(n, *shape, shapeOf(n.input(0)), n.getInt("allowzero", 0)))
    return {};
  return n.reshape(n.input(0), *shape);
}

static Value importFlatten(Node &n) {
  Value x = n.input(0);
  int64_t rank = rankOf(x), at = n.getInt("axis", 1);
  if (at < 0)
    at += rank;
  if (at < 0 || at > rank)
    return n.fail("axis " + Twine(at) + " is outside a tensor of rank " +
                  Twine(rank));
  int64_t rows = 1, columns = 1;
  for (auto [index, dim] : llvm::enumerate(shapeOf(x)))
    (int64_t(index) < at ? rows : columns) *= dim;
  return n.reshape(x, {rows, columns});
}

static Value importSqueeze(Node &n) {
  Value x = n.input(0);
  MaybeInts given = n.intsOf("axes", 1);
  if (n.hasFailed() || !x)
    return {};
  Shape shape;
  SmallVector<bool> gone(rankOf(x), false);
  if (given) {
    for (int64_t one : *given) {
      auto axis = n.axis(one, rankOf(x));
      if (!axis)
        return {};
      if (shapeOf(x)[*axis] != 1)
        return n.fail("squeezes dimension " + Twine(*axis) + " of size " +
                      Twine(shapeOf(x)[*axis]));
      gone[*axis] = true;
    }
  }
  for (auto [index, dim] : llvm::enumerate(shapeOf(x)))
    if (given ? !gone[index] : dim != 1)
      shape.push_back(dim);
  return n.reshape(x, shape);
}

static Value importUnsqueeze(Node &n) {
  Value x = n.input(0);
  MaybeInts given = n.intsOf("axes", 1);
  if (!given)
    return n.fail("has no axes");
  int64_t rank = rankOf(x) + given->size();
  MaybeInts axes = n.axes(given, rank);
  if (!axes)
    return {};
  if (axes->size() != given->size())
    return n.fail("names an axis twice");
  Shape shape(shapeOf(x));
  for (int64_t axis : *axes)
    shape.insert(shape.begin() + axis, 1);
  return n.reshape(x, shape);
}

static Value importExpand(Node &n) {
  Value x = n.input(0);
  MaybeInts shape = n.needInts(1, "shape");
  if (!shape || !x)
    return {};
  auto joined = nn::broadcastShapes(shapeOf(x), *shape);
  if (failed(joined))
    return n.fail("cannot expand to the requested shape: dimensions differ "
                  "and none is 1");
  return n.broadcast(x, *joined);
}

static Value importConstantOfShape(Node &n) {
  MaybeInts shape = n.needInts(0, "shape");
  if (!shape)
    return {};
  for (int64_t dim : *shape)
    if (dim < 0)
      return n.fail("has dimension " + Twine(dim) + " in its shape");
  const auto *attribute = n.attribute("value");
  if (!attribute)
    return n.splat(0, *shape, n.builder.getF32Type());
  auto value = inlineValue(n.loc, attribute->t());
  if (failed(value) || value->getNumElements() != 1)
    return n.fail("has a value that is not one element");
  auto elements = nn::readElements(*value);
  auto type = RankedTensorType::get(*shape, value->getElementType());
  return n.constant(nn::writeElements({type, true, elements->words}));
}

/// The one element of a constant as a double (exact below 2^53) or nothing.
static std::optional<double> constantNumber(Node &n, Value value) {
  if (auto number = n.constantFloat(value))
    return number;
  MaybeInts values = n.constantInts(value);
  if (!values || values->size() != 1)
    return std::nullopt;
  return static_cast<double>(values->front());
}

static Value importRange(Node &n) {
  auto start = constantNumber(n, n.input(0)),
       limit = constantNumber(n, n.input(1)),
       delta = constantNumber(n, n.input(2));
  if (!start || !limit || !delta)
    return n.fail("not supported yet: bounds that are not known at compile "
                  "time");
  if (*delta == 0)
    return n.fail("has a step of 0");
  double span = std::ceil((*limit - *start) / *delta);
  if (!(span < 1e9))
    return n.fail("not supported yet: so many elements");
  int64_t count = std::max(0.0, span);
  if (!n.fitsTable(count))
    return {};
  Type element = elementOf(n.input(0));
  Elements result{RankedTensorType::get({count}, element), false, {}};
  for (int64_t i = 0; i < count; ++i) {
    double value = *start + i * *delta;
    auto floating = dyn_cast<FloatType>(element);
    result.words.push_back(floating ? nn::wordOfFloat(value, floating)
                                    : nn::wrapWord(static_cast<int64_t>(value),
                                                   cast<IntegerType>(element)));
  }
  return n.constant(nn::writeElements(result));
}

static Value importEyeLike(Node &n) {
  Value x = n.input(0);
  if (rankOf(x) != 2)
    return n.fail("has an input of rank " + Twine(rankOf(x)) + ", expected 2");
  Type element = elementOf(x);
  if (n.attribute("dtype"))
    element = elementTypeOf(n.getInt("dtype", 0), n.builder.getContext());
  if (!element)
    return n.fail("not supported yet: element type of the result");
  int64_t rows = shapeOf(x)[0], columns = shapeOf(x)[1], k = n.getInt("k", 0);
  if (!n.fitsTable(rows, columns))
    return {};
  auto type = RankedTensorType::get({rows, columns}, n.builder.getI1Type());
  Elements eye{type, false, std::vector<uint64_t>(rows * columns, 0)};
  for (int64_t i = 0; i < rows; ++i)
    if (i + k >= 0 && i + k < columns)
      eye.words[i * columns + i + k] = 1;
  return n.cast(n.constant(nn::writeElements(eye)), element);
}

/// NonZero of a constant: its size is known.
static Value constantNonZero(Node &n, DenseElementsAttr attr) {
  auto elements = nn::readElements(attr);
  if (!elements)
    return n.fail("not supported yet: this constant");
  ArrayRef<int64_t> shape = elements->type.getShape();
  SmallVector<int64_t> strides = nn::rowMajor(shape), dims(shape);
  if (shape.empty()) { // a scalar counts as one dimension
    strides = {1};
    dims = {1};
  }
  auto floating = dyn_cast<FloatType>(elements->type.getElementType());
  std::vector<int64_t> hits;
  for (int64_t i = 0; i < elements->type.getNumElements(); ++i) {
    uint64_t word = elements->word(i);
    if (floating ? nn::floatOfWord(word, floating) != 0 : word != 0)
      hits.push_back(i);
  }
  std::vector<int64_t> indices;
  for (auto [stride, dim] : llvm::zip_equal(strides, dims))
    for (int64_t hit : hits)
      indices.push_back(hit / stride % dim);
  auto type = RankedTensorType::get(
      {static_cast<int64_t>(dims.size()), static_cast<int64_t>(hits.size())},
      n.builder.getI64Type());
  return n.constant(DenseElementsAttr::get(type, ArrayRef(indices)));
}

static Value importNonZero(Node &n) {
  DenseElementsAttr attr;
  if (n.input(0) && matchPattern(n.input(0), m_Constant(&attr)))
    return constantNonZero(n, attr);
  return n.make<nn::NonZeroOp>(n.input(0));
}

void mgq::onnx::registerShape(Registry &r) {
  r["ConstantOfShape"] = importConstantOfShape;
  r["Expand"] = importExpand;
  r["EyeLike"] = importEyeLike;
  r["Flatten"] = importFlatten;
  r["NonZero"] = importNonZero;
  r["Range"] = importRange;
  r["Reshape"] = importReshape;
  r["Shape"] = importShape;
  r["Size"] = importSize;
  r["Squeeze"] = importSqueeze;
  r["Unsqueeze"] = importUnsqueeze;
}
