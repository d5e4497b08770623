//===- SimplifyAttention.cpp - Attention
//------------------------------------===//
//
//   s = scale * q k^T           the scale may be on q, k or s, or split
//   s = c tanh(s / c)           optional
//   s = s + mask                or select(mask, s, -large)
//   p = softmax(s)              NaN may be replaced by 0 after it
//   p v                         -> attention q, k, v
//
// Operands become [batch, heads, length, width]: [batch * heads, ...] and views
// in between are seen through. Keys and values that were repeated for groups of
// heads are taken before the repetition.
//
// A row that a mask hides entirely: with -inf (and its guard) it gives zeros,
// as a boolean mask does. A large finite number gives uniform weights; such a
// mask stays an added float.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

#include <cmath>

using namespace mlir;
using namespace mgq::nn;

namespace {
/// What the walk from the second product up to the first one found.
struct Attention {
  MatmulOp scores, output;
  double scale = 1, softcap = 0;
  /// Added masks, each with the scores after it (for their shape).
  SmallVector<std::pair<Value, Value>, 2> added;
  /// The condition of select(condition, s, hidden) after all of them, if any,
  /// with the scores after it.
  Value condition, selected;
  bool hiddenWhereTrue = false;
  double hidden = 0;
  /// Leading dimensions of the scores.
  int64_t batch = 1, heads = 1;
};
} // namespace

/// Whether `value` is a view of `input` that keeps the last two dimensions.
static bool keepsMatrix(Value input, Value value) {
  auto from = shapeOf(input), to = shapeOf(value);
  return from.size() >= 2 && to.size() >= 2 &&
         from.take_back(2) == to.take_back(2);
}

/// Skips casts of floats and reshapes of leading dimensions that only serve
/// what follows them.
static Value skipViews(Value value) {
  while (value.hasOneUse()) {
    auto reshape = value.getDefiningOp<ReshapeOp>();
    auto cast = value.getDefiningOp<CastOp>();
    if (reshape && keepsMatrix(reshape.getInput(), value))
      value = reshape.getInput();
    else if (cast && isa<FloatType>(typeOf(cast.getInput()).getElementType()))
      value = cast.getInput();
    else
      break;
  }
  return value;
}

/// Whether a product of matrices stands behind scales, caps and views.
static bool leadsToProduct(Value value, int depth = 0) {
  for (; depth < 16; ++depth) {
    value = skipViews(value);
    if (value.getDefiningOp<MatmulOp>())
      return true;
    if (auto scaled = matchScaled(value))
      value = scaled->input;
    else if (UnaryOp tanh = definedBy(value, UnaryKind::Tanh))
      value = tanh.getInput();
    else if (BinaryOp add = definedBy(value, BinaryKind::Add))
      // Another mask: of one of the two operands, not of both.
      return leadsToProduct(add.getLhs(), depth + 1) !=
             leadsToProduct(add.getRhs(), depth + 1);
    else
      return false;
  }
  return false;
}

/// Takes a selecting mask, which comes last, off the scores.
static Value takeSelect(Value scores, Attention &found) {
  scores = skipViews(scores);
  auto select = scores.getDefiningOp<SelectOp>();
  if (!select || !scores.hasOneUse())
    return scores;
  auto onTrue = splatConstant(select.getOnTrue());
  auto onFalse = splatConstant(select.getOnFalse());
  Value rest = onTrue ? select.getOnFalse() : select.getOnTrue();
  if (bool(onTrue) == bool(onFalse) || shapeOf(rest) != shapeOf(scores))
    return scores;
  found.hidden = onTrue ? *onTrue : *onFalse;
  // A number this large swallows any score that it is added to.
  if (found.hidden > -1e9)
    return scores;
  found.condition = select.getCondition();
  found.selected = scores;
  found.hiddenWhereTrue = bool(onTrue);
  return rest;
}

