//===- EvaluateElementwise.cpp - Elementwise ops --------------------------===//

#include "dialects/NN/Interpreter/Evaluate.h"

#include "llvm/Support/MathExtras.h"

#include <cmath>

using namespace mlir;
using namespace mgq::nn;

//===----------------------------------------------------------------------===//
// unary
//===----------------------------------------------------------------------===//

static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

static double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

static double geluTanh(double x) {
  double inner = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

static double realUnary(UnaryKind kind, double x) {
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
    return std::nearbyint(x);
  case UnaryKind::Sqrt:
    return std::sqrt(x);
  case UnaryKind::Rsqrt:
    return 1.0 / std::sqrt(x);
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
  case UnaryKind::Tan:
    return std::tan(x);
  case UnaryKind::Asin:
    return std::asin(x);
  case UnaryKind::Acos:
    return std::acos(x);
  case UnaryKind::Atan:
    return std::atan(x);
  case UnaryKind::Sinh:
    return std::sinh(x);
  case UnaryKind::Cosh:
    return std::cosh(x);
  case UnaryKind::Asinh:
    return std::asinh(x);
  case UnaryKind::Acosh:
    return std::acosh(x);
  case UnaryKind::Atanh:
    return std::atanh(x);
  case UnaryKind::Tanh:
    return std::tanh(x);
  case UnaryKind::Erf:
    return std::erf(x);
  case UnaryKind::Sigmoid:
    return sigmoid(x);
  case UnaryKind::Relu:
    return std::isnan(x) ? x : std::max(x, 0.0);
  case UnaryKind::Gelu:
    return 0.5 * x * (1.0 + std::erf(x * M_SQRT1_2));
  case UnaryKind::GeluTanh:
    return geluTanh(x);
  case UnaryKind::Silu:
    return x * sigmoid(x);
  case UnaryKind::Softplus:
    return softplus(x);
  case UnaryKind::Not:
  case UnaryKind::IsNan:
  case UnaryKind::IsInf:
    break;
  }
  llvm_unreachable("has an integer result");
}

static int64_t wholeUnary(UnaryKind kind, bool isBool, int64_t x) {
  switch (kind) {
  case UnaryKind::Abs:
    return std::abs(x);
  case UnaryKind::Neg:
    return -x;
  case UnaryKind::Sign:
    return x > 0 ? 1 : x < 0 ? -1 : 0;
  case UnaryKind::Relu:
    return std::max<int64_t>(x, 0);
  case UnaryKind::Not:
    return isBool ? !x : ~x;
  default:
    return x; // ceil, floor, round
  }
}

Tensor mgq::nn::evaluate(UnaryOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  bool isBool = x.type.getElementType().isInteger(1);
  for (auto [to, from] : llvm::zip_equal(y.data, x.data)) {
    if (op.getKind() == UnaryKind::IsNan)
      to.whole = std::isnan(from.real);
    else if (op.getKind() == UnaryKind::IsInf)
      to.whole = std::isinf(from.real);
    else if (x.isFloat())
      to.real = realUnary(op.getKind(), from.real);
    else
      to.whole = wholeUnary(op.getKind(), isBool, from.whole);
  }
  return y;
}

//===----------------------------------------------------------------------===//
// binary
//===----------------------------------------------------------------------===//

