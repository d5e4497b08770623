//===- SimplifyMaskedScatter.cpp - Image tokens into text
//-------------------===//
//
// torch.masked_scatter, and assignment by a boolean index, arrive as
//
//   indices = transpose(non_zero(mask))                 [n, rank], n unknown
//   updates = dynamic_slice(reshape(source, [-1]), n)
//   result  = scatter_nd input, indices, updates
//
// The mask is one per row: broadcast along the rest. So the result is
// masked_scatter input, mask, source with the source cut into rows; n is never
// needed.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

using namespace mlir;
using namespace mgq::nn;

/// The boolean tensor whose true elements `indices` lists, or null.
static Value matchIndices(Value indices) {
  auto transpose = indices.getDefiningOp<TransposeOp>();
  if (!transpose || transpose.getPermutation() != ArrayRef<int64_t>{1, 0})
    return nullptr;
  auto nonZero = transpose.getInput().getDefiningOp<NonZeroOp>();
  return nonZero ? nonZero.getInput() : Value();
}

/// Whether `value` is the number of rows of `indices`: an element of its shape.
static bool isRowCount(Value value, Value indices) {
  for (int depth = 0; depth < 8; ++depth) {
    Operation *op = value.getDefiningOp();
    if (auto shape = dyn_cast_or_null<ShapeOp>(op)) {
      Value shaped = shape.getInput();
      // Of the indices or of non_zero before its transpose.
      auto transpose = indices.getDefiningOp<TransposeOp>();
      return shaped == indices || shaped == transpose.getInput();
    }
    if (!isa_and_nonnull<ReshapeOp, CastOp, SliceOp, GatherOp>(op))
      return false;
    value = op->getOperand(0);
  }
  return false;
}

/// The updates behind a slice of the first n along dimension 0, where n is the
/// number of rows of `indices`.
static Value matchUpdates(Value updates, Value indices) {
  while (auto reshape = updates.getDefiningOp<ReshapeOp>()) {
    if (typeOf(reshape.getInput()).hasStaticShape() &&
        typeOf(updates).hasStaticShape())
      break;
    updates = reshape.getInput();
  }
  auto slice = updates.getDefiningOp<DynamicSliceOp>();
  if (!slice)
    return updates;
  auto is = [](Value value, int64_t expected) {
    auto elements = integerConstant(value);
    return elements && elements->size() == 1 && (*elements)[0] == expected;
  };
  if (!is(slice.getStarts(), 0) || !is(slice.getAxes(), 0) ||
      !is(slice.getSteps(), 1) || !isRowCount(slice.getEnds(), indices))
    return nullptr;
  return slice.getInput();
}

/// How many leading dimensions a mask has elements for: it is the same along
/// the others, by a broadcast from 1. Sets `mask` to what was broadcast.
static size_t ownDims(Value &mask, ArrayRef<int64_t> shape) {
  size_t own = shapeOf(mask).size();
  if (own < shape.size())
    return own;
  while (auto broadcast = mask.getDefiningOp<BroadcastOp>())
    mask = broadcast.getInput();
  // Aligned to the right, as in NumPy: the ones at the end are the row.
  auto from = shapeOf(mask);
  while (own > 0 && !from.empty() && from.back() == 1) {
    from = from.drop_back();
    --own;
  }
  return from == shape.take_front(own) ? own : shape.size();
}

namespace {
struct MaskedScatterFromScatterND : OpRewritePattern<ScatterNDOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ScatterNDOp op,
                                PatternRewriter &rewriter) const override {
    Value whole = matchIndices(op.getIndices());
    if (!whole || op.getKind() != ScatterKind::Replace ||
        op.getBatchDims() != 0 || !op.getType().hasStaticShape())
      return rewriter.notifyMatchFailure(op, "indices are not a mask's");
    auto shape = op.getType().getShape();
    if (shapeOf(whole) != shape.take_front(shapeOf(whole).size()))
      return rewriter.notifyMatchFailure(op, "mask does not cover the input");
    Value mask = whole;
    size_t own = ownDims(mask, shape);
    if (own == shape.size())
      mask = whole;
    int64_t width = 1;
    for (int64_t dim : shape.drop_front(own))
      width *= dim;
    Value source = matchUpdates(op.getUpdates(), op.getIndices());
    if (!source || !typeOf(source).hasStaticShape() ||
        typeOf(source).getNumElements() % width != 0)
      return rewriter.notifyMatchFailure(op, "source is not whole rows");

    Location loc = op.getLoc();
    mask = reshapeTo(rewriter, loc, mask, shape.take_front(own));
    if (!typeOf(mask).getElementType().isInteger(1))
      mask = CastOp::create(rewriter, loc,
                            typeOf(mask).clone(rewriter.getI1Type()), mask);
    SmallVector<int64_t> rows{typeOf(source).getNumElements() / width};
    llvm::append_range(rows, shape.drop_front(own));
    source = reshapeTo(rewriter, loc, source, rows);
    rewriter.replaceOpWithNewOp<MaskedScatterOp>(op, op.getInput(), mask,
                                                 source);
    return success();
  }
};
} // namespace

void mgq::nn::populateMaskedScatterPatterns(RewritePatternSet &patterns) {
  patterns.add<MaskedScatterFromScatterND>(patterns.getContext());
}
