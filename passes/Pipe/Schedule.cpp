//===- Schedule.cpp - The program of each rank ----------------------------===//
//
// In: calls with stages. Out: one pipe.rank per stage with the ops of a step:
//
//   F0 B0 F1 B1 ... optimizer        (one stage)
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_SCHEDULEPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

/// Appends forward and backward of each micro-batch, each after the one before.
static void buildProgram(OpBuilder &builder, Location loc,
                         int64_t microBatches) {
  auto event = EventType::get(builder.getContext());
  Value last;
  auto after = [&] { return last ? ValueRange(last) : ValueRange(); };
  for (int64_t i = 0; i < microBatches; ++i) {
    last = ForwardOp::create(builder, loc, event, /*chunk=*/0, i, /*slot=*/0,
                             after());
    last = BackwardOp::create(builder, loc, event, /*chunk=*/0, i, /*slot=*/0,
                              after());
  }
  OptimizerOp::create(builder, loc, event, after());
}

namespace {
struct SchedulePass : mgq::pipe::impl::SchedulePassBase<SchedulePass> {
  using SchedulePassBase::SchedulePassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (microBatches < 1) {
      module.emitError("has ") << microBatches.getValue()
                               << " micro-batches a step, expected 1 or more";
      return signalPassFailure();
    }
    OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
    auto rank = RankOp::create(builder, module.getLoc(), "r0", /*stage=*/0,
                               /*memory=*/DenseI64ArrayAttr());
    builder.createBlock(&rank.getBody());
    buildProgram(builder, module.getLoc(), microBatches);
  }
};
} // namespace
