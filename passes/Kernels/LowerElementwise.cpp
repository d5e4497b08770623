//===- LowerElementwise.cpp - Elementwise nn ops to linalg ----------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using nn::BinaryKind;
using nn::UnaryKind;
using P = nn::ComparePredicate;

template <typename OpTy>
static Value build(ScalarBuilder &s, Value x) {
  return OpTy::create(s.builder, s.loc, x);
}

static Value sigmoid(ScalarBuilder &s, Value x) {
  Value one = s.constant(x.getType(), 1);
  return s.div(one, s.add(one, s.exp(s.neg(x))));
}

/// x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2.
static Value gelu(ScalarBuilder &s, Value x) {
  Type type = x.getType();
  Value erf =
      build<math::ErfOp>(s, s.mul(x, s.constant(type, 0.70710678118654752440)));
  Value half = s.mul(x, s.constant(type, 0.5));
  return s.mul(half, s.add(s.constant(type, 1), erf));
}

Value kernels::geluTanh(ScalarBuilder &s, Value x) {
  Type type = x.getType();
  Value cube = s.mul(s.mul(x, x), x);
  Value inner = s.mul(s.constant(type, 0.79788456080286535588),
                      s.add(x, s.mul(s.constant(type, 0.044715), cube)));
  Value half = s.mul(x, s.constant(type, 0.5));
  return s.mul(half, s.add(s.constant(type, 1), s.tanh(inner)));
}

/// log(1 + exp(x)) without overflow.
static Value softplus(ScalarBuilder &s, Value x) {
  Value zero = s.constant(x.getType(), 0);
  Value tail = build<math::Log1pOp>(s, s.exp(s.neg(build<math::AbsFOp>(s, x))));
  return s.add(s.max(x, zero), tail);
}

static Value signOf(ScalarBuilder &s, Value x, bool isUnsigned) {
  Type type = x.getType();
  Value zero = s.constant(type, 0), one = s.constant(type, 1);
  Value result = s.select(s.compare(P::Gt, x, zero, isUnsigned), one, zero);
  if (isUnsigned)
    return result;
  result = s.select(s.compare(P::Lt, x, zero), s.constant(type, -1), result);
  // NaN stays.
  return isa<FloatType>(type) ? s.select(s.isNan(x), x, result) : result;
}

static Value isInf(ScalarBuilder &s, Value x) {
  Value infinity = arith::ConstantOp::create(
      s.builder, s.loc,
      FloatAttr::get(
          x.getType(),
          APFloat::getInf(cast<FloatType>(x.getType()).getFloatSemantics())));
  return s.compare(P::Eq, build<math::AbsFOp>(s, x), infinity);
}

static Value bitNot(ScalarBuilder &s, Value x) {
  return arith::XOrIOp::create(s.builder, s.loc, x,
                               s.constant(x.getType(), -1));
}

/// Kinds that take integers.
static Value integerUnary(ScalarBuilder &s, UnaryKind kind, Value x,
                          bool isUnsigned) {
  switch (kind) {
  case UnaryKind::Abs:
    return isUnsigned ? x : build<math::AbsIOp>(s, x);
  case UnaryKind::Neg:
    return s.neg(x);
  case UnaryKind::Sign:
    return signOf(s, x, isUnsigned);
  case UnaryKind::Relu:
    return isUnsigned ? x : s.max(x, s.constant(x.getType(), 0));
  case UnaryKind::Not:
    return bitNot(s, x);
  case UnaryKind::Ceil:
  case UnaryKind::Floor:
  case UnaryKind::Round:
    return x;
  default:
    return Value();
  }
}

