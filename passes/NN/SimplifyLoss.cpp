//===- SimplifyLoss.cpp - Cross-entropies written by hand
//-------------------===//
//
//   picked = gather_elements(log_softmax(logits), index)
//   losses = -picked, 0 where a mask is false     (select or a product)
//   loss   = sum(losses) / sum(mask)              (or / number of rows)
//
// becomes the form of a mean cross-entropy that nn-mark splits:
//
//   sum(cross_entropy logits, labels) / sum(label_weights labels)
//
// A mask `labels != c` with an index made safe, select(mask, labels, 0) or
// max(labels, 0), is the ignored label c. Any other boolean mask becomes labels
// that are -100, and ignored, where it is false.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

using namespace mlir;
using namespace mgq::nn;

namespace {
/// A boolean, possibly inverted.
struct Mask {
  Value value;
  bool inverted = false;

  bool operator==(const Mask &other) const {
    return value == other.value && inverted == other.inverted;
  }
};

/// Sign times log-probabilities that an index picks, masked.
struct Picked {
  Value logits, index;
  Mask mask;
  bool negative = false;
};
} // namespace

static int64_t elementCount(Value value) {
  return typeOf(value).hasStaticShape() ? typeOf(value).getNumElements() : -1;
}

static Value stripReshapes(Value value) {
  while (auto reshape = value.getDefiningOp<ReshapeOp>())
    value = reshape.getInput();
  return value;
}

/// A mask behind `not` and reshapes.
static Mask stripMask(Value value) {
  Mask mask{stripReshapes(value)};
  while (UnaryOp inverse = definedBy(mask.value, UnaryKind::Not))
    mask = {stripReshapes(inverse.getInput()), !mask.inverted};
  return mask;
}

/// The boolean that `value` counts with 0 and 1, or null.
static Value matchIndicator(Value value) {
  auto cast = stripReshapes(value).getDefiningOp<CastOp>();
  // A boolean may have come by way of integers.
  while (cast && !typeOf(cast.getInput()).getElementType().isInteger(1))
    cast = stripReshapes(cast.getInput()).getDefiningOp<CastOp>();
  return cast ? cast.getInput() : Value();
}

/// Takes a mask off `value`: what is masked, or null.
static Value takeMask(Value value, Mask &mask) {
  if (auto select = value.getDefiningOp<SelectOp>()) {
    mask = stripMask(select.getCondition());
    if (splatConstant(select.getOnFalse()) == 0.0)
      return select.getOnTrue();
    mask.inverted = !mask.inverted;
    return splatConstant(select.getOnTrue()) == 0.0 ? select.getOnFalse()
                                                    : Value();
  }
  BinaryOp mul = definedBy(value, BinaryKind::Mul);
  if (!mul)
    return nullptr;
  for (auto [rest, gate] : {std::pair(mul.getLhs(), mul.getRhs()),
                            std::pair(mul.getRhs(), mul.getLhs())})
    if (Value indicator = matchIndicator(gate)) {
      mask = stripMask(indicator);
      return rest;
    }
  return nullptr;
}

/// Reads `value` as picked log-probabilities, one per row.
static std::optional<Picked> matchPicked(Value value) {
  Picked picked;
  int64_t rows = elementCount(value);
  while (true) {
    value = stripReshapes(value);
    if (elementCount(value) != rows)
      return std::nullopt;
    if (UnaryOp neg = definedBy(value, UnaryKind::Neg)) {
      picked.negative = !picked.negative;
      value = neg.getInput();
      continue;
    }
    if (auto gather = value.getDefiningOp<GatherElementsOp>()) {
      auto softmax = gather.getInput().getDefiningOp<LogSoftmaxOp>();
      int64_t last = typeOf(gather.getInput()).getRank() - 1;
      if (!softmax || int64_t(softmax.getAxis()) != last ||
          int64_t(gather.getAxis()) != last ||
          elementCount(softmax.getInput()) !=
              rows * shapeOf(softmax.getInput()).back())
        return std::nullopt;
      picked.logits = softmax.getInput();
      picked.index = stripReshapes(gather.getIndices());
      return picked;
    }
    if (picked.mask.value)
      return std::nullopt;
    value = takeMask(value, picked.mask);
    if (!value || elementCount(picked.mask.value) != rows)
      return std::nullopt;
  }
}

/// For the sum of all elements, maybe negated: what is summed.
static Value matchSum(Value value, bool &negative) {
  value = stripCasts(value);
  while (UnaryOp neg = definedBy(value, UnaryKind::Neg)) {
    negative = !negative;
    value = stripCasts(neg.getInput());
  }
  auto sum = value.getDefiningOp<ReduceOp>();
  return sum && sum.getKind() == ReduceKind::Sum && elementCount(value) == 1
             ? sum.getInput()
             : Value();
}

/// Whether `count` is the number of true elements of `mask`, or at least 1.
static bool isCountOf(Value count, const Mask &mask) {
  while (true) {
    count = stripReshapes(count);
    if (BinaryOp max = definedBy(count, BinaryKind::Max)) {
      auto least = splatConstant(max.getRhs());
      if (auto integer = splatInteger(max.getRhs()))
        least = double(*integer);
      if (!least || *least > 1)
        return false;
      count = max.getLhs();
    } else if (auto cast = count.getDefiningOp<CastOp>()) {
      count = cast.getInput();
    } else {
      break;
    }
  }
  auto sum = count.getDefiningOp<ReduceOp>();
  if (!sum || sum.getKind() != ReduceKind::Sum || elementCount(count) != 1)
    return false;
  Value indicator = matchIndicator(sum.getInput());
  return indicator && stripMask(indicator) == mask;
}

