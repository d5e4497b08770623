//===- VectorMath.cpp - exp, exp2, tanh and erf as own polynomials --------===//
//
// Method of exp2: n = round(x), f = x - n in [-1/2, 1/2], 2^f by a minimax
// polynomial, n added to the exponent bits. n comes from adding 1.5 * 2^23: the
// sum's low bits are the rounded integer, and shifting them left by 23 puts
// them where an exponent stands (what they carry above falls off). exp does the
// same with x log2(e) and subtracts n log(2) in two parts. The coefficients
// minimise the largest relative error over the interval and are rounded to f32.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/VectorMath.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/BuiltinTypes.h"

#include <limits>

using namespace mlir;

namespace {

/// Spells arithmetic on values of one f32 (or vector of f32) type.
class Formula {
public:
  Formula(OpBuilder &builder, Location loc, Type type)
      : builder(builder), loc(loc), type(type),
        bitsType(sameShape(builder.getI32Type())) {}

  Value constant(float value) {
    return make(type, builder.getF32FloatAttr(value));
  }
  Value bits(int32_t value) {
    return make(bitsType, builder.getI32IntegerAttr(value));
  }
  Value add(Value a, Value b) {
    return arith::AddFOp::create(builder, loc, a, b);
  }
  Value sub(Value a, Value b) {
    return arith::SubFOp::create(builder, loc, a, b);
  }
  Value mul(Value a, Value b) {
    return arith::MulFOp::create(builder, loc, a, b);
  }
  Value div(Value a, Value b) {
    return arith::DivFOp::create(builder, loc, a, b);
  }
  Value neg(Value a) { return arith::NegFOp::create(builder, loc, a); }
  /// a * b + c, rounded once.
  Value fma(Value a, Value b, Value c) {
    return math::FmaOp::create(builder, loc, a, b, c);
  }
  /// Horner's scheme, highest power first.
  Value polynomial(Value x, ArrayRef<float> coefficients) {
    Value result = constant(coefficients.front());
    for (float coefficient : coefficients.drop_front())
      result = fma(result, x, constant(coefficient));
    return result;
  }
  /// `a < limit ? below : otherwise`, otherwise for NaN.
  Value selectLess(Value a, float limit, Value below, Value otherwise) {
    return select(arith::CmpFPredicate::OLT, a, limit, below, otherwise);
  }
  Value selectGreater(Value a, float limit, Value above, Value otherwise) {
    return select(arith::CmpFPredicate::OGT, a, limit, above, otherwise);
  }
  Value toBits(Value a) {
    return arith::BitcastOp::create(builder, loc, bitsType, a);
  }
  Value fromBits(Value a) {
    return arith::BitcastOp::create(builder, loc, type, a);
  }
  Value abs(Value a) {
    return fromBits(
        arith::AndIOp::create(builder, loc, toBits(a), bits(0x7fffffff)));
  }
  /// |magnitude| with the sign of `sign`; `magnitude` is not negative.
  Value copySign(Value magnitude, Value sign) {
    Value signBit = arith::AndIOp::create(
        builder, loc, toBits(sign), bits(std::numeric_limits<int32_t>::min()));
    return fromBits(
        arith::OrIOp::create(builder, loc, toBits(magnitude), signBit));
  }
  /// value * 2^n, where `shifted` = n + 1.5 * 2^23.
  Value scaleByPower(Value value, Value shifted) {
    Value exponent =
        arith::ShLIOp::create(builder, loc, toBits(shifted), bits(23));
    return fromBits(
        arith::AddIOp::create(builder, loc, toBits(value), exponent));
  }
  Type getType() const { return type; }

private:
  Type sameShape(Type element) const {
    if (auto vector = dyn_cast<VectorType>(type))
      return vector.clone(element);
    return element;
  }
  Value make(Type of, TypedAttr element) {
    if (auto vector = dyn_cast<VectorType>(of))
      element = SplatElementsAttr::get(vector, element);
    return arith::ConstantOp::create(builder, loc, element);
  }
  Value select(arith::CmpFPredicate predicate, Value a, float limit, Value then,
               Value otherwise) {
    Value condition =
        arith::CmpFOp::create(builder, loc, predicate, a, constant(limit));
    return arith::SelectOp::create(builder, loc, condition, then, otherwise);
  }

  OpBuilder &builder;
  Location loc;
  Type type;
  Type bitsType;
};

} // namespace

// 1.5 * 2^23: added to |x| < 2^22 it leaves x rounded in the low bits.
static constexpr float kRound = 12582912.0f;
static constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// e^x for -87.33 <= x <= 88.72; anything outside.
static Value expInRange(Formula &f, Value x) {
  Value shifted = f.fma(x, f.constant(1.44269504f), f.constant(kRound));
  Value n = f.sub(shifted, f.constant(kRound));
  Value r = f.fma(n, f.constant(-6.93145752e-1f), x);
  r = f.fma(n, f.constant(-1.42860677e-6f), r);
  Value p = f.polynomial(r, {0.00138144661f, 0.00836878084f, 0.0416683927f,
                             0.166665196f, 0.49999994f, 1.0f, 1.0f});
  return f.scaleByPower(p, shifted);
}