static Value floatUnary(ScalarBuilder &s, UnaryKind kind, Value x) {
  Type type = x.getType();
  switch (kind) {
  case UnaryKind::Abs:
    return build<math::AbsFOp>(s, x);
  case UnaryKind::Neg:
    return s.neg(x);
  case UnaryKind::Sign:
    return signOf(s, x, false);
  case UnaryKind::Ceil:
    return build<math::CeilOp>(s, x);
  case UnaryKind::Floor:
    return build<math::FloorOp>(s, x);
  case UnaryKind::Round:
    return build<math::RoundEvenOp>(s, x);
  case UnaryKind::Sqrt:
    return s.sqrt(x);
  case UnaryKind::Rsqrt:
    return s.div(s.constant(type, 1), s.sqrt(x));
  case UnaryKind::Reciprocal:
    return s.div(s.constant(type, 1), x);
  case UnaryKind::Exp:
    return s.exp(x);
  case UnaryKind::Log:
    return s.log(x);
  case UnaryKind::Sin:
    return build<math::SinOp>(s, x);
  case UnaryKind::Cos:
    return build<math::CosOp>(s, x);
  case UnaryKind::Tan:
    return build<math::TanOp>(s, x);
  case UnaryKind::Asin:
    return build<math::AsinOp>(s, x);
  case UnaryKind::Acos:
    return build<math::AcosOp>(s, x);
  case UnaryKind::Atan:
    return build<math::AtanOp>(s, x);
  case UnaryKind::Sinh:
    return build<math::SinhOp>(s, x);
  case UnaryKind::Cosh:
    return build<math::CoshOp>(s, x);
  case UnaryKind::Asinh:
    return build<math::AsinhOp>(s, x);
  case UnaryKind::Acosh:
    return build<math::AcoshOp>(s, x);
  case UnaryKind::Atanh:
    return build<math::AtanhOp>(s, x);
  case UnaryKind::Tanh:
    return s.tanh(x);
  case UnaryKind::Erf:
    return build<math::ErfOp>(s, x);
  case UnaryKind::Sigmoid:
    return sigmoid(s, x);
  case UnaryKind::Relu:
    return s.max(x, s.constant(type, 0));
  case UnaryKind::Gelu:
    return gelu(s, x);
  case UnaryKind::GeluTanh:
    return geluTanh(s, x);
  case UnaryKind::Silu:
    return s.mul(x, sigmoid(s, x));
  case UnaryKind::Softplus:
    return softplus(s, x);
  case UnaryKind::IsNan:
    return s.isNan(x);
  case UnaryKind::IsInf:
    return isInf(s, x);
  case UnaryKind::Not:
    return Value();
  }
  return Value();
}

LogicalResult kernels::lower(Lowering &l, nn::UnaryOp op) {
  Value input = l.get(op.getInput());
  bool isUnsigned = kernels::isUnsigned(op.getInput().getType());
  bool isFloat = isa<FloatType>(elementOf(input));
  bool fits = isFloat ? op.getKind() != UnaryKind::Not
                      : op.getKind() <= UnaryKind::Round ||
                            op.getKind() == UnaryKind::Relu ||
                            op.getKind() == UnaryKind::Not;
  if (!fits)
    return op.emitOpError("of elements of type ")
           << elementOf(input) << " is not supported";
  l.set(op, l.elementwise(shapeOf(op.getResult()), elementOf(op.getResult()),
                          input, [&](ScalarBuilder &s, ValueRange in) {
                            return isFloat ? floatUnary(s, op.getKind(), in[0])
                                           : integerUnary(s, op.getKind(),
                                                          in[0], isUnsigned);
                          }));
  return success();
}

//===----------------------------------------------------------------------===//
// Binary
//===----------------------------------------------------------------------===//

/// The value all elements of a constant have.
static std::optional<double> splatOf(Value value) {
  DenseElementsAttr attr;
  if (!matchPattern(value, m_Constant(&attr)) || !attr.isSplat())
    return std::nullopt;
  if (isa<FloatType>(attr.getElementType())) {
    APFloat number = attr.getSplatValue<APFloat>();
    bool lost;
    number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &lost);
    return number.convertToDouble();
  }
  return double(attr.getSplatValue<APInt>().getSExtValue());
}

/// Powers with an exponent of few multiplications.
static Value constantPower(ScalarBuilder &s, Value x, double exponent) {
  Value one = s.constant(x.getType(), 1);
  if (exponent == 1)
    return x;
  if (exponent == 2)
    return s.mul(x, x);
  if (exponent == 3)
    return s.mul(s.mul(x, x), x);
  if (exponent == 0.5)
    return s.sqrt(x);
  if (exponent == -0.5)
    return s.div(one, s.sqrt(x));
  if (exponent == -1)
    return s.div(one, x);
  return Value();
}

static Value power(ScalarBuilder &s, Value x, Value y, bool unsignedX,
                   bool unsignedY) {
  Type type = x.getType();
  // Integers go through f64, exact below 2^53.
  Type wide = isa<FloatType>(type) ? type : Type(s.builder.getF64Type());
  Value base = s.cast(x, wide, unsignedX, false);
  Value exponent = s.cast(y, wide, unsignedY, false);
  Value result = math::PowFOp::create(s.builder, s.loc, base, exponent);
  return s.cast(result, type, false, unsignedX);
}

/// Remainder with the divisor's sign.
static Value modulo(ScalarBuilder &s, Value x, Value y, bool isUnsigned) {
  Value rem = s.rem(x, y, isUnsigned);
  if (isUnsigned)
    return rem;
  Value zero = s.constant(x.getType(), 0);
  Value differ = arith::XOrIOp::create(
      s.builder, s.loc, s.compare(P::Lt, rem, zero), s.compare(P::Lt, y, zero));
  Value fix = s.land(s.compare(P::Ne, rem, zero), differ);
  return s.select(fix, s.add(rem, y), rem);
}

