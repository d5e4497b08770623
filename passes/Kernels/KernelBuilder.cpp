//===- KernelBuilder.cpp - Writes kernels as arithmetic on values ---------===//

#include "passes/Kernels/KernelBuilder.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/Sequence.h"

using namespace mlir;
using namespace mgq::kernels;

template <typename IntOp, typename FloatOp>
static Val binary(Val a, Val b) {
  KernelBuilder &kb = a.getBuilder();
  OpBuilder &ops = kb.getOps();
  if (isa<IntegerType>(a.getType()))
    return Val(kb, ops.createOrFold<IntOp>(kb.getLoc(), a, b));
  return Val(kb, FloatOp::create(ops, kb.getLoc(), a, b));
}

static Val compare(arith::CmpIPredicate integer, arith::CmpFPredicate floating,
                   Val a, Val b) {
  KernelBuilder &kb = a.getBuilder();
  OpBuilder &ops = kb.getOps();
  if (isa<IntegerType>(a.getType()))
    return Val(kb, ops.createOrFold<arith::CmpIOp>(kb.getLoc(), integer, a, b));
  return Val(kb, arith::CmpFOp::create(ops, kb.getLoc(), floating, a, b));
}

namespace mgq::kernels {

Val operator+(Val a, Val b) {
  return binary<arith::AddIOp, arith::AddFOp>(a, b);
}
Val operator-(Val a, Val b) {
  return binary<arith::SubIOp, arith::SubFOp>(a, b);
}
Val operator*(Val a, Val b) {
  return binary<arith::MulIOp, arith::MulFOp>(a, b);
}
Val operator/(Val a, Val b) {
  return binary<arith::DivSIOp, arith::DivFOp>(a, b);
}
Val operator%(Val a, Val b) {
  return binary<arith::RemSIOp, arith::RemFOp>(a, b);
}
Val operator&(Val a, Val b) {
  KernelBuilder &kb = a.getBuilder();
  return Val(kb, arith::AndIOp::create(kb.getOps(), kb.getLoc(), a, b));
}
Val operator|(Val a, Val b) {
  KernelBuilder &kb = a.getBuilder();
  return Val(kb, arith::OrIOp::create(kb.getOps(), kb.getLoc(), a, b));
}
Val operator<(Val a, Val b) {
  return compare(arith::CmpIPredicate::slt, arith::CmpFPredicate::OLT, a, b);
}
Val operator<=(Val a, Val b) {
  return compare(arith::CmpIPredicate::sle, arith::CmpFPredicate::OLE, a, b);
}
Val operator>(Val a, Val b) {
  return compare(arith::CmpIPredicate::sgt, arith::CmpFPredicate::OGT, a, b);
}
Val operator>=(Val a, Val b) {
  return compare(arith::CmpIPredicate::sge, arith::CmpFPredicate::OGE, a, b);
}
Val operator==(Val a, Val b) {
  return compare(arith::CmpIPredicate::eq, arith::CmpFPredicate::OEQ, a, b);
}
Val operator!=(Val a, Val b) {
  return compare(arith::CmpIPredicate::ne, arith::CmpFPredicate::UNE, a, b);
}
Val operator+(Val a, int64_t b) { return a + a.getBuilder().i(b); }
Val operator-(Val a, int64_t b) { return a - a.getBuilder().i(b); }
Val operator*(Val a, int64_t b) { return a * a.getBuilder().i(b); }
Val operator/(Val a, int64_t b) { return a / a.getBuilder().i(b); }
Val operator%(Val a, int64_t b) { return a % a.getBuilder().i(b); }
Val operator<(Val a, int64_t b) { return a < a.getBuilder().i(b); }
Val operator<=(Val a, int64_t b) { return a <= a.getBuilder().i(b); }
Val operator>(Val a, int64_t b) { return a > a.getBuilder().i(b); }
Val operator>=(Val a, int64_t b) { return a >= a.getBuilder().i(b); }
Val operator==(Val a, int64_t b) { return a == a.getBuilder().i(b); }
Val operator!=(Val a, int64_t b) { return a != a.getBuilder().i(b); }

KernelBuilder::KernelBuilder(ModuleOp module, int64_t lanes)
    : module(module), symbols(module), b(module.getContext()),
      loc(NameLoc::get(b.getStringAttr("kernels"))), lanes(lanes) {}

KernelBuilder::Vals KernelBuilder::wrap(ValueRange values) {
  return llvm::map_to_vector<16>(values,
                                 [&](Value v) { return Val(*this, v); });
}

SmallVector<Value> KernelBuilder::unwrap(ArrayRef<Val> values) {
  return llvm::map_to_vector(values, [](Val v) { return Value(v); });
}

//===----------------------------------------------------------------------===//
// Functions and tables
//===----------------------------------------------------------------------===//

LLVM::LLVMFuncOp KernelBuilder::function(StringRef name,
                                         ArrayRef<Type> arguments,
                                         function_ref<void(Vals)> body) {
  if (auto known = symbols.lookup<LLVM::LLVMFuncOp>(name))
    return known;
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(module.getBody());
  auto type = LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(b.getContext()), arguments);
  auto function =
      LLVM::LLVMFuncOp::create(b, loc, name, type, LLVM::Linkage::Internal);
  symbols.insert(function);
  // Frames are large; inlined they would add up.
  function.setNoInline(true);
  Block *entry = function.addEntryBlock(b);
  b.setInsertionPointToStart(entry);
  body(wrap(entry->getArguments()));
  LLVM::ReturnOp::create(b, loc, ValueRange());
  return function;
}

