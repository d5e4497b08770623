//===- NNFoldMath.cpp - Constant folding of arithmetic --------------------===//
//
// Floats are computed in double and rounded to their type: for + - * / and
// sqrt of f32 and narrower that is the correctly rounded result.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/NN.h"
#include "dialects/NN/NNElements.h"

#include "mlir/IR/Matchers.h"
#include <cmath>

using namespace mlir;
using namespace mgq::nn;

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

/// Reads operands for an elementwise op; false if one is not constant or the
/// result is too large.
static bool readAll(ArrayRef<Attribute> attrs, RankedTensorType result,
                    SmallVectorImpl<Elements> &operands) {
  bool splat = true;
  for (Attribute attr : attrs) {
    auto elements = attr ? readElements(attr) : std::nullopt;
    if (!elements)
      return false;
    splat &= elements->splat;
    operands.push_back(std::move(*elements));
  }
  return result.hasStaticShape() && result.getNumElements() > 0 &&
         (splat || isFoldableSize(result));
}

/// Applies `compute(words)` to each element of the broadcast operands;
/// `compute` gives nothing where the op has no defined result.
template <typename Compute>
static OpFoldResult foldElementwise(ArrayRef<Attribute> attrs,
                                    RankedTensorType result, Compute compute) {
  SmallVector<Elements> operands;
  if (!readAll(attrs, result, operands))
    return {};
  bool splat =
      llvm::all_of(operands, [](const Elements &e) { return e.splat; });
  Elements output{result, splat, {}};
  int64_t count = splat ? 1 : result.getNumElements();
  output.words.resize(count);
  // Offsets of each operand's elements in the result's order.
  SmallVector<std::vector<int64_t>> offsets(operands.size());
  for (auto [operand, list] : llvm::zip_equal(operands, offsets))
    if (!operand.splat && operand.type.getShape() != result.getShape()) {
      list.reserve(count);
      forEachOffset(
          result.getShape(),
          broadcastStrides(operand.type.getShape(), result.getShape()), 0,
          [&, &list = list](int64_t offset) { list.push_back(offset); });
    }
  SmallVector<uint64_t> words(operands.size());
  for (int64_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < operands.size(); ++j)
      words[j] = operands[j].word(offsets[j].empty() ? i : offsets[j][i]);
    std::optional<uint64_t> word = compute(words);
    if (!word)
      return {};
    output.words[i] = *word;
  }
  return writeElements(output);
}

//===----------------------------------------------------------------------===//
// unary
//===----------------------------------------------------------------------===//

static double roundHalfToEven(double x) { return x - std::remainder(x, 1.0); }

static std::optional<double> unaryFloat(UnaryKind kind, double x) {
  switch (kind) {
  case UnaryKind::Abs:
    return std::fabs(x);
  case UnaryKind::Neg:
    return -x;
  case UnaryKind::Sign:
    return x > 0 ? 1.0 : x < 0 ? -1.0 : x;
  case UnaryKind::Ceil:
    return std::ceil(x);
  case UnaryKind::Floor:
    return std::floor(x);
  case UnaryKind::Round:
    return std::isfinite(x) ? std::copysign(roundHalfToEven(x), x) : x;
  case UnaryKind::Sqrt:
    return std::sqrt(x);
  case UnaryKind::Reciprocal:
    return 1.0 / x;
  case UnaryKind::Exp:
    return std::exp(x);
  case UnaryKind::Log:
    return std::log(x);
  case UnaryKind::Sin:
    return std::sin(x);
  case UnaryKind::Cos:
    return std::cos(x);
  case UnaryKind::Relu:
    return x < 0 ? 0.0 : x;
  default:
    return std::nullopt; // rare on constants: left to the kernels
  }
}

static std::optional<uint64_t> unaryInteger(UnaryKind kind, int64_t x,
                                            IntegerType type) {
  switch (kind) {
  case UnaryKind::Abs:
    return wrapWord(x < 0 && !type.isUnsigned() ? 0 - uint64_t(x) : x, type);
  case UnaryKind::Neg:
    return wrapWord(0 - uint64_t(x), type);
  case UnaryKind::Sign:
    return type.isUnsigned() ? x != 0 : (x > 0) - (x < 0);
  case UnaryKind::Not:
    return type.getWidth() == 1 ? uint64_t(x == 0) : wrapWord(~x, type);
  case UnaryKind::Relu:
    return type.isUnsigned() || x > 0 ? x : 0;
  default:
    return std::nullopt;
  }
}

