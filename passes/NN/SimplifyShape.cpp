//===- SimplifyShape.cpp - Views that cancel or merge
//-----------------------===//
//
// Exporters spell views in chains. Here chains collapse, so that idioms have
// one form: reshape of reshape and transpose of transpose are one op, a
// transpose that moves only ones is a reshape, a transpose of the last two
// dimensions stands after the reshape of the leading ones (next to the product
// that takes it), a constant index is a slice.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

#include "llvm/ADT/Sequence.h"

using namespace mlir;
using namespace mgq::nn;

namespace {
/// reshape(reshape(x)) -> reshape(x); reshape to the same type -> x.
struct MergeReshapes : OpRewritePattern<ReshapeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReshapeOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getInput().getType() == op.getType()) {
      rewriter.replaceOp(op, op.getInput());
      return success();
    }
    auto inner = op.getInput().getDefiningOp<ReshapeOp>();
    if (!inner)
      return rewriter.notifyMatchFailure(op, "input is not a reshape");
    rewriter.replaceOpWithNewOp<ReshapeOp>(op, op.getType(), inner.getInput());
    return success();
  }
};

/// transpose(transpose(x)) -> transpose(x); a transpose that moves only
/// dimensions of size 1 -> reshape.
struct MergeTransposes : OpRewritePattern<TransposeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(TransposeOp op,
                                PatternRewriter &rewriter) const override {
    ArrayRef<int64_t> outer = op.getPermutation();
    if (auto inner = op.getInput().getDefiningOp<TransposeOp>()) {
      SmallVector<int64_t> joined;
      for (int64_t dim : outer)
        joined.push_back(inner.getPermutation()[dim]);
      rewriter.replaceOpWithNewOp<TransposeOp>(op, inner.getInput(), joined);
      return success();
    }
    auto type = typeOf(op.getInput());
    if (!type.hasStaticShape())
      return failure();
    SmallVector<int64_t> moved;
    for (int64_t dim : outer)
      if (type.getDimSize(dim) != 1)
        moved.push_back(dim);
    if (!llvm::is_sorted(moved))
      return rewriter.notifyMatchFailure(op, "moves elements");
    rewriter.replaceOp(op, reshapeTo(rewriter, op.getLoc(), op.getInput(),
                                     op.getType().getShape()));
    return success();
  }
};

/// Whether `op` swaps the last two dimensions and nothing else.
static bool swapsLastTwo(TransposeOp op) {
  auto permutation = llvm::to_vector(op.getPermutation());
  if (permutation.size() < 2)
    return false;
  std::swap(permutation.back(), permutation[permutation.size() - 2]);
  return llvm::equal(permutation, llvm::seq<int64_t>(0, permutation.size()));
}

/// reshape(transpose(x)) -> transpose(reshape(x)) where the transpose swaps the
/// last two dimensions and the reshape changes leading ones only.
struct SwapAfterReshape : OpRewritePattern<ReshapeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReshapeOp op,
                                PatternRewriter &rewriter) const override {
    auto swap = op.getInput().getDefiningOp<TransposeOp>();
    if (!swap || !swapsLastTwo(swap))
      return rewriter.notifyMatchFailure(op, "input is not a swap");
    auto to = op.getType().getShape();
    auto from = shapeOf(swap.getResult());
    if (to.size() < 2 || to.take_back(2) != from.take_back(2))
      return rewriter.notifyMatchFailure(op, "changes the matrix");
    SmallVector<int64_t> shape(to);
    std::swap(shape.back(), shape[shape.size() - 2]);
    auto permutation =
        llvm::to_vector(llvm::seq<int64_t>(0, int64_t(to.size())));
    std::swap(permutation.back(), permutation[permutation.size() - 2]);
    Value view = reshapeTo(rewriter, op.getLoc(), swap.getInput(), shape);
    rewriter.replaceOpWithNewOp<TransposeOp>(op, view, permutation);
    return success();
  }
};

