//===- LowerAttention.cpp - Attention whole, or by products and a softmax -===//
//
// Where the target has kernels for its types and sizes, attention stays whole
// (WholeAttention.h). Else it takes the form for any type and shape: scores are
// materialised. Query heads that share a key head are rows of one product.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Lowering.h"
#include "passes/Kernels/WholeAttention.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

namespace {
/// What forward and backward share.
struct Attention {
  int64_t batch, heads, kvHeads, queries, keys, width, valueWidth;
  double scale, softcap;
  bool causal;
  int64_t causalOffset;
  Value mask;

  template <typename OpTy>
  Attention(Lowering &l, OpTy op)
      : scale(op.getScale().convertToDouble()),
        softcap(op.getSoftcap().convertToDouble()), causal(op.getCausal()),
        mask(l.get(op.getMask())) {
    auto q = shapeOf(op.getQ()), v = shapeOf(op.getV());
    batch = q[0], heads = q[1], queries = q[2], width = q[3];
    kvHeads = v[1], keys = v[2], valueWidth = v[3];
    causalOffset = op.getCausalFromEnd() ? keys - queries : 0;
  }
  /// Rows of queries that share keys.
  Value queryRows(Lowering &l, Value value, int64_t columns) const {
    return l.reshape(value,
                     {batch * kvHeads, heads / kvHeads * queries, columns});
  }
  Value keyRows(Lowering &l, Value value, int64_t columns) const {
    return l.reshape(value, {batch * kvHeads, keys, columns});
  }
  SmallVector<int64_t> scoreShape() const {
    return {batch, heads, queries, keys};
  }
};
} // namespace

/// Score j of a row after scale, cap and mask; -inf where it is not seen.
static Value maskedScore(LoopBuilder &b, const Attention &a, Value score,
                         Value mask, ValueRange at) {
  Type type = score.getType();
  Value s = b.mul(score, b.constant(type, a.scale));
  if (a.softcap > 0)
    s = b.mul(b.constant(type, a.softcap),
              b.tanh(b.mul(s, b.constant(type, 1 / a.softcap))));
  Value seen;
  if (mask) {
    auto shape = cast<MemRefType>(mask.getType()).getShape();
    Value m = b.load(mask, b.broadcastIndices(shape, at));
    if (m.getType().isInteger(1))
      seen = m;
    else
      s = b.add(s, b.cast(m, type, false, false));
  }
  if (a.causal) {
    Value limit = b.add(at[2], b.index(a.causalOffset));
    Value before = b.compare(P::Le, at[3], limit);
    seen = seen ? b.land(seen, before) : before;
  }
  if (!seen)
    return s;
  Value never = arith::ConstantOp::create(
      b.builder, b.loc,
      FloatAttr::get(
          type,
          APFloat::getInf(cast<FloatType>(type).getFloatSemantics(), true)));
  return b.select(seen, s, never);
}

/// Probabilities from scores [batch, heads, queries, keys].
static Value probabilities(Lowering &l, const Attention &a, Value scores) {
  SmallVector<Value> operands{scores};
  if (a.mask)
    operands.push_back(a.mask);
  Type type = elementOf(scores);
  return l.loops(
      operands, tensorType(scores),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        Value mask = a.mask ? in[1] : Value();
        Value never = arith::ConstantOp::create(
            b.builder, b.loc,
            FloatAttr::get(
                type, APFloat::getInf(cast<FloatType>(type).getFloatSemantics(),
                                      true)));
        Value zero = b.constant(type, 0);
        b.parallel({a.batch, a.heads, a.queries}, [&](ValueRange row) {
          auto at = [&](Value j) {
            SmallVector<Value> indices(row);
            indices.push_back(j);
            return indices;
          };
          Value max = b.fold(a.keys, never, [&](Value j, Value max) {
            Value s = maskedScore(b, a, b.load(in[0], at(j)), mask, at(j));
            b.store(s, out[0], at(j));
            return b.max(max, s);
          });
          // A row that sees nothing gives zeros.
          max = b.select(b.compare(P::Eq, max, never), zero, max);
          Value sum = b.fold(a.keys, zero, [&](Value j, Value sum) {
            Value e = b.exp(b.sub(b.load(out[0], at(j)), max));
            b.store(e, out[0], at(j));
            return b.addAnyOrder(sum, e);
          });
          Value factor = b.select(b.compare(P::Eq, sum, zero), zero,
                                  b.div(b.constant(type, 1), sum));
          b.loop(a.keys, [&](Value j) {
            b.store(b.mul(b.load(out[0], at(j)), factor), out[0], at(j));
          });
        });
      })[0];
}

