//===- TestDropWait.cpp - A program with one wait less --------------------===//

#include "passes/Pipe/Passes.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_TESTDROPWAITPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

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
          if (isa_and_nonnull<SendOp, RecvOp, AllReduceOp, AllGatherOp>(
                  operand.get().getDefiningOp()))
            if (count++ == number)
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
    op->eraseOperand(dropped->getOperandNumber());
  }
};
} // namespace