/// gather by one constant index -> slice, without its dimension.
struct GatherToSlice : OpRewritePattern<GatherOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(GatherOp op,
                                PatternRewriter &rewriter) const override {
    auto index = integerConstant(op.getIndices());
    auto shape = shapeOf(op.getInput());
    int64_t axis = op.getAxis();
    if (!index || index->size() != 1 || !op.getType().hasStaticShape())
      return rewriter.notifyMatchFailure(op, "more than one constant index");
    int64_t start = (*index)[0] < 0 ? (*index)[0] + shape[axis] : (*index)[0];
    if (start < 0 || start >= shape[axis])
      return rewriter.notifyMatchFailure(op, "index is out of range");
    auto transpose = op.getInput().getDefiningOp<TransposeOp>();
    if (!transpose || typeOf(op.getIndices()).getRank() != 0) {
      Value slice = pick(rewriter, op.getLoc(), op.getInput(), axis, start);
      rewriter.replaceOp(
          op, reshapeTo(rewriter, op.getLoc(), slice, op.getType().getShape()));
      return success();
    }
    // Pick before the transpose: the part is moved, not the whole.
    int64_t picked = transpose.getPermutation()[axis];
    Value slice =
        pick(rewriter, op.getLoc(), transpose.getInput(), picked, start);
    SmallVector<int64_t> left(shapeOf(slice)), permutation;
    left.erase(left.begin() + picked);
    for (int64_t dim : transpose.getPermutation())
      if (dim != picked)
        permutation.push_back(dim < picked ? dim : dim - 1);
    Value part = reshapeTo(rewriter, op.getLoc(), slice, left);
    rewriter.replaceOpWithNewOp<TransposeOp>(op, part, permutation);
    return success();
  }

private:
  /// The elements of `input` at `index` of `axis`, which stays as 1.
  static Value pick(OpBuilder &builder, Location loc, Value input, int64_t axis,
                    int64_t index) {
    SmallVector<int64_t> starts(shapeOf(input).size(), 0),
        limits(shapeOf(input)), strides(shapeOf(input).size(), 1);
    starts[axis] = index;
    limits[axis] = index + 1;
    return SliceOp::create(builder, loc, input, starts, limits, strides);
  }
};

/// slice(transpose(x)) that keeps one index of a dimension ->
/// transpose(slice(x)): the part is moved, not the whole.
struct SliceBeforeTranspose : OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(SliceOp op,
                                PatternRewriter &rewriter) const override {
    auto transpose = op.getInput().getDefiningOp<TransposeOp>();
    if (!transpose)
      return rewriter.notifyMatchFailure(op, "input is not a transpose");
    auto from = shapeOf(op.getInput()), to = op.getType().getShape();
    if (!llvm::any_of(llvm::zip_equal(from, to), [](auto dims) {
          return std::get<0>(dims) > 1 && std::get<1>(dims) == 1;
        }))
      return rewriter.notifyMatchFailure(op, "does not pick an index");
    size_t rank = from.size();
    SmallVector<int64_t> starts(rank), limits(rank), strides(rank);
    for (auto [i, dim] : llvm::enumerate(transpose.getPermutation())) {
      starts[dim] = op.getStarts()[i];
      limits[dim] = op.getLimits()[i];
      strides[dim] = op.getStrides()[i];
    }
    Value slice = SliceOp::create(rewriter, op.getLoc(), transpose.getInput(),
                                  starts, limits, strides);
    rewriter.replaceOpWithNewOp<TransposeOp>(op, slice,
                                             transpose.getPermutation());
    return success();
  }
};

/// reshape(transpose(x)) -> transpose(reshape(x)) where the reshape only drops
/// dimensions of size 1: what is left of qkv[i] keeps no trace of the i.
struct DropUnitsBeforeTranspose : OpRewritePattern<ReshapeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReshapeOp op,
                                PatternRewriter &rewriter) const override {
    auto transpose = op.getInput().getDefiningOp<TransposeOp>();
    if (!transpose || !op.getType().hasStaticShape())
      return rewriter.notifyMatchFailure(op, "input is not a transpose");
    auto from = shapeOf(transpose.getResult()), to = op.getType().getShape();
    // Which dimensions of `from` stay: greedily, as `to` is `from` without
    // some ones.
    SmallVector<bool> stays(from.size(), false);
    size_t next = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      if (next < to.size() && from[i] == to[next]) {
        stays[i] = true;
        ++next;
      } else if (from[i] != 1) {
        return rewriter.notifyMatchFailure(op, "drops more than ones");
      }
    }
    if (next != to.size() || to.size() == from.size())
      return rewriter.notifyMatchFailure(op, "does not drop ones");
    auto input = shapeOf(transpose.getInput());
    SmallVector<bool> inputStays(input.size(), false);
    for (auto [i, dim] : llvm::enumerate(transpose.getPermutation()))
      inputStays[dim] = stays[i];
    SmallVector<int64_t> position(input.size(), -1), shape, permutation;
    for (size_t dim = 0; dim < input.size(); ++dim)
      if (inputStays[dim]) {
        position[dim] = shape.size();
        shape.push_back(input[dim]);
      }
    for (auto [i, dim] : llvm::enumerate(transpose.getPermutation()))
      if (stays[i])
        permutation.push_back(position[dim]);
    Value view = reshapeTo(rewriter, op.getLoc(), transpose.getInput(), shape);
    rewriter.replaceOpWithNewOp<TransposeOp>(op, view, permutation);
    return success();
  }
};

