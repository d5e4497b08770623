//===- NNGradients.cpp - Gradients of elementwise ops ---------------------===//
//
// Vector-Jacobian products, one buildGradient per op, in the order of
// NNOps.td. Below, g is the gradient of the result y; x, or a and b, are the
// operands. Gradients of products are in NNGradientsProducts.cpp, of data
// movement in NNGradientsShape.cpp, of reductions and normalisation in
// NNGradientsReduce.cpp, of attention and the loss in NNGradientsAttention.cpp.
// Where a function has no derivative, the choice is PyTorch's.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/NNBuild.h"

#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mgq::nn;

using Needed = llvm::BitVector;
using Gradients = MutableArrayRef<Value>;

//===----------------------------------------------------------------------===//
// unary
//===----------------------------------------------------------------------===//

/// d/dx of x Phi(x): Phi(x) + x phi(x).
static Value geluDerivative(Build &b, Value x) {
  Value erf = b.unary(UnaryKind::Erf, b.mul(x, M_SQRT1_2));
  Value cdf = b.mul(b.add(erf, 1.0), 0.5);
  Value exp = b.unary(UnaryKind::Exp, b.mul(b.mul(x, x), -0.5));
  constexpr double kInvSqrt2Pi = 0.3989422804014327;
  return b.add(cdf, b.mul(b.mul(x, exp), kInvSqrt2Pi));
}

/// d/dx of 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3).
static Value geluTanhDerivative(Build &b, Value x) {
  constexpr double kSqrt2OverPi = 0.7978845608028654;
  Value square = b.mul(x, x);
  Value inner = b.mul(x, b.add(b.mul(square, 0.044715), 1.0));
  Value t = b.unary(UnaryKind::Tanh, b.mul(inner, kSqrt2OverPi));
  Value slope =
      b.mul(b.add(b.mul(square, 3 * 0.044715), 1.0), kSqrt2OverPi * 0.5);
  Value tail = b.mul(b.mul(x, b.from(1.0, b.mul(t, t))), slope);
  return b.add(b.mul(b.add(t, 1.0), 0.5), tail);
}

/// dy/dx of a kind whose derivative is a formula of x and y, else null.
static Value unaryDerivative(Build &b, UnaryKind kind, Value x, Value y) {
  constexpr double kTwoOverSqrtPi = 1.1283791670955126;
  auto unary = [&](UnaryKind f, Value v) { return b.unary(f, v); };
  switch (kind) {
  case UnaryKind::Abs:
    return unary(UnaryKind::Sign, x);
  case UnaryKind::Sqrt:
    return b.mul(unary(UnaryKind::Reciprocal, y), 0.5);
  case UnaryKind::Rsqrt:
    return b.mul(b.mul(b.mul(y, y), y), -0.5);
  case UnaryKind::Reciprocal:
    return b.neg(b.mul(y, y));
  case UnaryKind::Exp:
    return y;
  case UnaryKind::Log:
    return unary(UnaryKind::Reciprocal, x);
  case UnaryKind::Sin:
    return unary(UnaryKind::Cos, x);
  case UnaryKind::Cos:
    return b.neg(unary(UnaryKind::Sin, x));
  case UnaryKind::Tan:
    return b.add(b.mul(y, y), 1.0);
  case UnaryKind::Asin:
    return unary(UnaryKind::Rsqrt, b.from(1.0, b.mul(x, x)));
  case UnaryKind::Acos:
    return b.neg(unary(UnaryKind::Rsqrt, b.from(1.0, b.mul(x, x))));
  case UnaryKind::Atan:
    return unary(UnaryKind::Reciprocal, b.add(b.mul(x, x), 1.0));
  case UnaryKind::Sinh:
    return unary(UnaryKind::Cosh, x);
  case UnaryKind::Cosh:
    return unary(UnaryKind::Sinh, x);
  case UnaryKind::Asinh:
    return unary(UnaryKind::Rsqrt, b.add(b.mul(x, x), 1.0));
  case UnaryKind::Acosh:
    return unary(UnaryKind::Rsqrt, b.add(b.mul(x, x), -1.0));
  case UnaryKind::Atanh:
    return unary(UnaryKind::Reciprocal, b.from(1.0, b.mul(x, x)));
  case UnaryKind::Tanh:
    return b.from(1.0, b.mul(y, y));
  case UnaryKind::Erf:
    return b.mul(unary(UnaryKind::Exp, b.neg(b.mul(x, x))), kTwoOverSqrtPi);
  case UnaryKind::Sigmoid:
    return b.mul(y, b.from(1.0, y));
  case UnaryKind::Gelu:
    return geluDerivative(b, x);
  case UnaryKind::GeluTanh:
    return geluTanhDerivative(b, x);
  case UnaryKind::Silu: {
    Value s = unary(UnaryKind::Sigmoid, x);
    return b.mul(s, b.add(b.mul(x, b.from(1.0, s)), 1.0));
  }
  case UnaryKind::Softplus:
    return unary(UnaryKind::Sigmoid, x);
  default:
    return nullptr;
  }
}