/// For a mask that is `labels != c`: labels and c.
static std::optional<std::pair<Value, int64_t>> matchNotIgnored(Mask mask) {
  auto compare = mask.value.getDefiningOp<CompareOp>();
  auto wanted = mask.inverted ? ComparePredicate::Eq : ComparePredicate::Ne;
  if (!compare || compare.getPredicate() != wanted)
    return std::nullopt;
  auto ignored = splatInteger(compare.getRhs());
  if (!ignored || elementCount(compare.getLhs()) != elementCount(mask.value))
    return std::nullopt;
  return std::pair(stripReshapes(compare.getLhs()), *ignored);
}

/// Whether `index` is `labels` where `mask` is true.
static bool isSafeIndex(Value index, Value labels, const Mask &mask) {
  if (index == labels)
    return true;
  if (auto select = index.getDefiningOp<SelectOp>()) {
    Mask own = stripMask(select.getCondition());
    Value kept = own == mask ? select.getOnTrue() : Value();
    own.inverted = !own.inverted;
    if (own == mask)
      kept = select.getOnFalse();
    return kept && stripReshapes(kept) == labels;
  }
  BinaryOp max = definedBy(index, BinaryKind::Max);
  return max && splatInteger(max.getRhs()) == int64_t(0) &&
         stripReshapes(max.getLhs()) == labels;
}

namespace {
struct MeanCrossEntropyFromParts : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    if (elementCount(op.getResult()) != 1)
      return rewriter.notifyMatchFailure(op, "not a scalar");
    auto scaled = matchScaled(op.getResult());
    if (!scaled && op.getKind() != BinaryKind::Div)
      return rewriter.notifyMatchFailure(op, "not a mean");
    bool negative = false;
    Value summed = matchSum(scaled ? scaled->input : op.getLhs(), negative);
    auto picked = summed ? matchPicked(summed) : std::nullopt;
    if (!picked || picked->negative == negative)
      return rewriter.notifyMatchFailure(op, "not of log-probabilities");
    int64_t rows = elementCount(picked->index);
    bool isMean = picked->mask.value
                      ? !scaled && isCountOf(op.getRhs(), picked->mask)
                      : scaled && isNear(scaled->factor * double(rows), 1);
    if (!isMean)
      return rewriter.notifyMatchFailure(op, "not over the number of rows");

    Location loc = op.getLoc();
    auto [labels, ignored] = buildLabels(rewriter, loc, *picked);
    labels = reshapeTo(rewriter, loc, labels, {rows});
    Value logits = reshapeTo(rewriter, loc, picked->logits,
                             {rows, shapeOf(picked->logits).back()});
    Value losses =
        CrossEntropyOp::create(rewriter, loc, logits, labels, Value(), ignored);
    Value weights = LabelWeightsOp::create(rewriter, loc, losses.getType(),
                                           labels, Value(), ignored);
    SmallVector<int64_t> all{0};
    Value sum =
        ReduceOp::create(rewriter, loc, ReduceKind::Sum, losses, all, false);
    Value count =
        ReduceOp::create(rewriter, loc, ReduceKind::Sum, weights, all, false);
    Value mean = BinaryOp::create(rewriter, loc, BinaryKind::Div, sum, count);
    if (typeOf(mean).getElementType() != op.getType().getElementType())
      mean = CastOp::create(rewriter, loc,
                            typeOf(mean).clone(op.getType().getElementType()),
                            mean);
    rewriter.replaceOp(op,
                       reshapeTo(rewriter, loc, mean, op.getType().getShape()));
    return success();
  }

private:
  /// Labels with the ignored one, if there is a mask.
  static std::pair<Value, IntegerAttr>
  buildLabels(PatternRewriter &rewriter, Location loc, const Picked &picked) {
    if (!picked.mask.value)
      return {picked.index, nullptr};
    if (auto found = matchNotIgnored(picked.mask);
        found && isSafeIndex(picked.index, found->first, picked.mask))
      return {found->first, rewriter.getI64IntegerAttr(found->second)};
    constexpr int64_t kIgnored = -100;
    Type type = typeOf(picked.index).getElementType();
    Value ignored = ConstantOp::create(
        rewriter, loc,
        DenseElementsAttr::get(RankedTensorType::get({}, type),
                               rewriter.getIntegerAttr(type, kIgnored)));
    Value mask =
        reshapeTo(rewriter, loc, picked.mask.value, shapeOf(picked.index));
    Value kept = picked.index;
    if (picked.mask.inverted)
      std::swap(kept, ignored);
    return {SelectOp::create(rewriter, loc, mask, kept, ignored),
            rewriter.getI64IntegerAttr(kIgnored)};
  }
};
} // namespace

void mgq::nn::populateLossPatterns(RewritePatternSet &patterns) {
  patterns.add<MeanCrossEntropyFromParts>(patterns.getContext());
}
