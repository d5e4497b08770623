//===- SimplifyRope.cpp - Rotary embeddings
//---------------------------------===//
//
//   x cos + rotate(x) sin -> rope, rotate(x) being one of
//     concat(-x[half:], x[:half])                         halves
//     reshape(concat(-x[1::2, None], x[0::2, None]))      pairs: interleaved
//
// and the form written half by half, with tables of half the width:
//   concat(x1 cos - x2 sin, x2 cos + x1 sin)
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

using namespace mlir;
using namespace mgq::nn;

namespace {
/// A slice of the last dimension only.
struct LastSlice {
  Value input;
  int64_t start, limit, stride;
};
} // namespace

static std::optional<LastSlice> matchLastSlice(Value value) {
  auto slice = value.getDefiningOp<SliceOp>();
  if (!slice)
    return std::nullopt;
  auto shape = shapeOf(slice.getInput());
  for (size_t i = 0; i + 1 < shape.size(); ++i)
    if (slice.getStarts()[i] != 0 || slice.getLimits()[i] != shape[i] ||
        slice.getStrides()[i] != 1)
      return std::nullopt;
  return LastSlice{slice.getInput(), slice.getStarts().back(),
                   slice.getLimits().back(), slice.getStrides().back()};
}

/// Whether `low` and `high` are the two halves of one tensor, which is given.
static Value matchHalves(Value low, Value high) {
  auto first = matchLastSlice(low), second = matchLastSlice(high);
  if (!first || !second || first->input != second->input)
    return nullptr;
  int64_t width = shapeOf(first->input).back();
  if (width % 2 != 0 || first->stride != 1 || second->stride != 1 ||
      first->start != 0 || first->limit != width / 2 ||
      second->start != width / 2 || second->limit != width)
    return nullptr;
  return first->input;
}

/// Whether `even` and `odd` are the elements of even and odd index of one
/// tensor, which is given.
static Value matchPairs(Value even, Value odd) {
  auto first = matchLastSlice(even), second = matchLastSlice(odd);
  if (!first || !second || first->input != second->input)
    return nullptr;
  int64_t width = shapeOf(first->input).back();
  if (width % 2 != 0 || first->stride != 2 || second->stride != 2 ||
      first->start != 0 || second->start != 1 ||
      shapeOf(even).back() != width / 2 || shapeOf(odd).back() != width / 2)
    return nullptr;
  return first->input;
}

/// For rotate(x): x, and whether pairs rotate.
static std::pair<Value, bool> matchRotate(Value value) {
  auto reshape = value.getDefiningOp<ReshapeOp>();
  auto concat = reshape ? reshape.getInput().getDefiningOp<ConcatOp>()
                        : value.getDefiningOp<ConcatOp>();
  if (!concat || concat.getInputs().size() != 2 ||
      int64_t(concat.getAxis()) + 1 != typeOf(concat.getResult()).getRank())
    return {};
  Value first = concat.getInputs()[0], second = concat.getInputs()[1];
  if (!reshape) {
    UnaryOp neg = definedBy(first, UnaryKind::Neg);
    return {neg ? matchHalves(second, neg.getInput()) : Value(), false};
  }
  // Pairs: both are [..., width / 2, 1], the view is [..., width].
  auto column = [](Value part) -> Value {
    auto view = part.getDefiningOp<ReshapeOp>();
    if (!view || shapeOf(part).back() != 1 ||
        shapeOf(part).drop_back() != shapeOf(view.getInput()))
      return nullptr;
    return view.getInput();
  };
  // The view may come before or after the negation.
  Value odd, even = column(second);
  if (UnaryOp neg = definedBy(first, UnaryKind::Neg))
    odd = column(neg.getInput());
  else if (Value inner = column(first))
    if (UnaryOp neg = definedBy(inner, UnaryKind::Neg))
      odd = neg.getInput();
  Value input = odd && even ? matchPairs(even, odd) : Value();
  if (!input || input.getType() != value.getType())
    return {};
  return {input, true};
}