/// Takes added masks off the scores.
static Value takeAdded(Value scores, Attention &found) {
  while (true) {
    scores = skipViews(scores);
    BinaryOp add = definedBy(scores, BinaryKind::Add);
    if (!add || !scores.hasOneUse())
      return scores;
    Value rest = add.getLhs(), mask = add.getRhs();
    if (!leadsToProduct(rest))
      std::swap(rest, mask);
    if (shapeOf(rest) != shapeOf(scores))
      return scores;
    found.added.push_back({mask, scores});
    scores = rest;
  }
}

/// Takes scales and a cap off the scores.
static Value takeScales(Value scores, Attention &found) {
  while (true) {
    scores = skipViews(scores);
    if (!scores.hasOneUse())
      return scores;
    if (auto scaled = matchScaled(scores)) {
      UnaryOp tanh = definedBy(scaled->input, UnaryKind::Tanh);
      if (!tanh) {
        found.scale *= scaled->factor;
        scores = scaled->input;
        continue;
      }
      // c tanh(s / c): nothing may scale after it, nor cap again.
      if (found.softcap != 0 || found.scale != 1 ||
          !tanh.getResult().hasOneUse())
        return scores;
      found.softcap = scaled->factor;
      found.scale = scaled->factor;
      scores = tanh.getInput();
      continue;
    }
    return scores;
  }
}

/// The softmax whose result `weights` is, seen through a guard against NaN.
static SoftmaxOp matchSoftmax(Value weights) {
  weights = skipViews(weights);
  auto select = weights.getDefiningOp<SelectOp>();
  if (!select)
    return weights.hasOneUse() ? weights.getDefiningOp<SoftmaxOp>() : nullptr;
  UnaryOp isNan = definedBy(select.getCondition(), UnaryKind::IsNan);
  auto softmax = select.getOnFalse().getDefiningOp<SoftmaxOp>();
  if (!isNan || !softmax || isNan.getInput() != softmax.getResult() ||
      splatConstant(select.getOnTrue()) != 0.0 || !weights.hasOneUse() ||
      !isNan.getResult().hasOneUse() || !softmax.getResult().hasNUses(2))
    return nullptr;
  return softmax;
}

/// Finds all parts; the leading dimensions of the scores are those of rank 4 on
/// the way, if there are any.
static FailureOr<Attention> matchAttention(MatmulOp output) {
  Attention found;
  found.output = output;
  if (output.getTransposeA())
    return failure();
  SoftmaxOp softmax = matchSoftmax(output.getLhs());
  if (!softmax ||
      int64_t(softmax.getAxis()) + 1 != typeOf(softmax.getResult()).getRank())
    return failure();
  Value scores = takeSelect(softmax.getInput(), found);
  scores = takeAdded(scores, found);
  scores = takeScales(scores, found);
  found.scores = scores.getDefiningOp<MatmulOp>();
  if (!found.scores || !scores.hasOneUse())
    return failure();
  SmallVector<Value> candidates{softmax.getInput(), scores, output.getLhs()};
  for (auto &[mask, masked] : found.added)
    candidates.push_back(masked);
  auto shape = shapeOf(scores);
  for (Value candidate : candidates)
    if (shapeOf(candidate).size() == 4) {
      shape = shapeOf(candidate);
      break;
    }
  if (shape.size() > 4 || !typeOf(scores).hasStaticShape())
    return failure();
  if (shape.size() == 4)
    found.heads = shape[1];
  if (shape.size() >= 3)
    found.batch = shape[0];
  return found;
}

/// Takes scales off q or k, whatever side of views and swaps they are on.
static Value takeOperandScale(Value operand, bool &transposed, double &scale) {
  while (true) {
    if (auto scaled = matchScaled(operand)) {
      scale *= scaled->factor;
      operand = scaled->input;
      continue;
    }
    auto transpose = operand.getDefiningOp<TransposeOp>();
    if (!transpose)
      return operand;
    auto permutation = transpose.getPermutation();
    size_t rank = permutation.size();
    for (size_t i = 0; i + 2 < rank; ++i)
      if (permutation[i] != int64_t(i))
        return operand;
    if (rank < 2 || permutation[rank - 1] > permutation[rank - 2])
      return operand;
    transposed = !transposed;
    operand = transpose.getInput();
  }
}

