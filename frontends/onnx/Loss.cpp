//===- Loss.cpp - Cross-entropy losses ------------------------------------===//

#include "frontends/onnx/Registry.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::ComparePredicate;
using mgq::nn::ReduceKind;
using mgq::nn::UnaryKind;

namespace {
/// A loss over rows: logits [rows, classes], labels [rows].
struct Rows {
  Value scores, labels;
  /// Shape of the labels before flattening.
  Shape shape;
};
} // namespace

/// Moves classes last and flattens the rest: [N, C, d...] to [N d..., C].
static std::optional<Rows> flattenRows(Node &n, Value scores, Value labels) {
  auto d = shapeOf(scores);
  if (!labels || d.size() < 2 || rankOf(labels) + 1 != rankOf(scores)) {
    n.fail("has scores of rank " + Twine(rankOf(scores)) +
           " and labels of rank " + Twine(rankOf(labels)) +
           ", expected one less");
    return std::nullopt;
  }
  Shape permutation{0}, shape(shapeOf(labels));
  for (int64_t i = 2; i < rankOf(scores); ++i)
    permutation.push_back(i);
  permutation.push_back(1);
  int64_t rows = 1, classes = d[1];
  for (int64_t dim : shape)
    rows *= dim;
  Type element = elementOf(labels);
  if (!element.isInteger(32) && !element.isInteger(64))
    labels = n.cast(labels, n.builder.getI64Type());
  return Rows{n.reshape(n.transpose(scores, permutation), {rows, classes}),
              n.reshape(labels, {rows}), shape};
}

static IntegerAttr ignoreIndex(Node &n) {
  if (!n.attribute("ignore_index"))
    return {};
  return n.builder.getI64IntegerAttr(n.getInt("ignore_index", 0));
}

/// Applies the attribute `reduction` to the losses of the rows. The mean is the
/// sum of losses over the sum of label weights: nn-mark looks for that form.
static Value reduceRows(Node &n, const Rows &rows, Value losses) {
  std::string reduction = n.getString("reduction", "mean");
  if (reduction == "none")
    return n.reshape(losses, rows.shape);
  Value sum = n.reduce(ReduceKind::Sum, losses, {0}, false);
  if (reduction == "sum")
    return sum;
  if (reduction != "mean")
    return n.fail("has reduction '" + reduction + "'");
  if (!losses)
    return {};
  Value weights = n.makeTyped<nn::LabelWeightsOp>(
      losses.getType(), rows.labels, Node::Maybe{n.input(2)}, ignoreIndex(n));
  return n.div(sum, n.reduce(ReduceKind::Sum, weights, {0}, false));
}

static Value crossEntropy(Node &n, Value logits) {
  auto rows = flattenRows(n, logits, n.input(1));
  if (!rows)
    return {};
  Value losses = n.make<nn::CrossEntropyOp>(
      rows->scores, rows->labels, Node::Maybe{n.input(2)}, ignoreIndex(n));
  return reduceRows(n, *rows, losses);
}

static Value importSoftmaxCrossEntropyLoss(Node &n) {
  if (n.wantsOutput(1))
    n.set(1, n.make<nn::LogSoftmaxOp>(n.input(0), 1));
  return crossEntropy(n, n.input(0));
}

static Value importNegativeLogLikelihoodLoss(Node &n) {
  // Of a log-softmax it is a cross-entropy.
  if (n.input(0))
    if (auto softmax = n.input(0).getDefiningOp<nn::LogSoftmaxOp>())
      if (softmax.getAxis() == 1)
        return crossEntropy(n, softmax.getInput());
  auto rows = flattenRows(n, n.input(0), n.input(1));
  if (!rows)
    return {};
  int64_t count = rows->labels ? shapeOf(rows->labels)[0] : 0;
  // An ignored label may be outside the classes; its weight is 0.
  Value labels = rows->labels;
  if (IntegerAttr ignored = ignoreIndex(n)) {
    Value hit = n.compare(ComparePredicate::Eq, labels,
                          n.scalarLike(ignored.getInt(), labels));
    labels = n.select(hit, n.scalarLike(0, labels), labels);
  }
  Value picked = n.make<nn::GatherElementsOp>(rows->scores,
                                              n.reshape(labels, {count, 1}), 1);
  picked = n.reshape(picked, {count});
  if (!picked)
    return {};
  Value weights = n.makeTyped<nn::LabelWeightsOp>(
      picked.getType(), rows->labels, Node::Maybe{n.input(2)}, ignoreIndex(n));
  Value losses = n.unary(UnaryKind::Neg, n.mul(picked, weights));
  return reduceRows(n, *rows, losses);
}

void mgq::onnx::registerLoss(Registry &r) {
  r["NegativeLogLikelihoodLoss"] = importNegativeLogLikelihoodLoss;
  r["SoftmaxCrossEntropyLoss"] = importSoftmaxCrossEntropyLoss;
}