namespace {
struct RopeFromRotate : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getKind() != BinaryKind::Add)
      return rewriter.notifyMatchFailure(op, "not a sum");
    for (auto [straight, turned] : {std::pair(op.getLhs(), op.getRhs()),
                                    std::pair(op.getRhs(), op.getLhs())}) {
      BinaryOp withSin = definedBy(turned, BinaryKind::Mul);
      BinaryOp withCos = definedBy(straight, BinaryKind::Mul);
      if (!withSin || !withCos)
        continue;
      Value sin = withSin.getRhs();
      auto [input, interleaved] = matchRotate(withSin.getLhs());
      if (!input) {
        std::tie(input, interleaved) = matchRotate(withSin.getRhs());
        sin = withSin.getLhs();
      }
      if (!input || op.getType() != input.getType())
        continue;
      Value cos;
      if (withCos.getLhs() == input)
        cos = withCos.getRhs();
      else if (withCos.getRhs() == input)
        cos = withCos.getLhs();
      if (!cos)
        continue;
      rewriter.replaceOpWithNewOp<RopeOp>(op, input, cos, sin, interleaved);
      return success();
    }
    return rewriter.notifyMatchFailure(op, "not x cos + rotate(x) sin");
  }
};

struct RopeFromHalves : OpRewritePattern<ConcatOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ConcatOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getInputs().size() != 2 ||
        int64_t(op.getAxis()) + 1 != op.getType().getRank())
      return rewriter.notifyMatchFailure(op, "does not join halves");
    BinaryOp sub = definedBy(op.getInputs()[0], BinaryKind::Sub);
    BinaryOp add = definedBy(op.getInputs()[1], BinaryKind::Add);
    if (!sub || !add)
      return rewriter.notifyMatchFailure(op, "halves are not - and +");
    // x1 cos - x2 sin
    for (auto [x1, cos] : operandOrders(sub.getLhs()))
      for (auto [x2, sin] : operandOrders(sub.getRhs())) {
        Value input = x1 && x2 ? matchHalves(x1, x2) : Value();
        bool turned = (isProduct(add.getLhs(), x2, cos) &&
                       isProduct(add.getRhs(), x1, sin)) ||
                      (isProduct(add.getRhs(), x2, cos) &&
                       isProduct(add.getLhs(), x1, sin));
        if (!input || input.getType() != op.getType() || !turned)
          continue;
        if (shapeOf(cos).empty() || shapeOf(sin).empty() ||
            shapeOf(cos).back() != shapeOf(x1).back() ||
            shapeOf(sin).back() != shapeOf(x1).back())
          continue;
        rewriter.replaceOpWithNewOp<RopeOp>(op, input,
                                            twice(rewriter, op.getLoc(), cos),
                                            twice(rewriter, op.getLoc(), sin));
        return success();
      }
    return rewriter.notifyMatchFailure(op, "not a rotation of two halves");
  }

private:
  /// The operands of a product in both orders; null where it is none.
  static std::array<std::pair<Value, Value>, 2> operandOrders(Value value) {
    BinaryOp mul = definedBy(value, BinaryKind::Mul);
    if (!mul)
      return {};
    return {std::pair(mul.getLhs(), mul.getRhs()),
            std::pair(mul.getRhs(), mul.getLhs())};
  }

  static bool isProduct(Value value, Value a, Value b) {
    BinaryOp mul = definedBy(value, BinaryKind::Mul);
    return mul && ((mul.getLhs() == a && mul.getRhs() == b) ||
                   (mul.getLhs() == b && mul.getRhs() == a));
  }

  /// A table for both halves.
  static Value twice(OpBuilder &builder, Location loc, Value table) {
    return ConcatOp::create(builder, loc, ValueRange{table, table},
                            typeOf(table).getRank() - 1);
  }
};
} // namespace

void mgq::nn::populateRopePatterns(RewritePatternSet &patterns) {
  patterns.add<RopeFromRotate, RopeFromHalves>(patterns.getContext());
}