namespace {
struct AttentionFromParts : OpRewritePattern<MatmulOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(MatmulOp op,
                                PatternRewriter &rewriter) const override {
    auto found = matchAttention(op);
    if (failed(found))
      return rewriter.notifyMatchFailure(op, "not weights times values");
    bool qSwapped = found->scores.getTransposeA();
    bool kSwapped = !found->scores.getTransposeB();
    Value q = takeOperandScale(found->scores.getLhs(), qSwapped, found->scale);
    Value k = takeOperandScale(found->scores.getRhs(), kSwapped, found->scale);
    Value v = op.getRhs();
    int64_t batch = found->batch, heads = found->heads;
    if (headsOf(q, batch, heads) != heads || headsOf(k, batch, heads) == 0 ||
        headsOf(k, batch, heads) != headsOf(v, batch, heads))
      return rewriter.notifyMatchFailure(op, "operands broadcast");
    // attention has no gradient of its mask.
    if (llvm::any_of(found->added,
                     [](auto &mask) { return dependsOnParam(mask.first); }) ||
        (found->condition && dependsOnParam(found->condition)))
      return rewriter.notifyMatchFailure(op, "mask depends on a parameter");

    Location loc = op.getLoc();
    q = matrices(rewriter, loc, q, qSwapped, batch, heads);
    Value kSource = kSwapped ? Value() : ungrouped(k, batch, heads);
    Value vSource = op.getTransposeB() ? Value() : ungrouped(v, batch, heads);
    if (kSource && vSource && shapeOf(kSource)[1] == shapeOf(vSource)[1]) {
      k = dropGroups(rewriter, loc, kSource);
      v = dropGroups(rewriter, loc, vSource);
    } else {
      k = matrices(rewriter, loc, k, kSwapped, batch, heads);
      v = matrices(rewriter, loc, v, op.getTransposeB(), batch, heads);
    }
    Value mask = buildMask(rewriter, loc, *found);
    Value attention =
        AttentionOp::create(rewriter, loc, q, k, v, mask, APFloat(found->scale),
                            false, false, APFloat(found->softcap));
    rewriter.replaceOp(
        op, reshapeTo(rewriter, loc, attention, op.getType().getShape()));
    return success();
  }

private:
  /// Heads of a value that holds `batch` x heads matrices: all, one that
  /// stands for all, or 0 where it does not fit.
  static int64_t headsOf(Value value, int64_t batch, int64_t heads) {
    auto shape = shapeOf(value);
    if (shape.size() == 4)
      return shape[0] == batch && (shape[1] == heads || shape[1] == 1)
                 ? shape[1]
                 : 0;
    int64_t count = 1;
    for (int64_t dim : shape.drop_back(2))
      count *= dim;
    return shape.size() < 4 && count == batch * heads ? heads : 0;
  }

  static Value matrices(PatternRewriter &rewriter, Location loc, Value value,
                        bool swapped, int64_t batch, int64_t heads) {
    auto shape = shapeOf(value);
    if (shape.size() < 4)
      value = reshapeTo(rewriter, loc, value,
                        {batch, heads, shape[shape.size() - 2], shape.back()});
    if (swapped)
      value = TransposeOp::create(rewriter, loc, value,
                                  ArrayRef<int64_t>{0, 1, 3, 2});
    return value;
  }

  /// For keys or values that were repeated for groups of heads, [b, h, 1, t, d]
  /// to [b, h, g, t, d]: what was repeated.
  static Value ungrouped(Value value, int64_t batch, int64_t heads) {
    auto view = value.getDefiningOp<ReshapeOp>();
    auto repeat = view ? view.getInput().getDefiningOp<BroadcastOp>() : nullptr;
    if (!repeat || !keepsMatrix(repeat.getResult(), value))
      return nullptr;
    auto to = repeat.getType().getShape(), from = shapeOf(repeat.getInput());
    if (to.size() != 5 || from.size() != 5 || to[0] != batch ||
        to[1] * to[2] != heads || from[2] != 1 || from[1] != to[1] ||
        from[0] != to[0] || !keepsMatrix(repeat.getInput(), repeat.getResult()))
      return nullptr;
    return repeat.getInput();
  }