LLVM::LLVMFuncOp KernelBuilder::declare(StringRef name,
                                        ArrayRef<Type> arguments) {
  if (auto known = symbols.lookup<LLVM::LLVMFuncOp>(name))
    return known;
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(module.getBody());
  auto type = LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(b.getContext()), arguments);
  auto function = LLVM::LLVMFuncOp::create(b, loc, name, type);
  symbols.insert(function);
  return function;
}

LLVM::GlobalOp KernelBuilder::table(StringRef name,
                                    ArrayRef<LLVM::LLVMFuncOp> functions) {
  if (auto known = symbols.lookup<LLVM::GlobalOp>(name))
    return known;
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(module.getBody());
  auto type = LLVM::LLVMArrayType::get(ptr(), functions.size());
  auto global =
      LLVM::GlobalOp::create(b, loc, type, /*isConstant=*/true,
                             LLVM::Linkage::Internal, name, Attribute());
  symbols.insert(global);
  Block *block = b.createBlock(&global.getInitializer());
  b.setInsertionPointToStart(block);
  Value value = LLVM::UndefOp::create(b, loc, type);
  for (auto [index, function] : llvm::enumerate(functions))
    value = LLVM::InsertValueOp::create(
        b, loc, value, LLVM::AddressOfOp::create(b, loc, function), index);
  LLVM::ReturnOp::create(b, loc, value);
  return global;
}

LLVM::GlobalOp KernelBuilder::constants(StringRef prefix,
                                        ArrayRef<int64_t> values) {
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(module.getBody());
  auto type = LLVM::LLVMArrayType::get(i64(), values.size());
  auto global = LLVM::GlobalOp::create(
      b, loc, type, /*isConstant=*/true, LLVM::Linkage::Internal, prefix,
      b.getI64TensorAttr(values), /*alignment=*/8);
  symbols.insert(global);
  return global;
}

Val KernelBuilder::address(LLVM::LLVMFuncOp function) {
  return Val(*this, LLVM::AddressOfOp::create(b, loc, function));
}

Val KernelBuilder::address(LLVM::GlobalOp global) {
  return Val(*this, LLVM::AddressOfOp::create(b, loc, global));
}

void KernelBuilder::call(LLVM::LLVMFuncOp function, ArrayRef<Val> arguments) {
  LLVM::CallOp::create(b, loc, function, unwrap(arguments));
}

void KernelBuilder::callPointer(LLVM::LLVMFuncOp like, Val pointer,
                                ArrayRef<Val> arguments) {
  SmallVector<Value> operands = {pointer};
  llvm::append_range(operands, unwrap(arguments));
  LLVM::CallOp::create(b, loc, like.getFunctionType(), operands);
}