static double realBinary(BinaryKind kind, double a, double b) {
  switch (kind) {
  case BinaryKind::Add:
    return a + b;
  case BinaryKind::Sub:
    return a - b;
  case BinaryKind::Mul:
    return a * b;
  case BinaryKind::Div:
    return a / b;
  case BinaryKind::Pow:
    return std::pow(a, b);
  case BinaryKind::Max:
    return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
  case BinaryKind::Min:
    return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
  case BinaryKind::Mod: {
    double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  case BinaryKind::Rem:
    return std::fmod(a, b);
  default:
    llvm_unreachable("is for integers only");
  }
}

static int64_t wholePower(int64_t base, int64_t exponent) {
  if (exponent < 0)
    return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1;
  for (uint64_t factor = base; exponent; exponent >>= 1, factor *= factor)
    if (exponent & 1)
      result *= factor;
  return result;
}

/// Operands and result of unsigned types are below 2^63 or wrap in the result.
static int64_t wholeBinary(BinaryKind kind, Type element, int64_t a,
                           int64_t b) {
  bool isUnsigned = element.isUnsignedInteger();
  uint64_t ua = a, ub = b, width = element.getIntOrFloatBitWidth();
  switch (kind) {
  case BinaryKind::Add:
    return ua + ub;
  case BinaryKind::Sub:
    return ua - ub;
  case BinaryKind::Mul:
    return ua * ub;
  case BinaryKind::Div:
    return isUnsigned ? int64_t(ua / ub) : b == -1 ? int64_t(-ua) : a / b;
  case BinaryKind::Pow:
    return wholePower(a, b);
  case BinaryKind::Max:
    return isUnsigned ? std::max(ua, ub) : std::max(a, b);
  case BinaryKind::Min:
    return isUnsigned ? std::min(ua, ub) : std::min(a, b);
  case BinaryKind::Mod:
  case BinaryKind::Rem: {
    if (isUnsigned)
      return ua % ub;
    int64_t rest = b == -1 ? 0 : a % b;
    bool floored = kind == BinaryKind::Mod;
    return floored && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  case BinaryKind::And:
    return a & b;
  case BinaryKind::Or:
    return a | b;
  case BinaryKind::Xor:
    return a ^ b;
  case BinaryKind::Shl:
    return ub < width ? ua << ub : 0;
  case BinaryKind::Shr:
    if (!isUnsigned)
      return a >> std::min<uint64_t>(ub, width - 1);
    return ub < width ? ua >> ub : 0;
  }
  llvm_unreachable("covered");
}

Tensor mgq::nn::evaluate(BinaryOp op, const Frame &frame) {
  const Tensor &a = frame[op.getLhs()], &b = frame[op.getRhs()];
  Tensor y = likeValue(op.getResult());
  forEachIndex(y.shape(), [&](Index index) {
    Number x = a.broadcastAt(index), z = b.broadcastAt(index);
    if (a.isFloat())
      y.real(index) = realBinary(op.getKind(), x.real,
                                 b.isFloat() ? z.real : double(z.whole));
    else if (b.isFloat())
      // pow of an integer: computed in f64, truncated.
      y.at(index).whole =
          int64_t(realBinary(op.getKind(), double(x.whole), z.real));
    else
      y.at(index).whole =
          wholeBinary(op.getKind(), a.type.getElementType(), x.whole, z.whole);
  });
  return y;
}

//===----------------------------------------------------------------------===//
// compare, select, cast
//===----------------------------------------------------------------------===//

template <typename T>
static bool holds(ComparePredicate predicate, T a, T b) {
  switch (predicate) {
  case ComparePredicate::Eq:
    return a == b;
  case ComparePredicate::Ne:
    return a != b;
  case ComparePredicate::Lt:
    return a < b;
  case ComparePredicate::Le:
    return a <= b;
  case ComparePredicate::Gt:
    return a > b;
  case ComparePredicate::Ge:
    return a >= b;
  }
  llvm_unreachable("covered");
}

Tensor mgq::nn::evaluate(CompareOp op, const Frame &frame) {
  const Tensor &a = frame[op.getLhs()], &b = frame[op.getRhs()];
  Tensor y = likeValue(op.getResult());
  bool isUnsigned = a.type.getElementType().isUnsignedInteger();
  forEachIndex(y.shape(), [&](Index index) {
    Number x = a.broadcastAt(index), z = b.broadcastAt(index);
    auto predicate = op.getPredicate();
    y.at(index).whole =
        a.isFloat()  ? holds(predicate, x.real, z.real)
        : isUnsigned ? holds(predicate, uint64_t(x.whole), uint64_t(z.whole))
                     : holds(predicate, x.whole, z.whole);
  });
  return y;
}

Tensor mgq::nn::evaluate(SelectOp op, const Frame &frame) {
  const Tensor &condition = frame[op.getCondition()];
  const Tensor &a = frame[op.getOnTrue()], &b = frame[op.getOnFalse()];
  Tensor y = likeValue(op.getResult());
  forEachIndex(y.shape(), [&](Index index) {
    y.at(index) = condition.broadcastAt(index).whole ? a.broadcastAt(index)
                                                     : b.broadcastAt(index);
  });
  return y;
}

/// A real as an integer: toward zero, at the type's bounds beyond them.
static int64_t truncate(double value) {
  constexpr double kLimit = 9223372036854775808.0;
  if (std::isnan(value))
    return 0;
  if (value >= kLimit)
    return std::numeric_limits<int64_t>::max();
  if (value < -kLimit)
    return std::numeric_limits<int64_t>::min();
  return int64_t(value);
}

Tensor mgq::nn::evaluate(CastOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  bool toBool = y.type.getElementType().isInteger(1);
  bool fromUnsigned = x.type.getElementType().isUnsignedInteger();
  for (auto [to, from] : llvm::zip_equal(y.data, x.data)) {
    if (toBool)
      to.whole = from.whole != 0 || from.real != 0.0;
    else if (x.isFloat() && y.isFloat())
      to.real = from.real;
    else if (x.isFloat())
      to.whole = truncate(from.real);
    else if (y.isFloat())
      to.real =
          fromUnsigned ? double(uint64_t(from.whole)) : double(from.whole);
    else
      to.whole = from.whole;
  }
  return y;
}
