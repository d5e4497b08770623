//===- Elementwise.cpp - Elementwise operators ----------------------------===//

#include "frontends/onnx/Registry.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::BinaryKind;
using mgq::nn::ComparePredicate;
using mgq::nn::UnaryKind;

//===----------------------------------------------------------------------===//
// One nn op each
//===----------------------------------------------------------------------===//

template <UnaryKind kind>
static Value importUnary(Node &n) {
  return n.unary(kind, n.input(0));
}

/// The second operand. Before operator set 7 an attribute says at which
/// dimension of the first one it starts.
static Value secondOperand(Node &n) {
  Value a = n.input(0), b = n.input(1);
  if (n.opset >= 7 || !n.attribute("axis"))
    return b;
  auto axis = n.axis(n.getInt("axis", 0), rankOf(a));
  if (!axis || *axis + rankOf(b) > rankOf(a))
    return n.fail("has operands that do not broadcast");
  Shape shape(shapeOf(b));
  shape.append(rankOf(a) - *axis - rankOf(b), 1);
  return n.reshape(b, shape);
}

template <BinaryKind kind>
static Value importBinary(Node &n) {
  return n.binary(kind, n.input(0), secondOperand(n));
}

template <ComparePredicate predicate>
static Value importCompare(Node &n) {
  return n.compare(predicate, n.input(0), secondOperand(n));
}

/// Sum, Max, Min of any number of inputs, in order.
template <BinaryKind kind>
static Value importVariadic(Node &n) {
  if (n.inputs.empty())
    return n.fail("has no inputs");
  Value result = n.input(0);
  for (Value next : ArrayRef(n.inputs).drop_front())
    result = n.binary(kind, result, next);
  return result;
}

static Value importMean(Node &n) {
  Value sum = importVariadic<BinaryKind::Add>(n);
  return n.mul(sum, n.scalarLike(1.0 / n.inputs.size(), sum));
}

static Value importMod(Node &n) {
  bool isC = n.getInt("fmod", 0) != 0;
  return n.binary(isC ? BinaryKind::Rem : BinaryKind::Mod, n.input(0),
                  n.input(1));
}

static Value importBitShift(Node &n) {
  bool left = n.getString("direction", "") == "LEFT";
  return n.binary(left ? BinaryKind::Shl : BinaryKind::Shr, n.input(0),
                  n.input(1));
}

static Value importWhere(Node &n) {
  return n.select(n.input(0), n.input(1), n.input(2));
}

static Value importCast(Node &n) {
  int to = n.getInt("to", 0);
  Type element = elementTypeOf(to, n.builder.getContext());
  if (!element)
    return n.fail("not supported yet: to element type " +
                  (::onnx::TensorProto::DataType_IsValid(to)
                       ? ::onnx::TensorProto::DataType_Name(
                             ::onnx::TensorProto::DataType(to))
                       : std::to_string(to)));
  return n.cast(n.input(0), element);
}

static Value importCastLike(Node &n) {
  return n.cast(n.input(0), elementOf(n.input(1)));
}

static Value importIdentity(Node &n) { return n.input(0); }

static Value importIsInf(Node &n) {
  bool positive = n.getInt("detect_positive", 1) != 0;
  bool negative = n.getInt("detect_negative", 1) != 0;
  Value x = n.input(0), infinite = n.unary(UnaryKind::IsInf, x);
  if (positive && negative)
    return infinite;
  if (!positive && !negative)
    return n.splat(0, shapeOf(x), n.builder.getI1Type());
  auto predicate = positive ? ComparePredicate::Gt : ComparePredicate::Lt;
  return n.binary(BinaryKind::And, infinite,
                  n.compare(predicate, x, n.scalarLike(0, x)));
}

//===----------------------------------------------------------------------===//
// Bounds
//===----------------------------------------------------------------------===//

static Value max(Node &n, Value x, double bound) {
  return n.binary(BinaryKind::Max, x, n.scalarLike(bound, x));
}
static Value min(Node &n, Value x, double bound) {
  return n.binary(BinaryKind::Min, x, n.scalarLike(bound, x));
}

static Value importClip(Node &n) {
  Value x = n.input(0), low = n.input(1), high = n.input(2);
  if (n.opset < 11) {
    if (n.attribute("min"))
      low = n.scalarLike(n.getFloat("min", 0), x);
    if (n.attribute("max"))
      high = n.scalarLike(n.getFloat("max", 0), x);
  }
  if (low)
    x = n.binary(BinaryKind::Max, x, n.reshape(low, {}));
  if (high)
    x = n.binary(BinaryKind::Min, x, n.reshape(high, {}));
  return x;
}

