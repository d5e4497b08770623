//===- TestDropWait.cpp - A program with one wait less --------------------===//

#include "passes/Pipe/Passes.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_TESTDROPWAITPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

/// Whether the runtime realises an operand as a wait of its own. Sends and
/// reductions that begin after computing ops do by their place in the program;
/// gathers wait for each other by their order on a stream.
static bool isWait(OpOperand &operand) {
  Operation *earlier = operand.get().getDefiningOp();
  if (isa<AllGatherOp>(operand.getOwner()))
    return isa_and_nonnull<ForwardOp, EvaluateOp>(earlier);
  return isa_and_nonnull<SendOp, RecvOp, AllReduceOp, AllGatherOp>(earlier);
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
          if (isWait(operand) && count++ == number)
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