void KernelBuilder::parallelFor(LLVM::LLVMFuncOp body, Val context, Val count) {
  LLVM::LLVMFuncOp threads = declare("mgq_parallel_for", {ptr(), ptr(), i64()});
  ifThen(
      count == 1, [&] { call(body, {context, i(0)}); },
      [&] { call(threads, {address(body), context, count}); });
}

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

Val KernelBuilder::i(int64_t value) {
  return Val(*this,
             arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(value)));
}

Val KernelBuilder::f(float value) {
  return Val(*this,
             arith::ConstantOp::create(b, loc, b.getF32FloatAttr(value)));
}

Val KernelBuilder::splat(float value) {
  auto attr = SplatElementsAttr::get(vec(), b.getF32FloatAttr(value));
  return Val(*this, arith::ConstantOp::create(b, loc, attr));
}

Val KernelBuilder::splat(Val scalar) {
  return Val(*this, vector::BroadcastOp::create(b, loc, vec(), scalar));
}

Val KernelBuilder::min(Val a, Val other) {
  return Val(*this, b.createOrFold<arith::MinSIOp>(loc, a, other));
}

Val KernelBuilder::max(Val a, Val other) {
  return Val(*this, b.createOrFold<arith::MaxSIOp>(loc, a, other));
}

Val KernelBuilder::select(Val condition, Val then, Val otherwise) {
  return Val(*this,
             arith::SelectOp::create(b, loc, condition, then, otherwise));
}

Val KernelBuilder::fma(Val a, Val x, Val c) {
  return Val(*this, vector::FMAOp::create(b, loc, a, x, c));
}

Val KernelBuilder::maxf(Val a, Val other) {
  return select(a > other, a, other);
}

/// Combines halves until one lane is left: a tree spelled out, where a
/// vector.reduction would leave the order to the code generator.
static Val reduceHalves(Val vector, function_ref<Val(Val, Val)> combine) {
  KernelBuilder &kb = vector.getBuilder();
  int64_t lanes = kb.getLanes();
  for (int64_t width = lanes / 2; width >= 1; width /= 2) {
    auto swapped = llvm::to_vector(llvm::seq<int64_t>(lanes));
    for (int64_t &lane : swapped)
      lane = (lane ^ width);
    vector = combine(vector, kb.shuffle(vector, vector, swapped));
  }
  return Val(kb, vector::ExtractOp::create(kb.getOps(), kb.getLoc(), vector,
                                           ArrayRef<int64_t>{0}));
}

Val KernelBuilder::reduceMax(Val vector) {
  return reduceHalves(vector, [&](Val a, Val other) { return maxf(a, other); });
}

Val KernelBuilder::reduceSum(Val vector) {
  return reduceHalves(vector, [](Val a, Val other) { return a + other; });
}

Val KernelBuilder::shuffle(Val a, Val other, ArrayRef<int64_t> mask) {
  return Val(*this, vector::ShuffleOp::create(b, loc, a, other, mask));
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Val KernelBuilder::at(Val base, Val index, Type element) {
  return Val(*this,
             LLVM::GEPOp::create(b, loc, ptr(), element ? element : f32(), base,
                                 ValueRange{index}));
}

Val KernelBuilder::at(Val base, int64_t index, Type element) {
  if (index == 0)
    return base;
  return at(base, i(index), element);
}

/// Bytes of one element.
static unsigned elementBytes(Type type) {
  Type element = getElementTypeOrSelf(type);
  return element.isIntOrFloat() ? element.getIntOrFloatBitWidth() / 8 : 8;
}

Val KernelBuilder::load(Type type, Val pointer, unsigned alignment) {
  return Val(*this,
             LLVM::LoadOp::create(b, loc, type, pointer,
                                  alignment ? alignment : elementBytes(type)));
}

void KernelBuilder::store(Val value, Val pointer) {
  LLVM::StoreOp::create(b, loc, value, pointer, elementBytes(value.getType()));
}

Val KernelBuilder::laneMask(Val count) {
  auto type = VectorType::get({lanes}, b.getI32Type());
  SmallVector<int32_t> numbers(lanes);
  std::iota(numbers.begin(), numbers.end(), 0);
  Value lane = arith::ConstantOp::create(
      b, loc, DenseElementsAttr::get(type, ArrayRef<int32_t>(numbers)));
  Value narrow = arith::TruncIOp::create(b, loc, b.getI32Type(), count);
  Value limit = vector::BroadcastOp::create(b, loc, type, narrow);
  return Val(*this, arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt,
                                          lane, limit));
}

