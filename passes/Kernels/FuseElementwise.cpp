//===- FuseElementwise.cpp - Fewer passes over memory ---------------------===//
//
// In: linalg.generic ops on tensors as convert-nn-to-linalg leaves them. Out:
// chains of elementwise ops are one op; an elementwise producer is part of the
// reduction that reads it. A value with several users is computed once, unless
// it is only a view of something smaller (a broadcast, a weight stored as
// bf16).
//
// linalg's own fusion does the work; this file decides. At the end, an
// elementwise op whose input nobody else reads writes over that input, so that
// a product and what follows it share one buffer.
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

/// Whether `from` has fewer elements than `to`, or narrower floats.
static bool isSmaller(Type from, ShapedType to) {
  auto shaped = dyn_cast<ShapedType>(from);
  if (!shaped || shaped.getNumElements() < to.getNumElements())
    return true;
  auto narrow = dyn_cast<FloatType>(shaped.getElementType());
  auto wide = dyn_cast<FloatType>(to.getElementType());
  return shaped.getNumElements() == to.getNumElements() && narrow && wide &&
         narrow.getWidth() < wide.getWidth();
}

/// Whether all inputs are smaller than the result: nothing is saved by storing
/// it.
static bool isExpansion(linalg::GenericOp op) {
  auto result = cast<ShapedType>(op.getResult(0).getType());
  return llvm::all_of(op.getDpsInputs(), [&](Value input) {
    return isSmaller(input.getType(), result);
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

/// Whether a generic reads a reshape of something that is computed for it
/// alone: without the reshape both fuse or share a buffer.
template <typename ReshapeOp>
static bool readsReshape(OpOperand *operand) {
  auto reshape = operand->get().getDefiningOp<ReshapeOp>();
  if (!reshape || !reshape->hasOneUse() ||
      !isa<linalg::GenericOp>(operand->getOwner()))
    return false;
  Operation *source = reshape->getOperand(0).getDefiningOp();
  return isa_and_nonnull<linalg::GenericOp, mgq::kern::MatmulOp,
                         mgq::kern::LoopsOp>(source) &&
         source->hasOneUse();
}

/// An input that `op` may overwrite: computed here, read by nobody else, of the
/// result's type, at the same place.
static OpOperand *findOverwritable(linalg::GenericOp op) {
  Value init = op.getDpsInits().front();
  for (OpOperand *input : op.getDpsInputOperands()) {
    Value value = input->get();
    Operation *producer = value.getDefiningOp();
    if (!isa_and_nonnull<linalg::LinalgOp, mgq::kern::MatmulOp,
                         mgq::kern::LoopsOp>(producer))
      continue;
    if (value.getType() == init.getType() && value.hasOneUse() &&
        op.getMatchingIndexingMap(input).isIdentity())
      return input;
  }
  return nullptr;
}

/// Makes an input of an elementwise op its destination.
static void overwriteInput(linalg::GenericOp op) {
  if (op.getNumResults() != 1 || op.getNumReductionLoops() != 0 ||
      !op.getDpsInits().front().getDefiningOp<tensor::EmptyOp>() ||
      !op.getIndexingMapsArray().back().isIdentity())
    return;
  OpOperand *input = findOverwritable(op);
  if (!input)
    return;
  unsigned number = input->getOperandNumber();
  BlockArgument argument = op.getMatchingBlockArgument(input);
  argument.replaceAllUsesWith(op.getRegionOutputArgs().front());
  SmallVector<Value> inputs(op.getDpsInputs());
  SmallVector<AffineMap> maps = op.getIndexingMapsArray();
  Value destination = inputs[number];
  inputs.erase(inputs.begin() + number);
  maps.erase(maps.begin() + number);
  OpBuilder builder(op);
  auto replacement = linalg::GenericOp::create(
      builder, op.getLoc(), op.getResultTypes(), inputs,
      ValueRange(destination), maps, op.getIteratorTypesArray());
  replacement.getRegion().takeBody(op.getRegion());
  replacement.getBody()->eraseArgument(number);
  op.replaceAllUsesWith(replacement);
  op.erase();
}

/// Patterns of both rounds: fusion, and what tidies up after it.
static void addFusionPatterns(RewritePatternSet &patterns) {
  MLIRContext *context = patterns.getContext();
  linalg::populateElementwiseOpsFusionPatterns(patterns, shouldFuse);
  linalg::populateEraseUnusedOperandsAndResultsPatterns(patterns);
  linalg::GenericOp::getCanonicalizationPatterns(patterns, context);
  tensor::ExpandShapeOp::getCanonicalizationPatterns(patterns, context);
  tensor::CollapseShapeOp::getCanonicalizationPatterns(patterns, context);
}

/// A reshape between two ops moves behind the second. Collapsing and expanding
/// ones move in rounds of their own: moving one over an op puts the opposite
/// one before the op's other operands.
static LogicalResult fuse(ModuleOp module) {
  GreedyRewriteConfig config;
  config.setUseTopDownTraversal(true);
  RewritePatternSet expand(module.getContext());
  addFusionPatterns(expand);
  linalg::populateFoldReshapeOpsByExpansionPatterns(
      expand, readsReshape<tensor::CollapseShapeOp>);
  if (failed(applyPatternsGreedily(module, std::move(expand), config)))
    return failure();
  RewritePatternSet collapse(module.getContext());
  addFusionPatterns(collapse);
  linalg::populateFoldReshapeOpsByCollapsingPatterns(
      collapse, readsReshape<tensor::ExpandShapeOp>);
  return applyPatternsGreedily(module, std::move(collapse), config);
}

namespace {
struct FuseElementwisePass
    : mgq::kernels::impl::FuseElementwisePassBase<FuseElementwisePass> {
  void runOnOperation() override {
    if (failed(fuse(getOperation())))
      return signalPassFailure();
    SmallVector<linalg::GenericOp> ops;
    getOperation().walk([&](linalg::GenericOp op) { ops.push_back(op); });
    llvm::for_each(ops, overwriteInput);
  }
};
} // namespace