/// Shifts by the width or more, or by a negative number, move every bit out: a
/// signed number shifted right keeps its sign, others give zero.
static Value shift(ScalarBuilder &s, Value x, Value y, bool left,
                   bool isUnsigned) {
  Type type = x.getType();
  Value last = s.constant(type, type.getIntOrFloatBitWidth() - 1);
  Value inside = s.compare(P::Le, y, last, true);
  if (!left && !isUnsigned)
    return arith::ShRSIOp::create(s.builder, s.loc, x,
                                  s.select(inside, y, last));
  Value zero = s.constant(type, 0);
  Value by = s.select(inside, y, zero);
  Value result = left ? Value(arith::ShLIOp::create(s.builder, s.loc, x, by))
                      : Value(arith::ShRUIOp::create(s.builder, s.loc, x, by));
  return s.select(inside, result, zero);
}

static Value binary(ScalarBuilder &s, BinaryKind kind, Value x, Value y,
                    bool isUnsigned) {
  switch (kind) {
  case BinaryKind::Add:
    return s.add(x, y);
  case BinaryKind::Sub:
    return s.sub(x, y);
  case BinaryKind::Mul:
    return s.mul(x, y);
  case BinaryKind::Div:
    return s.div(x, y, isUnsigned);
  case BinaryKind::Max:
    return s.max(x, y, isUnsigned);
  case BinaryKind::Min:
    return s.min(x, y, isUnsigned);
  case BinaryKind::Mod:
    return modulo(s, x, y, isUnsigned);
  case BinaryKind::Rem:
    return s.rem(x, y, isUnsigned);
  case BinaryKind::And:
    return s.land(x, y);
  case BinaryKind::Or:
    return s.lor(x, y);
  case BinaryKind::Xor:
    return arith::XOrIOp::create(s.builder, s.loc, x, y);
  case BinaryKind::Shl:
    return shift(s, x, y, true, isUnsigned);
  case BinaryKind::Shr:
    return shift(s, x, y, false, isUnsigned);
  case BinaryKind::Pow:
    return Value(); // below
  }
  return Value();
}

LogicalResult kernels::lower(Lowering &l, nn::BinaryOp op) {
  Value lhs = l.get(op.getLhs()), rhs = l.get(op.getRhs());
  bool unsignedX = isUnsigned(op.getLhs().getType());
  bool unsignedY = isUnsigned(op.getRhs().getType());
  bool isBits = op.getKind() >= BinaryKind::And;
  if (isBits && isa<FloatType>(elementOf(lhs)))
    return op.emitOpError("of elements of type ")
           << elementOf(lhs) << " is not supported";
  auto shape = shapeOf(op.getResult());
  Type element = elementOf(op.getResult());
  std::optional<double> exponent;
  if (op.getKind() == BinaryKind::Pow && isa<FloatType>(element))
    exponent = splatOf(op.getRhs());
  auto body = [&](ScalarBuilder &s, ValueRange in) {
    if (exponent)
      if (Value result = constantPower(s, in[0], *exponent))
        return result;
    if (op.getKind() == BinaryKind::Pow)
      return power(s, in[0], in[1], unsignedX, unsignedY);
    return binary(s, op.getKind(), in[0], in[1], unsignedX);
  };
  l.set(op, l.elementwise(shape, element, {lhs, rhs}, body));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::CompareOp op) {
  bool isUnsigned = kernels::isUnsigned(op.getLhs().getType());
  l.set(op, l.elementwise(shapeOf(op.getResult()), elementOf(op.getResult()),
                          {l.get(op.getLhs()), l.get(op.getRhs())},
                          [&](ScalarBuilder &s, ValueRange in) {
                            return s.compare(op.getPredicate(), in[0], in[1],
                                             isUnsigned);
                          }));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::SelectOp op) {
  l.set(op, l.elementwise(shapeOf(op.getResult()), elementOf(op.getResult()),
                          {l.get(op.getCondition()), l.get(op.getOnTrue()),
                           l.get(op.getOnFalse())},
                          [](ScalarBuilder &s, ValueRange in) {
                            return s.select(in[0], in[1], in[2]);
                          }));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::CastOp op) {
  bool fromUnsigned = isUnsigned(op.getInput().getType());
  bool toUnsigned = isUnsigned(op.getResult().getType());
  Type to = signless(elementOf(op.getResult()));
  l.set(op, l.elementwise(shapeOf(op.getResult()), to, l.get(op.getInput()),
                          [&](ScalarBuilder &s, ValueRange in) {
                            return s.cast(in[0], to, fromUnsigned, toUnsigned);
                          }));
  return success();
}