OpFoldResult UnaryOp::fold(FoldAdaptor adaptor) {
  UnaryKind kind = getKind();
  Type element = typeOf(getInput()).getElementType();
  return foldElementwise(
      adaptor.getInput(), getType(),
      [&](ArrayRef<uint64_t> words) -> std::optional<uint64_t> {
        auto floating = dyn_cast<FloatType>(element);
        if (!floating)
          return unaryInteger(kind, words[0], cast<IntegerType>(element));
        double x = floatOfWord(words[0], floating);
        if (kind == UnaryKind::IsNan)
          return std::isnan(x);
        if (kind == UnaryKind::IsInf)
          return std::isinf(x);
        auto y = unaryFloat(kind, x);
        return y ? std::optional(wordOfFloat(*y, floating)) : std::nullopt;
      });
}

//===----------------------------------------------------------------------===//
// binary
//===----------------------------------------------------------------------===//

static std::optional<double> binaryFloat(BinaryKind kind, double x, double y) {
  switch (kind) {
  case BinaryKind::Add:
    return x + y;
  case BinaryKind::Sub:
    return x - y;
  case BinaryKind::Mul:
    return x * y;
  case BinaryKind::Div:
    return x / y;
  case BinaryKind::Pow:
    return std::pow(x, y);
  case BinaryKind::Max:
    return std::isnan(x) || std::isnan(y) ? std::nan("") : std::max(x, y);
  case BinaryKind::Min:
    return std::isnan(x) || std::isnan(y) ? std::nan("") : std::min(x, y);
  case BinaryKind::Mod: {
    double r = std::fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
  }
  case BinaryKind::Rem:
    return std::fmod(x, y);
  default:
    return std::nullopt;
  }
}

/// Power by squaring, modulo 2^64; a negative exponent truncates toward zero.
static std::optional<uint64_t> powInteger(int64_t x, int64_t y) {
  if (y < 0) {
    if (x == 0)
      return std::nullopt;
    return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
  }
  uint64_t result = 1, base = x;
  for (; y > 0; y >>= 1, base *= base)
    if (y & 1)
      result *= base;
  return result;
}

