//===- TestDropWait.cpp - A program with one wait less --------------------===//

#include "passes/Pipe/Passes.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_TESTDROPWAITPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

/// Whether an operand is a wait that can be left out. Gathers wait for each
/// other by their order on a stream, what computes for a message of the rank to
/// itself, which is a copy, too; the optimizer waits for reductions anyway.
static bool isWait(OpOperand &operand, int64_t stage) {
  Operation *earlier = operand.get().getDefiningOp();
  if (isa<AllGatherOp>(operand.getOwner()))
    return isa_and_nonnull<ForwardOp, EvaluateOp>(earlier);
  if (auto send = dyn_cast_or_null<SendOp>(earlier))
    return int64_t(send.getPeer()) != stage;
  if (auto recv = dyn_cast_or_null<RecvOp>(earlier))
    return int64_t(recv.getPeer()) != stage;
  if (isa_and_nonnull<AllReduceOp>(earlier))
    return !isa<OptimizerOp>(operand.getOwner());
  return isa_and_nonnull<AllGatherOp>(earlier);
}

namespace {
struct TestDropWaitPass
    : mgq::pipe::impl::TestDropWaitPassBase<TestDropWaitPass> {
  using Base::Base;

  void runOnOperation() override {
    int64_t count = 0;
    OpOperand *dropped = nullptr;
    for (RankOp rank : getOperation().getOps<RankOp>())
      rank.getBody().walk([&](Operation *op) {
        for (OpOperand &operand : op->getOpOperands())
          if (isWait(operand, rank.getStage()) && count++ == number)
            dropped = &operand;
      });
    if (!dropped) {
      getOperation().emitError("has ") << count << " waits";
      return signalPassFailure();
    }
    Operation *op = dropped->getOwner();
    op->emitRemark("does not wait for ")
        << *dropped->get().getDefiningOp() << " (wait " << number.getValue()
        << " of " << count << ")";
    // What waits by its place begins sooner.
    if (isa<AllGatherOp>(op))
      op->moveBefore(dropped->get().getDefiningOp());
    op->eraseOperand(dropped->getOperandNumber());
  }
};
} // namespace
