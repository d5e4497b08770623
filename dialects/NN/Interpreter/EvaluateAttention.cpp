//===- EvaluateAttention.cpp - Attention, rope, loss, optimizer -----------===//

#include "dialects/NN/Interpreter/Evaluate.h"

#include <cmath>
#include <limits>

using namespace mlir;
using namespace mgq::nn;

//===----------------------------------------------------------------------===//
// attention
//===----------------------------------------------------------------------===//

namespace {
/// One query's row of an attention.
struct Row {
  /// Scores before the cap, and probabilities, by key.
  std::vector<double> scores, weights;
};

/// What attention and its gradient share.
template <typename Op>
struct Attention {
  mutable Op op;
  const Tensor &q, &k, &v;
  const Tensor *mask;
  double scale = op.getScale().convertToDouble();
  double cap = op.getSoftcap().convertToDouble();
  int64_t keys = k.shape()[2];

  int64_t kvHead(int64_t head) const {
    return head / (q.shape()[1] / k.shape()[1]);
  }
  double capped(double score) const {
    return cap > 0 ? cap * std::tanh(score / cap) : score;
  }
  /// Derivative of `capped`.
  double slope(double score) const {
    double t = std::tanh(score / cap);
    return cap > 0 ? 1 - t * t : 1;
  }
  Row row(int64_t batch, int64_t head, int64_t query) const;
};
} // namespace

template <typename Op>
Row Attention<Op>::row(int64_t batch, int64_t head, int64_t query) const {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  int64_t queries = q.shape()[2];
  int64_t last = query + (op.getCausalFromEnd() ? keys - queries : 0);
  Row row{std::vector<double>(keys), std::vector<double>(keys)};
  double top = kNever, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t d = 0; d < q.shape()[3]; ++d)
      row.scores[j] += q.real({batch, head, query, d}) *
                       k.real({batch, kvHead(head), j, d}) * scale;
    double &score = row.weights[j];
    score = capped(row.scores[j]);
    if (mask) {
      const Number &allowed = mask->broadcastAt({batch, head, query, j});
      if (mask->isFloat())
        score += allowed.real;
      else if (!allowed.whole)
        score = kNever;
    }
    if (op.getCausal() && j > last)
      score = kNever;
    top = std::max(top, score);
  }
  for (double &weight : row.weights)
    sum += weight = top == kNever ? 0 : std::exp(weight - top);
  for (double &weight : row.weights)
    weight = sum > 0 ? weight / sum : 0;
  return row;
}

Tensor mgq::nn::evaluate(AttentionOp op, const Frame &frame) {
  const Tensor &v = frame[op.getV()];
  Attention<AttentionOp> attention{op, frame[op.getQ()], frame[op.getK()], v,
                                   frame.find(op.getMask())};
  Tensor y = likeValue(op.getResult());
  forEachIndex(y.shape().drop_back(), [&](Index at) {
    Row row = attention.row(at[0], at[1], at[2]);
    for (int64_t d = 0; d < v.shape()[3]; ++d)
      for (int64_t j = 0; j < attention.keys; ++j)
        y.real({at[0], at[1], at[2], d}) +=
            row.weights[j] * v.real({at[0], attention.kvHead(at[1]), j, d});
  });
  return y;
}

SmallVector<Tensor> mgq::nn::evaluateAll(AttentionGradOp op,
                                         const Frame &frame) {
  const Tensor &q = frame[op.getQ()], &k = frame[op.getK()];
  const Tensor &v = frame[op.getV()], &g = frame[op.getGrad()];
  const Tensor &y = frame[op.getResult()];
  Attention<AttentionGradOp> attention{op, q, k, v, frame.find(op.getMask())};
  SmallVector<Tensor> grads{Tensor(q.type), Tensor(k.type), Tensor(v.type)};
  forEachIndex(q.shape().drop_back(), [&](Index at) {
    int64_t b = at[0], h = at[1], i = at[2], kv = attention.kvHead(h);
    Row row = attention.row(b, h, i);
    double own = 0;
    for (int64_t d = 0; d < v.shape()[3]; ++d)
      own += g.real({b, h, i, d}) * y.real({b, h, i, d});
    for (int64_t j = 0; j < attention.keys; ++j) {
      double dp = 0;
      for (int64_t d = 0; d < v.shape()[3]; ++d) {
        dp += g.real({b, h, i, d}) * v.real({b, kv, j, d});
        grads[2].real({b, kv, j, d}) += row.weights[j] * g.real({b, h, i, d});
      }
      double ds = row.weights[j] * (dp - own) * attention.slope(row.scores[j]) *
                  attention.scale;
      for (int64_t d = 0; d < q.shape()[3]; ++d) {
        grads[0].real({b, h, i, d}) += ds * k.real({b, kv, j, d});
        grads[1].real({b, kv, j, d}) += ds * q.real({b, h, i, d});
      }
    }
  });
  return grads;
}

//===----------------------------------------------------------------------===//
// rope
//===----------------------------------------------------------------------===//