LogicalResult UnaryOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                     const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  Value g = grads[0];
  if (!needed[0])
    return success();
  if (getKind() == UnaryKind::Neg)
    out[0] = b.neg(g);
  else if (getKind() == UnaryKind::Relu)
    out[0] = b.keepWhere(b.compare(ComparePredicate::Gt, getResult(), 0.0), g);
  else if (Value slope = unaryDerivative(b, getKind(), getInput(), getResult()))
    out[0] = b.mul(g, slope);
  // The rest is piecewise constant: a gradient of zero.
  return success();
}

//===----------------------------------------------------------------------===//
// binary
//===----------------------------------------------------------------------===//

/// The value of a constant whose elements are all equal.
static std::optional<double> splatValue(Value value) {
  DenseElementsAttr attr;
  if (!matchPattern(value, m_Constant(&attr)) || !attr.isSplat())
    return std::nullopt;
  if (isa<FloatType>(attr.getElementType()))
    return attr.getSplatValue<APFloat>().convertToDouble();
  if (attr.getElementType().isUnsignedInteger())
    return attr.getSplatValue<APInt>().getZExtValue();
  return attr.getSplatValue<APInt>().getSExtValue();
}

/// g n a^(n - 1); where n is 0 the result is 0, also for a = 0.
static Value powBaseGradient(Build &b, Value a, Value exponent, Value g) {
  Type element = tensorType(a).getElementType();
  if (std::optional<double> n = splatValue(exponent)) {
    if (*n == 0.0)
      return nullptr;
    if (*n == 1.0)
      return g;
    Value power = *n == 2.0 ? a : b.binary(BinaryKind::Pow, a, *n - 1.0);
    return b.mul(g, b.mul(power, *n));
  }
  Value n = b.cast(exponent, element);
  Value power = b.binary(BinaryKind::Pow, a, b.add(n, -1.0));
  Value slope = b.mul(n, power);
  return b.mul(g, b.dropWhere(b.compare(ComparePredicate::Eq, n, 0.0), slope));
}

/// g y log(a); 0 where a is 0 and the exponent is not negative.
static Value powExponentGradient(Build &b, Value a, Value n, Value y, Value g) {
  Value flat =
      b.binary(BinaryKind::And, b.compare(ComparePredicate::Eq, a, 0.0),
               b.compare(ComparePredicate::Ge, n, 0.0));
  return b.mul(g, b.dropWhere(flat, b.mul(y, b.unary(UnaryKind::Log, a))));
}

/// a / b rounded down (mod) or toward zero (rem).
static Value wholeQuotient(Build &b, BinaryKind kind, Value lhs, Value rhs) {
  Value q = b.div(lhs, rhs);
  if (kind == BinaryKind::Mod)
    return b.unary(UnaryKind::Floor, q);
  return b.mul(b.unary(UnaryKind::Sign, q),
               b.unary(UnaryKind::Floor, b.unary(UnaryKind::Abs, q)));
}