static std::optional<uint64_t> divideInteger(BinaryKind kind, int64_t x,
                                             int64_t y, bool isUnsigned) {
  if (y == 0 ||
      (!isUnsigned && y == -1 && x == std::numeric_limits<int64_t>::min()))
    return std::nullopt;
  if (isUnsigned)
    return kind == BinaryKind::Div ? uint64_t(x) / uint64_t(y)
                                   : uint64_t(x) % uint64_t(y);
  if (kind == BinaryKind::Div)
    return x / y;
  int64_t r = x % y;
  return kind == BinaryKind::Mod && r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static std::optional<uint64_t> binaryInteger(BinaryKind kind, uint64_t x,
                                             uint64_t y, IntegerType type) {
  bool isUnsigned = type.isUnsigned() || type.getWidth() == 1;
  bool less = isUnsigned ? x < y : int64_t(x) < int64_t(y);
  switch (kind) {
  case BinaryKind::Add:
    return x + y;
  case BinaryKind::Sub:
    return x - y;
  case BinaryKind::Mul:
    return x * y;
  case BinaryKind::Div:
  case BinaryKind::Mod:
  case BinaryKind::Rem:
    return divideInteger(kind, x, y, isUnsigned);
  case BinaryKind::Pow:
    return powInteger(x, y);
  case BinaryKind::Max:
    return less ? y : x;
  case BinaryKind::Min:
    return less ? x : y;
  case BinaryKind::And:
    return x & y;
  case BinaryKind::Or:
    return x | y;
  case BinaryKind::Xor:
    return x ^ y;
  case BinaryKind::Shl:
    return y >= type.getWidth() ? 0 : x << y;
  case BinaryKind::Shr:
    if (y >= type.getWidth())
      return isUnsigned || int64_t(x) >= 0 ? 0 : ~uint64_t(0);
    return isUnsigned ? x >> y : uint64_t(int64_t(x) >> y);
  }
  return std::nullopt;
}

/// Whether `attr` is one repeated value and which.
static std::optional<double> splatFloat(Attribute attr) {
  auto dense = dyn_cast_or_null<DenseFPElementsAttr>(attr);
  if (!dense || !dense.isSplat())
    return std::nullopt;
  return floatOfWord(readElements(dense)->words[0],
                     cast<FloatType>(dense.getElementType()));
}
static std::optional<int64_t> splatInteger(Attribute attr) {
  auto dense = dyn_cast_or_null<DenseIntElementsAttr>(attr);
  if (!dense || !dense.isSplat())
    return std::nullopt;
  return static_cast<int64_t>(readElements(dense)->words[0]);
}

/// Whether `kind` with this second operand gives back the first, bit by bit.
/// x + 0.0 does not: it turns -0.0 into 0.0.
static bool isNeutral(BinaryKind kind, Attribute rhs, bool isBoolean) {
  if (auto value = splatFloat(rhs)) {
    bool zero = *value == 0.0, negative = std::signbit(*value);
    return (*value == 1.0 &&
            (kind == BinaryKind::Mul || kind == BinaryKind::Div)) ||
           (zero && negative && kind == BinaryKind::Add) ||
           (zero && !negative && kind == BinaryKind::Sub);
  }
  auto value = splatInteger(rhs);
  if (!value)
    return false;
  switch (kind) {
  case BinaryKind::Mul:
  case BinaryKind::Div:
    return *value == 1;
  case BinaryKind::Add:
  case BinaryKind::Sub:
  case BinaryKind::Or:
  case BinaryKind::Xor:
  case BinaryKind::Shl:
  case BinaryKind::Shr:
    return *value == 0;
  case BinaryKind::And:
    return *value == (isBoolean ? 1 : -1);
  default:
    return false;
  }
}

OpFoldResult BinaryOp::fold(FoldAdaptor adaptor) {
  BinaryKind kind = getKind();
  Type element = getType().getElementType();
  bool boolean = element.isInteger(1);
  if (getLhs().getType() == getType() &&
      isNeutral(kind, adaptor.getRhs(), boolean))
    return getLhs();
  bool commutes = kind == BinaryKind::Add || kind == BinaryKind::Mul ||
                  kind == BinaryKind::And || kind == BinaryKind::Or ||
                  kind == BinaryKind::Xor;
  if (commutes && getRhs().getType() == getType() &&
      isNeutral(kind, adaptor.getLhs(), boolean))
    return getRhs();
  Type exponent = typeOf(getRhs()).getElementType();
  if (element != exponent && !isa<FloatType>(element))
    return {};
  return foldElementwise(
      {adaptor.getLhs(), adaptor.getRhs()}, getType(),
      [&](ArrayRef<uint64_t> words) -> std::optional<uint64_t> {
        auto floating = dyn_cast<FloatType>(element);
        if (!floating) {
          auto type = cast<IntegerType>(element);
          auto word = binaryInteger(kind, words[0], words[1], type);
          return word ? std::optional(wrapWord(*word, type)) : std::nullopt;
        }
        auto rhsType = dyn_cast<FloatType>(exponent);
        double rhs = rhsType ? floatOfWord(words[1], rhsType)
                             : static_cast<double>(int64_t(words[1]));
        auto y = binaryFloat(kind, floatOfWord(words[0], floating), rhs);
        return y ? std::optional(wordOfFloat(*y, floating)) : std::nullopt;
      });
}

//===----------------------------------------------------------------------===//
// compare, select, cast
//===----------------------------------------------------------------------===//

template <typename T>
static bool compare(ComparePredicate predicate, T x, T y) {
  switch (predicate) {
  case ComparePredicate::Eq:
    return x == y;
  case ComparePredicate::Ne:
    return x != y;
  case ComparePredicate::Lt:
    return x < y;
  case ComparePredicate::Le:
    return x <= y;
  case ComparePredicate::Gt:
    return x > y;
  case ComparePredicate::Ge:
    return x >= y;
  }
  llvm_unreachable("unknown predicate");
}

OpFoldResult CompareOp::fold(FoldAdaptor adaptor) {
  Type element = typeOf(getLhs()).getElementType();
  ComparePredicate predicate = getPredicate();
  return foldElementwise(
      {adaptor.getLhs(), adaptor.getRhs()},
      cast<RankedTensorType>(getResult().getType()),
      [&](ArrayRef<uint64_t> words) -> std::optional<uint64_t> {
        if (auto type = dyn_cast<FloatType>(element))
          return compare(predicate, floatOfWord(words[0], type),
                         floatOfWord(words[1], type));
        if (cast<IntegerType>(element).isUnsigned())
          return compare(predicate, words[0], words[1]);
        return compare(predicate, int64_t(words[0]), int64_t(words[1]));
      });
}

OpFoldResult SelectOp::fold(FoldAdaptor adaptor) {
  if (auto condition = splatInteger(adaptor.getCondition())) {
    Value chosen = *condition ? getOnTrue() : getOnFalse();
    if (chosen.getType() == getType())
      return chosen;
  }
  return foldElementwise(
      {adaptor.getCondition(), adaptor.getOnTrue(), adaptor.getOnFalse()},
      getType(), [](ArrayRef<uint64_t> words) -> std::optional<uint64_t> {
        return words[0] ? words[1] : words[2];
      });
}

OpFoldResult DropoutOp::fold(FoldAdaptor adaptor) {
  auto key = readElements(adaptor.getKey());
  bool isOff = key && int64_t(key->words.back()) == -1;
  return isOff ? getInput() : OpFoldResult();
}

/// Converts one element; nothing where the result is not defined.
static std::optional<uint64_t> castWord(uint64_t word, Type from, Type to) {
  auto toFloat = dyn_cast<FloatType>(to);
  auto toInteger = dyn_cast<IntegerType>(to);
  if (auto fromFloat = dyn_cast<FloatType>(from)) {
    double value = floatOfWord(word, fromFloat);
    if (toFloat)
      return wordOfFloat(value, toFloat);
    if (toInteger.getWidth() == 1)
      return value != 0;
    if (!(std::fabs(value) < 9.2e18))
      return std::nullopt;
    return wrapWord(static_cast<int64_t>(value), toInteger);
  }
  auto fromInteger = cast<IntegerType>(from);
  if (toInteger)
    return toInteger.getWidth() == 1 ? uint64_t(word != 0)
                                     : wrapWord(word, toInteger);
  bool isUnsigned = fromInteger.isUnsigned() || fromInteger.getWidth() == 1;
  // f32 from a large integer must round once, not twice by way of double.
  if (toFloat.isF32()) {
    float value = isUnsigned ? float(word) : float(int64_t(word));
    return wordOfFloat(value, toFloat);
  }
  return wordOfFloat(isUnsigned ? double(word) : double(int64_t(word)),
                     toFloat);
}

OpFoldResult CastOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType())
    return getInput();
  Type from = typeOf(getInput()).getElementType(),
       to = getType().getElementType();
  return foldElementwise(
      adaptor.getInput(), getType(),
      [&](ArrayRef<uint64_t> words) { return castWord(words[0], from, to); });
}