/// 2^x for -126 <= x < 128; anything outside.
static Value exp2InRange(Formula &f, Value x) {
  Value shifted = f.add(x, f.constant(kRound));
  Value fraction = f.sub(x, f.sub(shifted, f.constant(kRound)));
  Value p =
      f.polynomial(fraction, {0.00015353362f, 0.0013398875f, 0.00961843692f,
                              0.0555033237f, 0.240226477f, 0.693147182f, 1.0f});
  return f.scaleByPower(p, shifted);
}

namespace mgq::kernels {

Value emitExp(OpBuilder &builder, Location loc, Value x) {
  Formula f(builder, loc, x.getType());
  Value result = expInRange(f, x);
  result = f.selectLess(x, -87.33654f, f.constant(0.0f), result);
  return f.selectGreater(x, 88.72283f, f.constant(kInfinity), result);
}

Value emitExp2NonPositive(OpBuilder &builder, Location loc, Value x) {
  Formula f(builder, loc, x.getType());
  return f.selectLess(x, -126.0f, f.constant(0.0f), exp2InRange(f, x));
}

Value emitExp2(OpBuilder &builder, Location loc, Value x) {
  Formula f(builder, loc, x.getType());
  Value result = emitExp2NonPositive(builder, loc, x);
  // The largest f32 below 128.
  return f.selectGreater(x, 127.99999f, f.constant(kInfinity), result);
}

Value emitTanh(OpBuilder &builder, Location loc, Value x) {
  Formula f(builder, loc, x.getType());
  // Far from 0: 1 - 2 / (e^2|x| + 1); it is 1 in f32 from 10 on.
  Value t = f.abs(x);
  Value clamped = f.selectGreater(t, 10.0f, f.constant(10.0f), t);
  Value e = expInRange(f, f.add(clamped, clamped));
  Value far = f.sub(f.constant(1.0f),
                    f.div(f.constant(2.0f), f.add(e, f.constant(1.0f))));
  // Near 0: an odd polynomial.
  Value s = f.mul(x, x);
  Value r = f.polynomial(
      s, {1.57396831e-2f, -5.23039624e-2f, 1.33152977e-1f, -3.33327681e-1f});
  Value near = f.fma(f.mul(r, s), x, x);
  return f.selectGreater(t, 0.55f, f.copySign(far, x), near);
}

Value emitErf(OpBuilder &builder, Location loc, Value x) {
  Formula f(builder, loc, x.getType());
  // Far from 0: 1 - e^p(|x|); it is 1 in f32 from 4 on.
  Value t = f.abs(x);
  Value clamped = f.selectGreater(t, 4.0f, f.constant(4.0f), t);
  Value p =
      f.polynomial(clamped, {-1.72853470e-5f, 3.83197126e-4f, -3.88396438e-3f,
                             2.42546219e-2f, -1.06777877e-1f, -6.34846687e-1f,
                             -1.28717512e-1f});
  p = f.fma(p, clamped, f.neg(clamped));
  Value far = f.sub(f.constant(1.0f), expInRange(f, p));
  // Near 0: an odd polynomial.
  Value s = f.mul(x, x);
  Value q = f.polynomial(s, {-5.96761703e-4f, 4.99119423e-3f, -2.67681349e-2f,
                             1.12819925e-1f, -3.76125336e-1f, 1.28379166e-1f});
  Value near = f.fma(q, x, x);
  return f.selectGreater(t, 0.921875f, f.copySign(far, x), near);
}

Value emitLog2(OpBuilder &builder, Location loc, Value x) {
  Formula f(builder, loc, x.getType());
  // x = m 2^n with m in [sqrt(1/2), sqrt(2)): subtract sqrt(1/2)'s bits, take
  // the exponent off, put them back.
  Value offset =
      arith::SubIOp::create(builder, loc, f.toBits(x), f.bits(0x3f3504f3));
  Value n = arith::ShRSIOp::create(builder, loc, offset, f.bits(23));
  Value exponent = arith::ShLIOp::create(builder, loc, n, f.bits(23));
  Value m =
      f.fromBits(arith::SubIOp::create(builder, loc, f.toBits(x), exponent));
  // log2 m = 2 / ln 2 (s + s^3/3 + s^5/5 + ...), s = (m - 1) / (m + 1).
  Value s = f.div(f.sub(m, f.constant(1.0f)), f.add(m, f.constant(1.0f)));
  Value s2 = f.mul(s, s);
  Value p = f.polynomial(
      s2, {0.320598898f, 0.412198583f, 0.577078016f, 0.961796694f});
  Value high = f.mul(s, f.constant(2.88539008f));
  Value log = f.fma(f.mul(p, s2), s, high);
  Value whole = arith::SIToFPOp::create(builder, loc, f.getType(), n);
  return f.add(whole, log);
}

} // namespace mgq::kernels
