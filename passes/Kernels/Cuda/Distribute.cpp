//===- Distribute.cpp - Rows of a kernel on the threads of a block --------===//
//
// Sums: each lane sums its part from the neutral value; the lanes of a warp
// exchange their sums in a butterfly (xor 16, 8, 4, 2, 1), which leaves the
// same bits in all; warps of a block leave theirs in shared memory, and each
// thread adds them in order. So the order depends on the number of lanes only,
// which depends on shapes only.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Distribute.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mgq::kernels;

static Value constantI32(OpBuilder &b, Location loc, int64_t value) {
  return arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(value));
}

/// The value that `combiner` leaves everything as it is with.
static Value neutralOf(OpBuilder &b, Operation *combiner) {
  auto value = arith::getNeutralElement(combiner);
  // Of maximum and minimum, arith gives NaN or the largest finite numbers to
  // some; infinity is right for all.
  if (isa<arith::MaximumFOp, arith::MinimumFOp>(combiner)) {
    auto type = cast<FloatType>(combiner->getResult(0).getType());
    value =
        FloatAttr::get(type, APFloat::getInf(type.getFloatSemantics(),
                                             isa<arith::MaximumFOp>(combiner)));
  }
  return arith::ConstantOp::create(b, combiner->getLoc(), *value);
}

/// The same combination of other values. Its order is fixed: all lanes must get
/// the same bits.
static Value combine(OpBuilder &b, Operation *combiner, Value x, Value y) {
  Operation *clone = b.clone(*combiner);
  clone->setOperands({x, y});
  if (auto add = dyn_cast<arith::AddFOp>(clone))
    add.setFastmath(arith::FastMathFlags::none);
  return clone->getResult(0);
}

/// 32 bits from the lane whose number differs in the bits `mask`.
static Value exchangeWord(OpBuilder &b, Location loc, Value word,
                          int64_t mask) {
  return NVVM::ShflOp::create(b, loc, word.getType(), constantI32(b, loc, -1),
                              word, constantI32(b, loc, mask),
                              constantI32(b, loc, kWarp - 1),
                              NVVM::ShflKind::bfly, UnitAttr());
}

/// A scalar of any type from that lane.
static Value exchange(OpBuilder &b, Location loc, Value value, int64_t mask) {
  Type type = value.getType(), i32 = b.getI32Type(), i64 = b.getI64Type();
  if (type.isF32() || type.isInteger(32))
    return exchangeWord(b, loc, value, mask);
  if (type.isIndex()) {
    Value wide = arith::IndexCastOp::create(b, loc, i64, value);
    return arith::IndexCastOp::create(b, loc, type,
                                      exchange(b, loc, wide, mask));
  }
  if (type.isF64()) {
    Value bits = arith::BitcastOp::create(b, loc, i64, value);
    return arith::BitcastOp::create(b, loc, type, exchange(b, loc, bits, mask));
  }
  if (type.isInteger(64)) {
    Value shift = arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(32));
    Value low = arith::TruncIOp::create(b, loc, i32, value);
    Value high = arith::TruncIOp::create(
        b, loc, i32, arith::ShRUIOp::create(b, loc, value, shift));
    low = arith::ExtUIOp::create(b, loc, i64, exchangeWord(b, loc, low, mask));
    high =
        arith::ExtUIOp::create(b, loc, i64, exchangeWord(b, loc, high, mask));
    return arith::OrIOp::create(b, loc, low,
                                arith::ShLIOp::create(b, loc, high, shift));
  }
  // Narrow integers.
  Value wide = arith::ExtUIOp::create(b, loc, i32, value);
  return arith::TruncIOp::create(b, loc, type,
                                 exchangeWord(b, loc, wide, mask));
}

namespace {
/// Rewrites a row by a plan.
class Distributor {
public:
  Distributor(const LanePlan &plan, Value lane, Value thread,
              llvm::function_ref<Value(Type, int64_t)> makeShared)
      : plan(plan), lane(lane), thread(thread), makeShared(makeShared),
        b(lane.getContext()) {}

  void cut(const LaneLoop &cut);
  void wait(Operation *before);
  void storeOnce(Operation *store);

private:
  Value total(Operation *combiner, Value part);
  Value acrossWarps(Operation *combiner, Value part);
  void barrier(Location loc);

  const LanePlan &plan;
  Value lane, thread;
  llvm::function_ref<Value(Type, int64_t)> makeShared;
  OpBuilder b;
};
} // namespace

void Distributor::barrier(Location loc) {
  if (plan.lanes > kWarp)
    gpu::BarrierOp::create(b, loc);
  else
    NVVM::SyncWarpOp::create(b, loc, constantI32(b, loc, -1));
}

void Distributor::wait(Operation *before) {
  b.setInsertionPoint(before);
  barrier(before->getLoc());
}

void Distributor::storeOnce(Operation *store) {
  b.setInsertionPoint(store);
  Location loc = store->getLoc();
  Value zero = arith::ConstantIndexOp::create(b, loc, 0);
  Value first =
      arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, lane, zero);
  auto branch = scf::IfOp::create(b, loc, first, /*withElseRegion=*/false);
  store->moveBefore(branch.thenBlock()->getTerminator());
}

