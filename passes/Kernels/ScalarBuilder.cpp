//===- ScalarBuilder.cpp - Scalar arithmetic and loops --------------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

Type kernels::computeType(Type stored) {
  if (stored.isF16() || stored.isBF16())
    return Float32Type::get(stored.getContext());
  return stored;
}

Type kernels::signless(Type type) {
  if (auto shaped = dyn_cast<ShapedType>(type))
    return shaped.clone(signless(shaped.getElementType()));
  if (type.isUnsignedInteger())
    return IntegerType::get(type.getContext(), type.getIntOrFloatBitWidth());
  return type;
}

static bool isFloat(Value value) { return isa<FloatType>(value.getType()); }

Value ScalarBuilder::constant(Type type, double value) {
  TypedAttr attr;
  if (auto floating = dyn_cast<FloatType>(type)) {
    attr = FloatAttr::get(floating, value);
  } else if (type.isInteger(1)) {
    attr = builder.getBoolAttr(value != 0);
  } else {
    attr = IntegerAttr::get(type, int64_t(value));
  }
  return arith::ConstantOp::create(builder, loc, attr);
}

Value ScalarBuilder::index(int64_t value) {
  return arith::ConstantIndexOp::create(builder, loc, value);
}

Value ScalarBuilder::add(Value a, Value b) {
  if (isFloat(a))
    return arith::AddFOp::create(builder, loc, a, b);
  return arith::AddIOp::create(builder, loc, a, b);
}
Value ScalarBuilder::sub(Value a, Value b) {
  if (isFloat(a))
    return arith::SubFOp::create(builder, loc, a, b);
  return arith::SubIOp::create(builder, loc, a, b);
}
Value ScalarBuilder::mul(Value a, Value b) {
  if (isFloat(a))
    return arith::MulFOp::create(builder, loc, a, b);
  return arith::MulIOp::create(builder, loc, a, b);
}
Value ScalarBuilder::fma(Value a, Value b, Value c) {
  if (isFloat(a))
    return math::FmaOp::create(builder, loc, a, b, c);
  return add(mul(a, b), c);
}

Value ScalarBuilder::addAnyOrder(Value a, Value b) {
  if (!isFloat(a))
    return add(a, b);
  return arith::AddFOp::create(builder, loc, a, b,
                               arith::FastMathFlags::reassoc);
}

/// `b`, or 1 where dividing by it would trap.
static Value safeDivisor(ScalarBuilder &s, Value a, Value b, bool isUnsigned) {
  Value zero = s.constant(b.getType(), 0), one = s.constant(b.getType(), 1);
  Value bad = s.compare(nn::ComparePredicate::Eq, b, zero);
  if (!isUnsigned)
    bad = s.lor(bad, s.compare(nn::ComparePredicate::Eq, b,
                               s.constant(b.getType(), -1)));
  return s.select(bad, one, b);
}

Value ScalarBuilder::div(Value a, Value b, bool isUnsigned) {
  if (isFloat(a))
    return arith::DivFOp::create(builder, loc, a, b);
  Value divisor = safeDivisor(*this, a, b, isUnsigned);
  Value zero = constant(b.getType(), 0);
  Value quotient =
      isUnsigned ? Value(arith::DivUIOp::create(builder, loc, a, divisor))
                 : Value(arith::DivSIOp::create(builder, loc, a, divisor));
  if (!isUnsigned)
    quotient =
        select(compare(nn::ComparePredicate::Eq, b, constant(b.getType(), -1)),
               sub(zero, a), quotient);
  return select(compare(nn::ComparePredicate::Eq, b, zero), zero, quotient);
}

Value ScalarBuilder::rem(Value a, Value b, bool isUnsigned) {
  if (isFloat(a))
    return arith::RemFOp::create(builder, loc, a, b);
  Value divisor = safeDivisor(*this, a, b, isUnsigned);
  if (isUnsigned)
    return arith::RemUIOp::create(builder, loc, a, divisor);
  return arith::RemSIOp::create(builder, loc, a, divisor);
}