Tensor mgq::nn::evaluate(RopeOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()], &cos = frame[op.getCos()];
  const Tensor &sin = frame[op.getSin()];
  Tensor y = likeValue(op.getResult());
  int64_t axis = x.rank() - 1, half = x.shape().back() / 2;
  forEachIndex(x.shape(), [&](Index index) {
    int64_t i = index.back();
    // The other element of the pair, and whether this is the pair's second.
    bool second = op.getInterleaved() ? i % 2 == 1 : i >= half;
    int64_t step = op.getInterleaved() ? 1 : half;
    auto other = withAxis(index, axis, second ? i - step : i + step);
    // rotate(x) is -x2 at the first, x1 at the second; transposed, x2 and -x1.
    bool negative = second == op.getTransposed();
    double sine = op.getTransposed() ? sin.broadcastAt(other).real
                                     : sin.broadcastAt(index).real;
    double rotated = x.real(other) * sine * (negative ? -1 : 1);
    y.real(index) = x.real(index) * cos.broadcastAt(index).real + rotated;
  });
  return y;
}

//===----------------------------------------------------------------------===//
// Loss
//===----------------------------------------------------------------------===//

/// What a row counts: the weight of its label, 0 if ignored.
template <typename Op>
static double rowWeight(Op op, const Tensor *weight, int64_t label) {
  if (op.getIgnoreIndex() && label == int64_t(*op.getIgnoreIndex()))
    return 0;
  return weight ? weight->data[label].real : 1;
}

/// The softmax of a row of logits, and the logarithm of its sum.
static std::pair<std::vector<double>, double> rowSoftmax(const Tensor &logits,
                                                         int64_t row) {
  int64_t classes = logits.shape()[1];
  std::vector<double> p(classes);
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t c = 0; c < classes; ++c)
    top = std::max(top, logits.real({row, c}));
  for (int64_t c = 0; c < classes; ++c)
    sum += p[c] = std::exp(logits.real({row, c}) - top);
  for (double &value : p)
    value /= sum;
  return {p, top + std::log(sum)};
}

Tensor mgq::nn::evaluate(CrossEntropyOp op, const Frame &frame) {
  const Tensor &logits = frame[op.getLogits()], &labels = frame[op.getLabels()];
  Tensor y = likeValue(op.getResult());
  for (int64_t row = 0; row < y.size(); ++row) {
    int64_t label = labels.data[row].whole;
    if (double w = rowWeight(op, frame.find(op.getWeight()), label))
      y.data[row].real =
          w * (rowSoftmax(logits, row).second - logits.real({row, label}));
  }
  return y;
}

Tensor mgq::nn::evaluate(CrossEntropyGradOp op, const Frame &frame) {
  const Tensor &logits = frame[op.getLogits()], &labels = frame[op.getLabels()];
  const Tensor &g = frame[op.getGrad()];
  Tensor dx = likeValue(op.getResult());
  forEachIndex(dx.shape(), [&](Index index) {
    int64_t row = index[0], label = labels.data[row].whole;
    if (double w = rowWeight(op, frame.find(op.getWeight()), label))
      dx.real(index) =
          w * g.data[row].real *
          (rowSoftmax(logits, row).first[index[1]] - (index[1] == label));
  });
  return dx;
}

Tensor mgq::nn::evaluate(LabelWeightsOp op, const Frame &frame) {
  const Tensor &labels = frame[op.getLabels()];
  Tensor y = likeValue(op.getResult());
  for (auto [to, label] : llvm::zip_equal(y.data, labels.data))
    to.real = rowWeight(op, frame.find(op.getWeight()), label.whole);
  return y;
}

//===----------------------------------------------------------------------===//
// Optimizer
//===----------------------------------------------------------------------===//

SmallVector<Tensor> mgq::nn::evaluateAll(AdamWOp op, const Frame &frame) {
  Tensor p = frame[op.getParameter()], m = frame[op.getMomentum()];
  Tensor v = frame[op.getVariance()];
  const Tensor &scalars = frame[op.getScalars()],
               &grad = frame[op.getGradient()];
  auto scalar = [&](int64_t i) { return scalars.data[i].real; };
  double epsilon = scalar(8);
  for (int64_t i = 0; i < p.size(); ++i) {
    double g = grad.data[i].real * scalar(0);
    double &mi = m.data[i].real, &vi = v.data[i].real;
    mi += scalar(3) * (g - mi);
    vi = scalar(4) * vi + scalar(5) * g * g;
    p.data[i].real = p.data[i].real * scalar(1) -
                     scalar(6) * mi / (std::sqrt(vi) * scalar(7) + epsilon);
  }
  return {p, m, v};
}

Tensor mgq::nn::evaluate(SqNormOp op, const Frame &frame) {
  Tensor y = likeValue(op.getResult());
  for (const Number &value : frame[op.getInput()].data)
    y.data[0].real += value.real * value.real;
  return y;
}
