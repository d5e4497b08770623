//===- SimplifyLinear.cpp - Products as matmul
//------------------------------===//
//
//   x @ transpose(W)                   -> matmul x, W transpose_b
//   reshape(reshape(x) @ W [+ b])      -> matmul x, W [+ b]  (Conv1D's Gemm)
//   conv, stride = window, no padding  -> matmul over patches
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

#include "llvm/ADT/Sequence.h"

using namespace mlir;
using namespace mgq::nn;

namespace {
/// A transpose of an operand's last two dimensions becomes a flag; where they
/// come from elsewhere too (heads of k^T), only the swap does.
struct FoldTransposeIntoMatmul : OpRewritePattern<MatmulOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(MatmulOp op,
                                PatternRewriter &rewriter) const override {
    Value lhs = op.getLhs(), rhs = op.getRhs();
    bool transposeA = op.getTransposeA(), transposeB = op.getTransposeB();
    bool changed = unswap(rewriter, lhs, transposeA);
    changed |= unswap(rewriter, rhs, transposeB);
    if (!changed)
      return rewriter.notifyMatchFailure(op, "no operand is swapped");
    rewriter.replaceOpWithNewOp<MatmulOp>(op, lhs, rhs, transposeA, transposeB);
    return success();
  }

private:
  static bool unswap(PatternRewriter &rewriter, Value &operand, bool &flag) {
    auto transpose = operand.getDefiningOp<TransposeOp>();
    if (!transpose)
      return false;
    SmallVector<int64_t> permutation(transpose.getPermutation());
    int64_t &last = permutation.back();
    int64_t &before = permutation[permutation.size() - 2];
    if (before < last)
      return false;
    std::swap(last, before);
    flag = !flag;
    operand = transpose.getInput();
    if (!llvm::is_sorted(permutation))
      operand = TransposeOp::create(rewriter, transpose.getLoc(), operand,
                                    permutation);
    return true;
  }
};

/// The rows of `value` before a reshape merged leading dimensions, or null:
/// reshape [a, b, c] to [a * b, c].
static Value beforeMergedRows(Value value) {
  auto reshape = value.getDefiningOp<ReshapeOp>();
  if (!reshape || shapeOf(value).size() != 2 ||
      shapeOf(reshape.getInput()).size() < 3 ||
      shapeOf(reshape.getInput()).back() != shapeOf(value).back())
    return nullptr;
  return reshape.getInput();
}

/// reshape(matmul(reshape(x), w)) -> matmul(x, w), also with a bias added in
/// between, where the reshapes merge and split the same rows.
struct SplitMergedRows : OpRewritePattern<ReshapeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReshapeOp op,
                                PatternRewriter &rewriter) const override {
    Value product = op.getInput(), bias;
    if (BinaryOp add = definedBy(product, BinaryKind::Add);
        add && product.hasOneUse()) {
      product = add.getLhs();
      bias = add.getRhs();
      if (!product.getDefiningOp<MatmulOp>())
        std::swap(product, bias);
      if (shapeOf(bias).size() > 1 ||
          shapeOf(product) != shapeOf(op.getInput()))
        return rewriter.notifyMatchFailure(op, "adds more than a bias");
    }
    auto matmul = product.getDefiningOp<MatmulOp>();
    if (!matmul || !product.hasOneUse() || matmul.getTransposeA() ||
        shapeOf(matmul.getRhs()).size() != 2)
      return rewriter.notifyMatchFailure(op, "input is not a linear layer");
    Value rows = beforeMergedRows(matmul.getLhs());
    auto shape = op.getType().getShape();
    if (!rows || shape.drop_back() != shapeOf(rows).drop_back())
      return rewriter.notifyMatchFailure(op, "rows are not those merged");
    Value result =
        MatmulOp::create(rewriter, matmul.getLoc(), rows, matmul.getRhs(),
                         false, matmul.getTransposeB());
    if (bias)
      result = BinaryOp::create(rewriter, op.getInput().getLoc(),
                                BinaryKind::Add, result, bias);
    rewriter.replaceOp(op, result);
    return success();
  }
};