//===----------------------------------------------------------------------===//
// Activations
//===----------------------------------------------------------------------===//

/// x where positive (or zero), else `other`.
static Value positiveOr(Node &n, Value x, Value other) {
  return n.select(n.compare(ComparePredicate::Lt, x, n.scalarLike(0, x)), other,
                  x);
}

/// alpha (exp(x / width) - 1) for x < 0. The bound keeps exp finite for the
/// elements that are not selected: their gradient would be 0 * inf.
static Value negativeExp(Node &n, Value x, double alpha, double width = 1) {
  Value bounded = min(n, x, 0);
  if (width != 1)
    bounded = n.div(bounded, n.scalarLike(width, x));
  Value grown = n.sub(n.unary(UnaryKind::Exp, bounded), n.scalarLike(1, x));
  return n.mul(n.scalarLike(alpha, x), grown);
}

static Value importLeakyRelu(Node &n) {
  Value x = n.input(0);
  double alpha = n.getFloat("alpha", 0.01f);
  return positiveOr(n, x, n.mul(n.scalarLike(alpha, x), x));
}

static Value importPRelu(Node &n) {
  Value x = n.input(0), slope = n.input(1);
  // Before operator set 7 there was one slope per channel.
  if (n.opset < 7 && rankOf(slope) == 1 && rankOf(x) > 2) {
    Shape shape(rankOf(x) - 1, 1);
    shape[0] = shapeOf(slope)[0];
    slope = n.reshape(slope, shape);
  }
  return positiveOr(n, x, n.mul(slope, x));
}

static Value importElu(Node &n) {
  Value x = n.input(0);
  return positiveOr(n, x, negativeExp(n, x, n.getFloat("alpha", 1)));
}

static Value importSelu(Node &n) {
  Value x = n.input(0);
  double alpha = n.getFloat("alpha", 1.67326319217681884765625);
  double gamma = n.getFloat("gamma", 1.05070102214813232421875);
  return n.mul(n.scalarLike(gamma, x),
               positiveOr(n, x, negativeExp(n, x, alpha)));
}

static Value importCelu(Node &n) {
  Value x = n.input(0);
  double alpha = n.getFloat("alpha", 1);
  return n.add(max(n, x, 0), negativeExp(n, x, alpha, alpha));
}

static Value importThresholdedRelu(Node &n) {
  Value x = n.input(0);
  Value passes = n.compare(ComparePredicate::Gt, x,
                           n.scalarLike(n.getFloat("alpha", 1), x));
  return n.select(passes, x, n.scalarLike(0, x));
}

/// max(0, min(1, alpha x + beta))
static Value hardSigmoid(Node &n, Value x, double alpha, double beta) {
  Value line = n.add(n.mul(n.scalarLike(alpha, x), x), n.scalarLike(beta, x));
  return max(n, min(n, line, 1), 0);
}

static Value importHardSigmoid(Node &n) {
  return hardSigmoid(n, n.input(0), n.getFloat("alpha", 0.2f),
                     n.getFloat("beta", 0.5));
}

static Value importHardSwish(Node &n) {
  return n.mul(n.input(0), hardSigmoid(n, n.input(0), 1.0 / 6.0, 0.5));
}

static Value importMish(Node &n) {
  Value x = n.input(0);
  return n.mul(x, n.unary(UnaryKind::Tanh, n.unary(UnaryKind::Softplus, x)));
}

static Value importShrink(Node &n) {
  Value x = n.input(0);
  double limit = n.getFloat("lambd", 0.5), bias = n.getFloat("bias", 0);
  Value below = n.compare(ComparePredicate::Lt, x, n.scalarLike(-limit, x));
  Value above = n.compare(ComparePredicate::Gt, x, n.scalarLike(limit, x));
  Value shift = n.scalarLike(bias, x);
  return n.select(below, n.add(x, shift),
                  n.select(above, n.sub(x, shift), n.scalarLike(0, x)));
}

static Value importSoftsign(Node &n) {
  Value x = n.input(0);
  return n.div(x, n.add(n.scalarLike(1, x), n.unary(UnaryKind::Abs, x)));
}

static Value importSwish(Node &n) {
  Value x = n.input(0);
  double alpha = n.getFloat("alpha", 1);
  if (alpha == 1)
    return n.unary(UnaryKind::Silu, x);
  return n.mul(x,
               n.unary(UnaryKind::Sigmoid, n.mul(n.scalarLike(alpha, x), x)));
}

