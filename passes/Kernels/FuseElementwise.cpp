//===- FuseElementwise.cpp - Fewer passes over memory ---------------------===//
//
// In: linalg.generic ops on tensors as convert-nn-to-linalg leaves them. Out:
// chains of elementwise ops are one op; an elementwise producer is part of the
// reduction that reads it. A value with several users is computed once, unless
// it is only a view of something smaller (a broadcast).
//
// linalg's own fusion does the work; this file decides.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_FUSEELEMENTWISEPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;

/// More operands than this cost more in address registers than they save.
static constexpr unsigned kMaxOperands = 10;

static int64_t iterations(linalg::LinalgOp op) {
  int64_t count = 1;
  for (int64_t range : op.getStaticLoopRanges())
    count *= range;
  return count;
}

/// Whether repeating the body costs about a load: moves and conversions.
static bool isCheap(linalg::GenericOp op) {
  return llvm::all_of(op.getBody()->without_terminator(), [](Operation &inner) {
    return isa<arith::ExtFOp, arith::TruncFOp, arith::MulFOp, arith::AddFOp,
               arith::SubFOp, arith::ExtSIOp, arith::ExtUIOp, arith::TruncIOp,
               arith::SIToFPOp, arith::CmpIOp, arith::AndIOp, arith::AddIOp>(
        inner);
  });
}

/// Whether all inputs are smaller than the result: nothing is saved by storing
/// it.
static bool isExpansion(linalg::GenericOp op) {
  int64_t result = cast<ShapedType>(op.getResult(0).getType()).getNumElements();
  return llvm::all_of(op.getDpsInputs(), [&](Value input) {
    auto type = dyn_cast<ShapedType>(input.getType());
    return !type || type.getNumElements() < result;
  });
}

static bool shouldFuse(OpOperand *operand) {
  auto producer = operand->get().getDefiningOp<linalg::GenericOp>();
  auto consumer = dyn_cast<linalg::GenericOp>(operand->getOwner());
  if (!producer || !consumer)
    return false;
  if (producer->getNumOperands() + consumer->getNumOperands() > kMaxOperands)
    return false;
  bool cheap = isCheap(producer);
  if (!operand->get().hasOneUse())
    return cheap && isExpansion(producer);
  return cheap || iterations(producer) >= iterations(consumer);
}

namespace {
struct FuseElementwisePass
    : mgq::kernels::impl::FuseElementwisePassBase<FuseElementwisePass> {
  void runOnOperation() override {
    MLIRContext *context = &getContext();
    RewritePatternSet patterns(context);
    linalg::populateElementwiseOpsFusionPatterns(patterns, shouldFuse);
    linalg::populateEraseUnusedOperandsAndResultsPatterns(patterns);
    linalg::GenericOp::getCanonicalizationPatterns(patterns, context);
    tensor::ExpandShapeOp::getCanonicalizationPatterns(patterns, context);
    tensor::CollapseShapeOp::getCanonicalizationPatterns(patterns, context);
    // A reshape between two elementwise ops moves out of the way.
    auto betweenElementwise = [](OpOperand *operand) {
      Operation *producer = operand->get().getDefiningOp();
      return producer && producer->hasOneUse() && shouldFuseReshape(operand);
    };
    linalg::populateFoldReshapeOpsByExpansionPatterns(patterns,
                                                      betweenElementwise);
    GreedyRewriteConfig config;
    config.setUseTopDownTraversal(true);
    if (failed(
            applyPatternsGreedily(getOperation(), std::move(patterns), config)))
      signalPassFailure();
  }

  /// Whether moving a reshape over a generic brings two generics together.
  static bool shouldFuseReshape(OpOperand *operand) {
    Operation *producer = operand->get().getDefiningOp();
    if (isa<tensor::CollapseShapeOp, tensor::ExpandShapeOp>(producer)) {
      auto source = producer->getOperand(0).getDefiningOp<linalg::GenericOp>();
      return source && source->hasOneUse() &&
             isa<linalg::GenericOp>(operand->getOwner());
    }
    return false;
  }
};
} // namespace