//===----------------------------------------------------------------------===//
// reduce, cumsum
//===----------------------------------------------------------------------===//

static std::optional<BinaryKind> combinerOf(ReduceKind kind) {
  switch (kind) {
  case ReduceKind::Sum:
    return BinaryKind::Add;
  case ReduceKind::Prod:
    return BinaryKind::Mul;
  case ReduceKind::Max:
    return BinaryKind::Max;
  case ReduceKind::Min:
    return BinaryKind::Min;
  }
  return std::nullopt;
}

/// Integers only: a sum of floats has an order that kernels decide.
OpFoldResult ReduceOp::fold(FoldAdaptor adaptor) {
  if (getAxes().empty() && getInput().getType() == getType())
    return getInput();
  auto type = dyn_cast<IntegerType>(getType().getElementType());
  auto kind = combinerOf(getKind());
  auto input =
      adaptor.getInput() ? readElements(adaptor.getInput()) : std::nullopt;
  if (!type || !kind || !input || !isFoldableSize(typeOf(getInput())) ||
      input->type.getNumElements() == 0)
    return {};
  ArrayRef<int64_t> shape = input->type.getShape();
  SmallVector<int64_t> kept(shape);
  for (int64_t axis : getAxes())
    kept[axis] = 1;
  SmallVector<int64_t> strides = broadcastStrides(kept, shape);
  Elements output{getType(), false, {}};
  output.words.resize(getType().getNumElements());
  std::vector<bool> started(output.words.size(), false);
  int64_t index = 0;
  forEachOffset(shape, strides, 0, [&](int64_t to) {
    uint64_t word = input->word(index++);
    if (started[to])
      word =
          wrapWord(*binaryInteger(*kind, output.words[to], word, type), type);
    output.words[to] = word;
    started[to] = true;
  });
  return writeElements(output);
}

OpFoldResult CumsumOp::fold(FoldAdaptor adaptor) {
  auto type = dyn_cast<IntegerType>(getType().getElementType());
  auto input =
      adaptor.getInput() ? readElements(adaptor.getInput()) : std::nullopt;
  if (!type || !input || !isFoldableSize(getType()))
    return {};
  ArrayRef<int64_t> shape = getType().getShape();
  int64_t size = shape[getAxis()], stride = rowMajor(shape)[getAxis()];
  int64_t count = getType().getNumElements();
  Elements output{getType(), false, {}};
  output.words.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = i / stride % size;
    if (at != 0) // the first position of a line starts its sum
      continue;
    uint64_t sum = 0;
    for (int64_t k = 0; k < size; ++k) {
      int64_t j = i + (getReverse() ? size - 1 - k : k) * stride;
      uint64_t next = wrapWord(sum + input->word(j), type);
      output.words[j] = getExclusive() ? sum : next;
      sum = next;
    }
  }
  return writeElements(output);
}