  /// [b, h, 1, t, d] as [b, h, t, d].
  static Value dropGroups(PatternRewriter &rewriter, Location loc,
                          Value value) {
    auto shape = shapeOf(value);
    return reshapeTo(rewriter, loc, value,
                     {shape[0], shape[1], shape[3], shape[4]});
  }

  /// The mask as attention takes it: boolean where hidden rows give zeros.
  static Value buildMask(PatternRewriter &rewriter, Location loc,
                         const Attention &found) {
    Value sum;
    for (auto &[mask, masked] : llvm::reverse(found.added)) {
      Value boolean = found.added.size() == 1 && !found.condition
                          ? matchBoolean(rewriter, loc, mask)
                          : Value();
      Value aligned = alignMask(rewriter, loc, boolean ? boolean : mask,
                                shapeOf(masked).size(), found);
      sum = sum ? BinaryOp::create(rewriter, loc, BinaryKind::Add, sum, aligned)
                : aligned;
    }
    if (!found.condition)
      return sum;
    Value condition = alignMask(rewriter, loc, found.condition,
                                shapeOf(found.selected).size(), found);
    bool invert = found.hiddenWhereTrue;
    if (!sum && std::isinf(found.hidden))
      return invert ? UnaryOp::create(rewriter, loc, UnaryKind::Not, condition)
                    : condition;
    Type type = typeOf(found.selected).getElementType();
    Value hidden = scalar(rewriter, loc, type, found.hidden);
    Value seen = sum ? sum : scalar(rewriter, loc, type, 0);
    return SelectOp::create(rewriter, loc, condition, invert ? hidden : seen,
                            invert ? seen : hidden);
  }

  /// For an added mask of 0 and -inf: where it is 0. Else null.
  static Value matchBoolean(PatternRewriter &rewriter, Location loc,
                            Value mask) {
    auto select = mask.getDefiningOp<SelectOp>();
    if (!select || shapeOf(select.getCondition()) != shapeOf(mask))
      return nullptr;
    auto onTrue = splatConstant(select.getOnTrue());
    auto onFalse = splatConstant(select.getOnFalse());
    constexpr double kHidden = -std::numeric_limits<double>::infinity();
    if (onTrue == 0.0 && onFalse == kHidden)
      return select.getCondition();
    if (onTrue == kHidden && onFalse == 0.0)
      return UnaryOp::create(rewriter, loc, UnaryKind::Not,
                             select.getCondition());
    return nullptr;
  }

  static Value scalar(PatternRewriter &rewriter, Location loc, Type type,
                      double value) {
    return ConstantOp::create(
        rewriter, loc,
        DenseElementsAttr::get(RankedTensorType::get({}, type),
                               rewriter.getFloatAttr(type, value)));
  }

  /// Gives a mask of [batch * heads] matrices, joined with scores of rank 3,
  /// the leading dimensions [batch, heads], so that it broadcasts to the
  /// scores.
  static Value alignMask(PatternRewriter &rewriter, Location loc, Value mask,
                         size_t scoresRank, const Attention &found) {
    auto shape = shapeOf(mask);
    if (scoresRank != 3 || shape.size() != 3)
      return mask;
    if (shape[0] == 1)
      return reshapeTo(rewriter, loc, mask, shape.drop_front());
    return reshapeTo(rewriter, loc, mask,
                     {found.batch, found.heads, shape[1], shape[2]});
  }
};
} // namespace

void mgq::nn::populateAttentionPatterns(RewritePatternSet &patterns) {
  patterns.add<AttentionFromParts>(patterns.getContext());
}