Value ScalarBuilder::max(Value a, Value b, bool isUnsigned) {
  if (isFloat(a))
    return arith::MaximumFOp::create(builder, loc, a, b);
  if (isUnsigned || a.getType().isInteger(1))
    return arith::MaxUIOp::create(builder, loc, a, b);
  return arith::MaxSIOp::create(builder, loc, a, b);
}
Value ScalarBuilder::min(Value a, Value b, bool isUnsigned) {
  if (isFloat(a))
    return arith::MinimumFOp::create(builder, loc, a, b);
  if (isUnsigned || a.getType().isInteger(1))
    return arith::MinUIOp::create(builder, loc, a, b);
  return arith::MinSIOp::create(builder, loc, a, b);
}

Value ScalarBuilder::neg(Value a) {
  if (isFloat(a))
    return arith::NegFOp::create(builder, loc, a);
  return sub(constant(a.getType(), 0), a);
}

Value ScalarBuilder::compare(nn::ComparePredicate predicate, Value a, Value b,
                             bool isUnsigned) {
  int row = int(predicate);
  if (isFloat(a)) {
    using P = arith::CmpFPredicate;
    const P table[] = {P::OEQ, P::UNE, P::OLT, P::OLE, P::OGT, P::OGE};
    return arith::CmpFOp::create(builder, loc, table[row], a, b);
  }
  using P = arith::CmpIPredicate;
  const P asSigned[] = {P::eq, P::ne, P::slt, P::sle, P::sgt, P::sge};
  const P asUnsigned[] = {P::eq, P::ne, P::ult, P::ule, P::ugt, P::uge};
  bool unsignedOrder = isUnsigned || a.getType().isInteger(1);
  return arith::CmpIOp::create(
      builder, loc, unsignedOrder ? asUnsigned[row] : asSigned[row], a, b);
}

Value ScalarBuilder::select(Value condition, Value a, Value b) {
  return arith::SelectOp::create(builder, loc, condition, a, b);
}
Value ScalarBuilder::land(Value a, Value b) {
  return arith::AndIOp::create(builder, loc, a, b);
}
Value ScalarBuilder::lor(Value a, Value b) {
  return arith::OrIOp::create(builder, loc, a, b);
}
Value ScalarBuilder::lnot(Value a) {
  return arith::XOrIOp::create(builder, loc, a, constant(a.getType(), 1));
}
Value ScalarBuilder::exp(Value a) {
  return math::ExpOp::create(builder, loc, a);
}
Value ScalarBuilder::log(Value a) {
  return math::LogOp::create(builder, loc, a);
}
Value ScalarBuilder::tanh(Value a) {
  return math::TanhOp::create(builder, loc, a);
}
Value ScalarBuilder::sqrt(Value a) {
  return math::SqrtOp::create(builder, loc, a);
}
Value ScalarBuilder::isNan(Value a) {
  return arith::CmpFOp::create(builder, loc, arith::CmpFPredicate::UNO, a, a);
}

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

Value ScalarBuilder::widen(Value value) {
  Type to = computeType(value.getType());
  if (to == value.getType())
    return value;
  return arith::ExtFOp::create(builder, loc, to, value);
}

Value ScalarBuilder::narrow(Value value, Type stored) {
  if (value.getType() == stored)
    return value;
  return arith::TruncFOp::create(builder, loc, stored, value);
}

/// f64 to f32 so that a second rounding to f16 or bf16 gives what one rounding
/// would: the last bit is set where bits were lost (rounding to odd).
static Value roundToOdd(ScalarBuilder &s, Value value) {
  OpBuilder &b = s.builder;
  Type f32 = b.getF32Type(), i32 = b.getI32Type();
  Value single = arith::TruncFOp::create(b, s.loc, f32, value);
  Value back = arith::ExtFOp::create(b, s.loc, value.getType(), single);
  Value bits = arith::BitcastOp::create(b, s.loc, i32, single);
  // Step back toward zero where rounding went away from it.
  Value away =
      s.compare(nn::ComparePredicate::Gt, math::AbsFOp::create(b, s.loc, back),
                math::AbsFOp::create(b, s.loc, value));
  Value lower = s.sub(bits, arith::ExtUIOp::create(b, s.loc, i32, away));
  Value odd = s.lor(lower, s.constant(i32, 1));
  Value inexact = s.land(s.compare(nn::ComparePredicate::Ne, back, value),
                         s.lnot(s.isNan(value)));
  return arith::BitcastOp::create(b, s.loc, f32, s.select(inexact, odd, bits));
}