static Value importGelu(Node &n) {
  bool tanh = n.getString("approximate", "none") == "tanh";
  return n.unary(tanh ? UnaryKind::GeluTanh : UnaryKind::Gelu, n.input(0));
}

void mgq::onnx::registerElementwise(Registry &r) {
  r["Abs"] = importUnary<UnaryKind::Abs>;
  r["Acos"] = importUnary<UnaryKind::Acos>;
  r["Acosh"] = importUnary<UnaryKind::Acosh>;
  r["Asin"] = importUnary<UnaryKind::Asin>;
  r["Asinh"] = importUnary<UnaryKind::Asinh>;
  r["Atan"] = importUnary<UnaryKind::Atan>;
  r["Atanh"] = importUnary<UnaryKind::Atanh>;
  r["BitwiseNot"] = importUnary<UnaryKind::Not>;
  r["Ceil"] = importUnary<UnaryKind::Ceil>;
  r["Cos"] = importUnary<UnaryKind::Cos>;
  r["Cosh"] = importUnary<UnaryKind::Cosh>;
  r["Erf"] = importUnary<UnaryKind::Erf>;
  r["Exp"] = importUnary<UnaryKind::Exp>;
  r["Floor"] = importUnary<UnaryKind::Floor>;
  r["IsNaN"] = importUnary<UnaryKind::IsNan>;
  r["Log"] = importUnary<UnaryKind::Log>;
  r["Neg"] = importUnary<UnaryKind::Neg>;
  r["Not"] = importUnary<UnaryKind::Not>;
  r["Reciprocal"] = importUnary<UnaryKind::Reciprocal>;
  r["Relu"] = importUnary<UnaryKind::Relu>;
  r["Round"] = importUnary<UnaryKind::Round>;
  r["Sigmoid"] = importUnary<UnaryKind::Sigmoid>;
  r["Sign"] = importUnary<UnaryKind::Sign>;
  r["Sin"] = importUnary<UnaryKind::Sin>;
  r["Sinh"] = importUnary<UnaryKind::Sinh>;
  r["Softplus"] = importUnary<UnaryKind::Softplus>;
  r["Sqrt"] = importUnary<UnaryKind::Sqrt>;
  r["Tan"] = importUnary<UnaryKind::Tan>;
  r["Tanh"] = importUnary<UnaryKind::Tanh>;

  r["Add"] = importBinary<BinaryKind::Add>;
  r["And"] = importBinary<BinaryKind::And>;
  r["BitwiseAnd"] = importBinary<BinaryKind::And>;
  r["BitwiseOr"] = importBinary<BinaryKind::Or>;
  r["BitwiseXor"] = importBinary<BinaryKind::Xor>;
  r["Div"] = importBinary<BinaryKind::Div>;
  r["Mul"] = importBinary<BinaryKind::Mul>;
  r["Or"] = importBinary<BinaryKind::Or>;
  r["Pow"] = importBinary<BinaryKind::Pow>;
  r["Sub"] = importBinary<BinaryKind::Sub>;
  r["Xor"] = importBinary<BinaryKind::Xor>;
  r["BitShift"] = importBitShift;
  r["Mod"] = importMod;

  r["Equal"] = importCompare<ComparePredicate::Eq>;
  r["Greater"] = importCompare<ComparePredicate::Gt>;
  r["GreaterOrEqual"] = importCompare<ComparePredicate::Ge>;
  r["Less"] = importCompare<ComparePredicate::Lt>;
  r["LessOrEqual"] = importCompare<ComparePredicate::Le>;

  r["Max"] = importVariadic<BinaryKind::Max>;
  r["Mean"] = importMean;
  r["Min"] = importVariadic<BinaryKind::Min>;
  r["Sum"] = importVariadic<BinaryKind::Add>;

  r["Cast"] = importCast;
  r["CastLike"] = importCastLike;
  r["Clip"] = importClip;
  r["Identity"] = importIdentity;
  r["IsInf"] = importIsInf;
  r["Where"] = importWhere;

  r["Celu"] = importCelu;
  r["Elu"] = importElu;
  r["Gelu"] = importGelu;
  r["HardSigmoid"] = importHardSigmoid;
  r["HardSwish"] = importHardSwish;
  r["LeakyRelu"] = importLeakyRelu;
  r["Mish"] = importMish;
  r["PRelu"] = importPRelu;
  r["Selu"] = importSelu;
  r["Shrink"] = importShrink;
  r["Softsign"] = importSoftsign;
  r["Swish"] = importSwish;
  r["ThresholdedRelu"] = importThresholdedRelu;
}