/// Adds the sums of a block's warps, which lie in shared memory.
Value Distributor::acrossWarps(Operation *combiner, Value part) {
  Location loc = combiner->getLoc();
  int64_t warps = plan.lanes / kWarp;
  bool asIndex = part.getType().isIndex();
  if (asIndex)
    part = arith::IndexCastOp::create(b, loc, b.getI64Type(), part);
  Value shared = makeShared(part.getType(), warps);
  auto constant = [&](int64_t value) -> Value {
    return arith::ConstantIndexOp::create(b, loc, value);
  };
  Value warp = arith::DivUIOp::create(b, loc, thread, constant(kWarp));
  Value inWarp = arith::RemUIOp::create(b, loc, thread, constant(kWarp));
  Value first = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, inWarp,
                                      constant(0));
  auto branch = scf::IfOp::create(b, loc, first, /*withElseRegion=*/false);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPoint(branch.thenBlock()->getTerminator());
    memref::StoreOp::create(b, loc, part, shared, warp);
  }
  gpu::BarrierOp::create(b, loc);
  auto at = [&](int64_t i) -> Value {
    Value value = memref::LoadOp::create(b, loc, shared, constant(i));
    if (asIndex)
      value = arith::IndexCastOp::create(b, loc, b.getIndexType(), value);
    return value;
  };
  Value sum = at(0);
  for (int64_t i = 1; i < warps; ++i)
    sum = combine(b, combiner, sum, at(i));
  return sum;
}

Value Distributor::total(Operation *combiner, Value part) {
  for (int64_t mask = kWarp / 2; mask > 0; mask /= 2)
    part =
        combine(b, combiner, part, exchange(b, combiner->getLoc(), part, mask));
  return plan.lanes > kWarp ? acrossWarps(combiner, part) : part;
}

void mgq::kernels::groupIterations(scf::ForOp loop, int64_t count) {
  if (count == 1)
    return;
  OpBuilder b = OpBuilder::atBlockBegin(loop.getBody());
  Location loc = loop.getLoc();
  auto constant = [&](int64_t value) -> Value {
    return arith::ConstantIndexOp::create(b, loc, value);
  };
  SmallVector<Operation *> ops;
  for (Operation &op : loop.getBody()->without_terminator())
    ops.push_back(&op);
  Value iteration = loop.getInductionVar();
  auto inner = scf::ForOp::create(b, loc, constant(0), constant(count),
                                  constant(1), loop.getRegionIterArgs());
  Block *body = inner.getBody();
  if (loop.getNumRegionIterArgs() == 0)
    body->getTerminator()->erase();
  b.setInsertionPointToStart(body);
  auto sum = arith::AddIOp::create(b, loc, iteration, inner.getInductionVar());
  iteration.replaceAllUsesExcept(sum, sum);
  for (auto [outer, own] :
       llvm::zip_equal(loop.getRegionIterArgs(), inner.getRegionIterArgs()))
    outer.replaceAllUsesExcept(own, inner);
  for (Operation *op : ops)
    op->moveBefore(body, body->end());
  auto yield = cast<scf::YieldOp>(loop.getBody()->getTerminator());
  b.setInsertionPointToEnd(body);
  scf::YieldOp::create(b, loc, yield.getOperands());
  yield->setOperands(inner.getResults());
}

void Distributor::cut(const LaneLoop &cut) {
  scf::ForOp loop = cut.loop;
  Location loc = loop.getLoc();
  b.setInsertionPoint(loop);
  groupIterations(loop, plan.vector);
  Value first = lane;
  if (plan.vector > 1)
    first = arith::MulIOp::create(
        b, loc, lane, arith::ConstantIndexOp::create(b, loc, plan.vector));
  loop.setLowerBound(
      arith::AddIOp::create(b, loc, loop.getLowerBound(), first));
  loop.setStep(
      arith::ConstantIndexOp::create(b, loc, plan.lanes * plan.vector));
  for (const LaneSum &sum : cut.sums) {
    b.setInsertionPoint(loop);
    OpOperand &init = loop.getInitArgsMutable()[sum.index];
    Value start = init.get();
    init.set(neutralOf(b, sum.combiner));
    b.setInsertionPointAfter(loop);
    Value part = loop.getResult(sum.index);
    SmallVector<OpOperand *> uses;
    for (OpOperand &use : part.getUses())
      uses.push_back(&use);
    Value result = combine(b, sum.combiner, start, total(sum.combiner, part));
    for (OpOperand *use : uses)
      use->set(result);
    // The next iteration of a loop around writes the shared buffer again.
    if (plan.lanes > kWarp && loop->getParentOfType<scf::ForOp>())
      gpu::BarrierOp::create(b, loc);
  }
}

void mgq::kernels::distributeRow(
    const LanePlan &plan, Value lane, Value thread,
    llvm::function_ref<Value(Type, int64_t)> makeShared) {
  if (plan.lanes == 1)
    return;
  Distributor distributor(plan, lane, thread, makeShared);
  for (Operation *op : plan.barriers)
    distributor.wait(op);
  for (Operation *store : plan.uniformStores)
    distributor.storeOnce(store);
  for (auto &entry : plan.loops)
    distributor.cut(entry.second);
}