static Value castFloat(ScalarBuilder &s, Value value, Type to) {
  unsigned from = value.getType().getIntOrFloatBitWidth();
  if (value.getType() == to)
    return value;
  if (to.getIntOrFloatBitWidth() > from)
    return arith::ExtFOp::create(s.builder, s.loc, to, value);
  if (from == 64 && to.getIntOrFloatBitWidth() == 16)
    value = roundToOdd(s, value);
  else if (from == 16) // between f16 and bf16
    value = s.widen(value);
  return arith::TruncFOp::create(s.builder, s.loc, to, value);
}

static Value floatToInt(ScalarBuilder &s, Value value, Type to,
                        bool toUnsigned) {
  value = s.widen(value);
  unsigned width = to.getIntOrFloatBitWidth();
  if (width == 64 && toUnsigned)
    return arith::FPToUIOp::create(s.builder, s.loc, to, value);
  if (width == 64 || (width == 32 && !toUnsigned))
    return arith::FPToSIOp::create(s.builder, s.loc, to, value);
  // Narrow ones wrap, as a cast in C does through a wider integer.
  Value wide =
      arith::FPToSIOp::create(s.builder, s.loc, s.builder.getI64Type(), value);
  return arith::TruncIOp::create(s.builder, s.loc, to, wide);
}

Value ScalarBuilder::cast(Value value, Type to, bool fromUnsigned,
                          bool toUnsigned) {
  Type from = value.getType();
  to = signless(to);
  bool zeroExtend = fromUnsigned || from.isInteger(1);
  if (from == to)
    return value;
  if (to.isInteger(1))
    return compare(nn::ComparePredicate::Ne, value, constant(from, 0));
  if (isa<FloatType>(from) && isa<FloatType>(to))
    return castFloat(*this, value, to);
  if (isa<FloatType>(from))
    return floatToInt(*this, value, to, toUnsigned);
  if (isa<FloatType>(to)) {
    Type wide = computeType(to);
    Value result =
        zeroExtend ? Value(arith::UIToFPOp::create(builder, loc, wide, value))
                   : Value(arith::SIToFPOp::create(builder, loc, wide, value));
    return narrow(result, to);
  }
  if (to.getIntOrFloatBitWidth() < from.getIntOrFloatBitWidth())
    return arith::TruncIOp::create(builder, loc, to, value);
  if (zeroExtend)
    return arith::ExtUIOp::create(builder, loc, to, value);
  return arith::ExtSIOp::create(builder, loc, to, value);
}