Val KernelBuilder::maskedLoad(Val pointer, Val mask, VectorType type,
                              unsigned alignment) {
  if (!type)
    type = vec();
  Value zero = arith::ConstantOp::create(b, loc, b.getZeroAttr(type));
  return Val(*this, LLVM::MaskedLoadOp::create(
                        b, loc, type, pointer, mask, zero,
                        alignment ? alignment : elementBytes(type)));
}

void KernelBuilder::maskedStore(Val value, Val pointer, Val mask) {
  LLVM::MaskedStoreOp::create(b, loc, value, pointer, mask,
                              elementBytes(value.getType()));
}

Val KernelBuilder::stack(Val elements, Type element) {
  return Val(*this,
             LLVM::AllocaOp::create(b, loc, ptr(), element ? element : f32(),
                                    elements, /*alignment=*/64));
}

Val KernelBuilder::stack(int64_t elements, Type element) {
  return stack(i(elements), element);
}

//===----------------------------------------------------------------------===//
// Control flow
//===----------------------------------------------------------------------===//

void KernelBuilder::forLoop(Val from, Val to, int64_t step,
                            function_ref<void(Val)> body) {
  forLoop(from, to, i(step), body);
}

void KernelBuilder::forLoop(Val from, Val to, Val step,
                            function_ref<void(Val)> body) {
  auto loop = scf::ForOp::create(b, loc, from, to, step);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  body(Val(*this, loop.getInductionVar()));
}

KernelBuilder::Vals KernelBuilder::forLoop(Val from, Val to, int64_t step,
                                           ArrayRef<Val> inits,
                                           function_ref<Vals(Val, Vals)> body) {
  auto loop = scf::ForOp::create(b, loc, from, to, i(step), unwrap(inits));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  Vals results =
      body(Val(*this, loop.getInductionVar()), wrap(loop.getRegionIterArgs()));
  // A loop that carries nothing has its terminator already.
  if (!inits.empty())
    scf::YieldOp::create(b, loc, unwrap(results));
  return wrap(loop.getResults());
}

void KernelBuilder::ifThen(Val condition, function_ref<void()> then,
                           function_ref<void()> otherwise) {
  auto branch = scf::IfOp::create(b, loc, condition, bool(otherwise));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(branch.thenBlock());
  then();
  if (!otherwise)
    return;
  b.setInsertionPointToStart(branch.elseBlock());
  otherwise();
}

KernelBuilder::Vals KernelBuilder::ifElse(Val condition,
                                          function_ref<Vals()> then,
                                          function_ref<Vals()> otherwise) {
  // Types are known only once a side is built: build both in blocks of their
  // own, then move them into the op.
  Region thenRegion, elseRegion;
  auto side = [&](Region &region, function_ref<Vals()> make) {
    OpBuilder::InsertionGuard guard(b);
    b.createBlock(&region);
    Vals values = make();
    scf::YieldOp::create(b, loc, unwrap(values));
    return values;
  };
  Vals values = side(thenRegion, then);
  side(elseRegion, otherwise);
  SmallVector<Type> types =
      llvm::map_to_vector(values, [](Val v) { return v.getType(); });
  auto branch =
      scf::IfOp::create(b, loc, types, Value(condition),
                        /*addThenBlock=*/false, /*addElseBlock=*/false);
  branch.getThenRegion().takeBody(thenRegion);
  branch.getElseRegion().takeBody(elseRegion);
  return wrap(branch.getResults());
}

} // namespace mgq::kernels