/// slice of everything -> its input.
struct DropSlice : OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(SliceOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getType() != op.getInput().getType() ||
        llvm::any_of(op.getStrides(), [](int64_t s) { return s != 1; }))
      return rewriter.notifyMatchFailure(op, "takes a part");
    rewriter.replaceOp(op, op.getInput());
    return success();
  }
};

/// broadcast to the same type -> its input; broadcast of broadcast -> one.
struct MergeBroadcasts : OpRewritePattern<BroadcastOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BroadcastOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getType() == op.getInput().getType()) {
      rewriter.replaceOp(op, op.getInput());
      return success();
    }
    auto inner = op.getInput().getDefiningOp<BroadcastOp>();
    if (!inner)
      return rewriter.notifyMatchFailure(op, "input is not a broadcast");
    rewriter.replaceOpWithNewOp<BroadcastOp>(op, op.getType(),
                                             inner.getInput());
    return success();
  }
};

/// Elementwise ops broadcast by themselves: an explicit broadcast of an operand
/// goes where the result has its shape anyway.
template <typename Op>
struct DropOperandBroadcast : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;

  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    for (OpOperand &operand : op->getOpOperands()) {
      auto broadcast = operand.get().template getDefiningOp<BroadcastOp>();
      if (!broadcast)
        continue;
      SmallVector<int64_t> shape(shapeOf(broadcast.getInput()));
      for (OpOperand &other : op->getOpOperands())
        if (&other != &operand) {
          auto joined = broadcastShapes(shape, shapeOf(other.get()));
          if (failed(joined))
            return failure();
          shape = *joined;
        }
      if (ArrayRef<int64_t>(shape) != shapeOf(op.getResult()))
        continue;
      rewriter.modifyOpInPlace(op, [&] { operand.set(broadcast.getInput()); });
      return success();
    }
    return rewriter.notifyMatchFailure(op, "needs its broadcasts");
  }
};

/// cast to the same type -> its input.
struct DropCast : OpRewritePattern<CastOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(CastOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getType() != op.getInput().getType())
      return rewriter.notifyMatchFailure(op, "converts");
    rewriter.replaceOp(op, op.getInput());
    return success();
  }
};

/// cast(view(w)) -> view(cast(w)) for a parameter that is stored narrower than
/// it is used: idioms look for views, and find them as if w were stored wide.
struct WidenBeforeViews : OpRewritePattern<CastOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(CastOp op,
                                PatternRewriter &rewriter) const override {
    Operation *view = op.getInput().getDefiningOp();
    if (!isa_and_nonnull<ReshapeOp, TransposeOp, BroadcastOp, SliceOp>(view) ||
        !isWidening(op) || !isViewOfParam(view))
      return rewriter.notifyMatchFailure(op, "widens no view of a parameter");
    Value source = view->getOperand(0);
    Type element = op.getType().getElementType();
    Value wide = CastOp::create(rewriter, op.getLoc(),
                                typeOf(source).clone(element), source);
    Operation *moved = rewriter.clone(*view);
    rewriter.modifyOpInPlace(moved, [&] {
      moved->setOperand(0, wide);
      moved->getResult(0).setType(op.getType());
    });
    rewriter.replaceOp(op, moved);
    return success();
  }

private:
  static bool isWidening(CastOp op) {
    auto from = dyn_cast<FloatType>(typeOf(op.getInput()).getElementType());
    auto to = dyn_cast<FloatType>(op.getType().getElementType());
    return from && to && from.getWidth() < to.getWidth();
  }

  static bool isViewOfParam(Operation *op) {
    while (isa_and_nonnull<ReshapeOp, TransposeOp, BroadcastOp, SliceOp>(op))
      op = op->getOperand(0).getDefiningOp();
    return isa_and_nonnull<ParamRefOp>(op);
  }
};

/// x * 1, x / 1 -> x.
struct DropScale : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    auto scaled = matchScaled(op.getResult());
    if (!scaled || scaled->factor != 1)
      return rewriter.notifyMatchFailure(op, "changes values");
    rewriter.replaceOp(op, scaled->input);
    return success();
  }
};
} // namespace

void mgq::nn::populateShapePatterns(RewritePatternSet &patterns) {
  patterns.add<MergeReshapes, MergeTransposes, SwapAfterReshape, GatherToSlice,
               SliceBeforeTranspose, DropUnitsBeforeTranspose, DropSlice,
               MergeBroadcasts, DropOperandBroadcast<BinaryOp>,
               DropOperandBroadcast<SelectOp>, DropOperandBroadcast<CompareOp>,
               DropCast, WidenBeforeViews, DropScale>(patterns.getContext());
}