Value ScalarBuilder::toIndex(Value value) {
  return arith::IndexCastOp::create(builder, loc, builder.getIndexType(),
                                    value);
}
Value ScalarBuilder::fromIndex(Value value, Type type) {
  return arith::IndexCastOp::create(builder, loc, type, value);
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

void LoopBuilder::parallel(ArrayRef<int64_t> sizes, Body body) {
  SmallVector<Value> zeros, ends, ones;
  for (int64_t size : sizes) {
    zeros.push_back(index(0));
    ends.push_back(index(size));
    ones.push_back(index(1));
  }
  if (sizes.empty()) {
    body({});
    return;
  }
  scf::ParallelOp::create(builder, loc, zeros, ends, ones,
                          [&](OpBuilder &, Location, ValueRange ivs) {
                            OpBuilder::InsertionGuard guard(builder);
                            builder.setInsertionPointToEnd(
                                ivs.front().getParentBlock());
                            body(ivs);
                          });
}

void LoopBuilder::loop(int64_t size, llvm::function_ref<void(Value)> body) {
  carry(size, {}, [&](Value iv, ValueRange) {
    body(iv);
    return SmallVector<Value>();
  });
}

void LoopBuilder::loops(ArrayRef<int64_t> sizes, Body body) {
  SmallVector<Value> ivs;
  std::function<void(size_t)> nest = [&](size_t level) {
    if (level == sizes.size())
      return body(ivs);
    loop(sizes[level], [&](Value iv) {
      ivs.push_back(iv);
      nest(level + 1);
      ivs.pop_back();
    });
  };
  nest(0);
}

SmallVector<Value> LoopBuilder::carry(int64_t size, ValueRange init,
                                      Step step) {
  auto loopOp =
      scf::ForOp::create(builder, loc, index(0), index(size), index(1), init);
  OpBuilder::InsertionGuard guard(builder);
  Block *block = loopOp.getBody();
  if (init.empty())
    block->getTerminator()->erase();
  builder.setInsertionPointToEnd(block);
  SmallVector<Value> next =
      step(loopOp.getInductionVar(), loopOp.getRegionIterArgs());
  scf::YieldOp::create(builder, loc, next);
  return SmallVector<Value>(loopOp.getResults());
}

Value LoopBuilder::fold(int64_t size, Value init,
                        llvm::function_ref<Value(Value, Value)> step) {
  return carry(size, init, [&](Value iv, ValueRange carried) {
    return SmallVector<Value>{step(iv, carried.front())};
  })[0];
}

void LoopBuilder::when(Value condition, llvm::function_ref<void()> body) {
  auto op = scf::IfOp::create(builder, loc, condition, /*withElse=*/false);
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPoint(op.thenBlock()->getTerminator());
  body();
}

Value LoopBuilder::branch(Value condition, llvm::function_ref<Value()> yes,
                          llvm::function_ref<Value()> no) {
  auto build = [&](llvm::function_ref<Value()> side) {
    return [&, side](OpBuilder &nested, Location) {
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPointToEnd(nested.getInsertionBlock());
      Value result = side();
      scf::YieldOp::create(builder, loc, result);
    };
  };
  return scf::IfOp::create(builder, loc, condition, build(yes), build(no))
      .getResult(0);
}

Value LoopBuilder::load(Value buffer, ValueRange indices) {
  return widen(memref::LoadOp::create(builder, loc, buffer, indices));
}
void LoopBuilder::store(Value value, Value buffer, ValueRange indices) {
  memref::StoreOp::create(builder, loc, narrow(value, elementOf(buffer)),
                          buffer, indices);
}
void LoopBuilder::move(Value from, ValueRange fromIndices, Value to,
                       ValueRange toIndices) {
  Value value = memref::LoadOp::create(builder, loc, from, fromIndices);
  memref::StoreOp::create(builder, loc, value, to, toIndices);
}
Value LoopBuilder::loadIndex(Value buffer, ValueRange indices) {
  return toIndex(memref::LoadOp::create(builder, loc, buffer, indices));
}

SmallVector<Value> LoopBuilder::broadcastIndices(ArrayRef<int64_t> shape,
                                                 ValueRange indices) {
  SmallVector<Value> result;
  for (auto [dim, iv] : llvm::zip_equal(shape, indices.take_back(shape.size())))
    result.push_back(dim == 1 ? index(0) : iv);
  return result;
}

Value LoopBuilder::checkedIndex(Value value, int64_t size, bool wrap,
                                Value what) {
  using P = nn::ComparePredicate;
  Value zero = index(0);
  Value wrapped = value;
  if (wrap)
    wrapped =
        select(compare(P::Lt, value, zero), add(value, index(size)), value);
  Value bad =
      lor(compare(P::Lt, wrapped, zero), compare(P::Ge, wrapped, index(size)));
  when(bad, [&] {
    Type i64 = builder.getI64Type();
    func::CallOp::create(
        builder, loc, "mgq_index_error", TypeRange(),
        ValueRange{what, fromIndex(value, i64), constant(i64, size)});
  });
  return select(bad, zero, wrapped);
}