/// A convolution whose windows tile its input is a product of patches with the
/// weight, [batch, patches, in * window] x [out, in * window]. A bias of the
/// channels is added before the channels move to the front, so that the
/// transpose meets the one that usually follows.
struct PatchesToMatmul : OpRewritePattern<ConvOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ConvOp op,
                                PatternRewriter &rewriter) const override {
    auto input = shapeOf(op.getInput()), weight = shapeOf(op.getWeight());
    auto window = weight.drop_front(2);
    auto is = [](ArrayRef<int64_t> values, int64_t expected) {
      return llvm::all_of(values, [&](int64_t v) { return v == expected; });
    };
    if (op.getGroups() != 1 || op.getStrides() != window ||
        !is(op.getDilations(), 1) || !is(op.getPadsBefore(), 0) ||
        !is(op.getPadsAfter(), 0))
      return rewriter.notifyMatchFailure(op, "windows do not tile");

    Location loc = op.getLoc();
    size_t spatial = window.size();
    Value image = cropToWindows(rewriter, op);
    auto result = op.getType().getShape();
    // [n, c, h / k, k, w / k, k] -> [n, h / k, w / k, c, k, k]
    SmallVector<int64_t> split{input[0], input[1]}, permutation{0};
    int64_t patches = 1, width = input[1];
    for (size_t i = 0; i < spatial; ++i) {
      split.append({result[2 + i], window[i]});
      permutation.push_back(2 + 2 * i);
      patches *= result[2 + i];
      width *= window[i];
    }
    permutation.push_back(1);
    for (size_t i = 0; i < spatial; ++i)
      permutation.push_back(3 + 2 * i);
    Value tiles = TransposeOp::create(
        rewriter, loc, reshapeTo(rewriter, loc, image, split), permutation);
    Value rows = reshapeTo(rewriter, loc, tiles, {input[0], patches, width});
    Value matrix = reshapeTo(rewriter, loc, op.getWeight(), {weight[0], width});
    Value product = MatmulOp::create(rewriter, loc, rows, matrix, false, true);

    Operation *replaced = op;
    auto add =
        op->hasOneUse() ? dyn_cast<BinaryOp>(*op->user_begin()) : nullptr;
    if (Value bias = add ? channelBias(add, op) : nullptr) {
      rewriter.setInsertionPoint(add);
      product = BinaryOp::create(
          rewriter, add.getLoc(), BinaryKind::Add, product,
          reshapeTo(rewriter, add.getLoc(), bias, {weight[0]}));
      replaced = add;
    }
    Value channels =
        TransposeOp::create(rewriter, loc, product, ArrayRef<int64_t>{0, 2, 1});
    rewriter.replaceOp(replaced, reshapeTo(rewriter, loc, channels, result));
    if (replaced != op)
      rewriter.eraseOp(op);
    return success();
  }

private:
  /// The input without what lies past the last whole window.
  static Value cropToWindows(PatternRewriter &rewriter, ConvOp op) {
    auto shape = shapeOf(op.getInput());
    SmallVector<int64_t> limits(shape);
    for (auto [i, size] : llvm::enumerate(op.getStrides()))
      limits[2 + i] -= limits[2 + i] % size;
    if (ArrayRef<int64_t>(limits) == shape)
      return op.getInput();
    SmallVector<int64_t> zeros(shape.size(), 0), ones(shape.size(), 1);
    return SliceOp::create(rewriter, op.getLoc(), op.getInput(), zeros, limits,
                           ones);
  }

  /// The bias that `add` adds to the channels of `conv`, or null.
  static Value channelBias(BinaryOp add, ConvOp conv) {
    if (add.getKind() != BinaryKind::Add || add.getType() != conv.getType())
      return nullptr;
    Value bias = add.getLhs() == conv.getResult() ? add.getRhs() : add.getLhs();
    auto shape = shapeOf(bias);
    size_t spatial = conv.getStrides().size();
    if (shape.size() < spatial + 1 ||
        shape[shape.size() - spatial - 1] != shapeOf(conv.getWeight())[0] ||
        typeOf(bias).getNumElements() != shapeOf(conv.getWeight())[0])
      return nullptr;
    return bias;
  }
};
} // namespace

void mgq::nn::populateLinearPatterns(RewritePatternSet &patterns) {
  patterns.add<FoldTransposeIntoMatmul, SplitMergedRows, PatchesToMatmul>(
      patterns.getContext());
}