/// Part of g that max or min passes to `own`: half of it where both are equal.
static Value extremumGradient(Build &b, BinaryKind kind, Value own, Value other,
                              Value g) {
  auto wins =
      kind == BinaryKind::Max ? ComparePredicate::Gt : ComparePredicate::Lt;
  Value equal = b.compare(ComparePredicate::Eq, own, other);
  Value strict = b.keepWhere(b.compare(wins, own, other), g);
  return b.select(equal, b.mul(g, 0.5), strict);
}

/// Gradient of the left operand, not yet summed to its shape.
static Value lhsGradient(Build &b, BinaryOp op, Value g) {
  Value lhs = op.getLhs(), rhs = op.getRhs();
  switch (op.getKind()) {
  case BinaryKind::Add:
  case BinaryKind::Sub:
  case BinaryKind::Mod:
  case BinaryKind::Rem:
    return g;
  case BinaryKind::Mul:
    return b.mul(g, rhs);
  case BinaryKind::Div:
    return b.div(g, rhs);
  case BinaryKind::Pow:
    return powBaseGradient(b, lhs, rhs, g);
  case BinaryKind::Max:
  case BinaryKind::Min:
    return extremumGradient(b, op.getKind(), lhs, rhs, g);
  default:
    return nullptr;
  }
}

/// Gradient of the right operand, not yet summed to its shape.
static Value rhsGradient(Build &b, BinaryOp op, Value g) {
  Value lhs = op.getLhs(), rhs = op.getRhs();
  switch (op.getKind()) {
  case BinaryKind::Add:
    return g;
  case BinaryKind::Sub:
    return b.neg(g);
  case BinaryKind::Mul:
    return b.mul(g, lhs);
  case BinaryKind::Div:
    // The quotient is y again: common subexpressions make it one value.
    return b.neg(b.mul(b.div(g, rhs), b.div(lhs, rhs)));
  case BinaryKind::Pow:
    return b.cast(powExponentGradient(b, lhs, rhs, op.getResult(), g),
                  tensorType(rhs).getElementType());
  case BinaryKind::Max:
  case BinaryKind::Min:
    return extremumGradient(b, op.getKind(), rhs, lhs, g);
  case BinaryKind::Mod:
  case BinaryKind::Rem:
    return b.neg(b.mul(g, wholeQuotient(b, op.getKind(), lhs, rhs)));
  default:
    return nullptr;
  }
}

LogicalResult BinaryOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                      const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  if (needed[0])
    if (Value g = lhsGradient(b, *this, grads[0]))
      out[0] = b.sumTo(g, tensorType(getLhs()));
  if (needed[1] && isFloat(getRhs()))
    if (Value g = rhsGradient(b, *this, grads[0]))
      out[1] = b.sumTo(g, tensorType(getRhs()));
  return success();
}

//===----------------------------------------------------------------------===//
// select, cast, dropout
//===----------------------------------------------------------------------===//

LogicalResult SelectOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                      const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  if (needed[1])
    out[1] =
        b.sumTo(b.keepWhere(getCondition(), grads[0]), tensorType(getOnTrue()));
  if (needed[2])
    out[2] = b.sumTo(b.dropWhere(getCondition(), grads[0]),
                     tensorType(getOnFalse()));
  return success();
}

LogicalResult CastOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                    const Needed &needed, Gradients out) {
  // Integers and booleans carry no gradient.
  if (needed[0] && isFloat(getInput()) && isFloat(getResult()))
    out[0] = Build(builder, getLoc())
                 .cast(grads[0], tensorType(getInput()).getElementType());
  return success();
}

LogicalResult DropoutOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                       const Needed &needed, Gradients out) {
  // Linear in its input: what was dropped passes nothing back.
  if (needed[0])
    out[0] = DropoutOp::create(builder, getLoc(), grads[0], getKey(),
                               getRatioAttr(), getSamplesAttr());
  return success();
}