static Value scoresOf(Lowering &l, const Attention &a, Value q, Value k) {
  Value scores = l.product(a.queryRows(l, q, a.width), a.keyRows(l, k, a.width),
                           false, true);
  return l.reshape(scores, a.scoreShape());
}

/// An operand of attention; widened, where the result is wider.
template <typename OpTy>
static Value factor(Lowering &l, OpTy op, Value operand) {
  return l.convert(l.get(operand), elementOf(op->getResult(0)));
}

LogicalResult kernels::lower(Lowering &l, nn::AttentionOp op) {
  if (keepAttention(l, op))
    return success();
  Attention a(l, op);
  Value q = factor(l, op, op.getQ()), k = factor(l, op, op.getK()),
        v = factor(l, op, op.getV());
  Value p = probabilities(l, a, scoresOf(l, a, q, k));
  Value result = l.product(a.queryRows(l, p, a.keys),
                           a.keyRows(l, v, a.valueWidth), false, false);
  result = l.convert(result, elementOf(op.getResult()));
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

/// Gradient of the scores before scaling: p (dp - sum p dp), through cap and
/// scale.
static Value scoreGradients(Lowering &l, const Attention &a, Value p, Value dp,
                            Value scores) {
  SmallVector<Value> operands{p, dp};
  if (a.softcap > 0)
    operands.push_back(scores);
  Type type = elementOf(p);
  return l.loops(
      operands, tensorType(p),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel({a.batch, a.heads, a.queries}, [&](ValueRange row) {
          auto at = [&](Value j) {
            SmallVector<Value> indices(row);
            indices.push_back(j);
            return indices;
          };
          Value sum =
              b.fold(a.keys, b.constant(type, 0), [&](Value j, Value sum) {
                return b.addAnyOrder(
                    sum, b.mul(b.load(in[0], at(j)), b.load(in[1], at(j))));
              });
          b.loop(a.keys, [&](Value j) {
            Value d =
                b.mul(b.load(in[0], at(j)), b.sub(b.load(in[1], at(j)), sum));
            if (a.softcap > 0) {
              Value t = b.tanh(b.mul(b.load(in[2], at(j)),
                                     b.constant(type, a.scale / a.softcap)));
              d = b.mul(d, b.sub(b.constant(type, 1), b.mul(t, t)));
            }
            b.store(b.mul(d, b.constant(type, a.scale)), out[0], at(j));
          });
        });
      })[0];
}

LogicalResult kernels::lower(Lowering &l, nn::AttentionGradOp op) {
  if (keepAttention(l, op))
    return success();
  Attention a(l, op);
  Value q = factor(l, op, op.getQ()), k = factor(l, op, op.getK()),
        v = factor(l, op, op.getV());
  Value grad = factor(l, op, op.getGrad());
  Value scores = scoresOf(l, a, q, k);
  Value p = probabilities(l, a, scores);
  Value rows = a.queryRows(l, grad, a.valueWidth);
  Value dp =
      l.reshape(l.product(rows, a.keyRows(l, v, a.valueWidth), false, true),
                a.scoreShape());
  Value ds = a.queryRows(l, scoreGradients(l, a, p, dp, scores), a.keys);
  p = a.queryRows(l, p, a.keys);
  Value dq = l.product(ds, a.keyRows(l, k, a.width), false, false);
  Value dk = l.product(ds, a.queryRows(l, q, a.width), true, false);
  Value dv = l.product(p, rows, true, false);
  Value gradients[] = {dq, dk, dv};
  for (auto [result, value] : llvm::zip_equal(op->getResults(), gradients))
    l.set(result,
          l.reshape(l.convert(value, elementOf(result)), shapeOf(result)));
  return success();
}
