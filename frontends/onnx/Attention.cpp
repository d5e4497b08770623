//===- Attention.cpp - Attention and RotaryEmbedding ----------------------===//

#include "frontends/onnx/Registry.h"

#include "dialects/NN/NNElements.h"

#include <cmath>

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::BinaryKind;
using mgq::nn::ComparePredicate;
using mgq::nn::Elements;
using mgq::nn::UnaryKind;

/// [batch, length, heads * width] as [batch, heads, length, width].
static Value splitHeads(Node &n, Value x, int64_t heads) {
  if (rankOf(x) != 3)
    return x;
  if (heads <= 0 || shapeOf(x)[2] % heads != 0)
    return n.fail("cannot cut a width of " + Twine(shapeOf(x)[2]) + " into " +
                  Twine(heads) + " heads");
  int64_t batch = shapeOf(x)[0], length = shapeOf(x)[1];
  return n.transpose(
      n.reshape(x, {batch, length, heads, shapeOf(x)[2] / heads}),
      {0, 2, 1, 3});
}

/// [batch, heads, length, width] as [batch, length, heads * width].
static Value joinHeads(Node &n, Value x) {
  auto d = shapeOf(x);
  if (d.size() != 4)
    return x;
  return n.reshape(n.transpose(x, {0, 2, 1, 3}), {d[0], d[2], d[1] * d[3]});
}

namespace {
/// What one Attention node computes, [batch, heads, length, width].
struct AttentionParts {
  Value q, k, v;
  /// Of bool or of the scores' type; null: everything is seen.
  Value mask;
  double scale, softcap;
  bool causal, causalFromEnd;
};
} // namespace

/// Where query i may see key j by a test on i - j, as a constant.
template <typename Test>
static Value bandMask(Node &n, int64_t queries, int64_t keys, Test test) {
  if (!n.fitsTable(queries, keys))
    return {};
  auto type = RankedTensorType::get({queries, keys}, n.builder.getI1Type());
  Elements mask{type, false, {}};
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j)
      mask.words.push_back(test(i - j));
  return n.constant(nn::writeElements(mask));
}

/// Both masks: a boolean one cuts off what is false.
static Value joinMasks(Node &n, Value mask, Value allowed) {
  if (!mask)
    return allowed;
  if (!isFloat(mask))
    return n.binary(BinaryKind::And, mask, allowed);
  return n.select(allowed, mask, n.scalarLike(-INFINITY, mask));
}

/// The mask input, padded to all keys.
static Value givenMask(Node &n, int64_t keys) {
  Value mask = n.input(3);
  if (!mask)
    return {};
  int64_t missing = keys - (rankOf(mask) ? shapeOf(mask).back() : keys);
  if (missing <= 0 || shapeOf(mask).back() == 1)
    return mask;
  Shape zeros(rankOf(mask), 0), after(rankOf(mask), 0);
  after.back() = missing;
  Value hidden = n.scalarLike(isFloat(mask) ? -INFINITY : 0, mask);
  return n.make<nn::PadOp>(mask, hidden, zeros, after, zeros);
}

/// Masks beside the given one: causal where the op cannot say it, windows, and
/// the number of valid keys per sample.
static void addMasks(Node &n, AttentionParts &parts, int64_t past) {
  int64_t queries = shapeOf(parts.q)[2], keys = shapeOf(parts.k)[2];
  int64_t left = n.getInt("left_window_size", -1),
          right = n.getInt("right_window_size", -1);
  if (Value valid = n.input(6)) {
    // offset + i - j, [batch, 1, queries, keys], where offset = valid - queries
    int64_t batch = shapeOf(valid).empty() ? 1 : shapeOf(valid)[0];
    Value count =
        n.reshape(n.cast(valid, n.builder.getI64Type()), {batch, 1, 1, 1});
    Value key = n.reshape(n.ints(llvm::to_vector(llvm::seq<int64_t>(0, keys))),
                          {1, 1, 1, keys});
    Value query =
        n.reshape(n.ints(llvm::to_vector(llvm::seq<int64_t>(0, queries))),
                  {1, 1, queries, 1});
    Value ahead =
        n.sub(n.add(n.sub(count, n.scalarLike(queries, count)), query), key);
    Value allowed = n.compare(ComparePredicate::Lt, key, count);
    auto also = [&](ComparePredicate predicate, int64_t bound) {
      allowed =
          n.binary(BinaryKind::And, allowed,
                   n.compare(predicate, ahead, n.scalarLike(bound, ahead)));
    };
    if (parts.causal)
      also(ComparePredicate::Ge, 0);
    if (left >= 0)
      also(ComparePredicate::Le, left);
    if (right >= 0)
      also(ComparePredicate::Ge, -right);
    parts.causal = parts.causalFromEnd = false;
    parts.mask = joinMasks(n, parts.mask, allowed);
    return;
  }
  if (parts.causal && past != 0 && past != keys - queries) {
    parts.mask =
        joinMasks(n, parts.mask, bandMask(n, queries, keys, [&](int64_t ahead) {
                    return past + ahead >= 0;
                  }));
    parts.causal = false;
  }
  parts.causalFromEnd = parts.causal && past != 0;
  if (left >= 0 || right >= 0)
    parts.mask =
        joinMasks(n, parts.mask, bandMask(n, queries, keys, [&](int64_t ahead) {
                    return (left < 0 || past + ahead <= left) &&
                           (right < 0 || past + ahead >= -right);
                  }));
}

/// The output of scores, at the point that the mode says.
static Value scoresOutput(Node &n, const AttentionParts &parts) {
  int64_t mode = n.getInt("qk_matmul_output_mode", 0);
  auto q = shapeOf(parts.q), k = shapeOf(parts.k);
  if (n.hasFailed() || q.size() != 4 || k.size() != 4)
    return {};
  int64_t group = q[1] / k[1], queries = q[2], keys = k[2];
  Value keysWide = parts.k;
  if (group > 1)
    keysWide =
        n.reshape(n.broadcast(n.reshape(keysWide, {k[0], k[1], 1, k[2], k[3]}),
                              {k[0], k[1], group, k[2], k[3]}),
                  {q[0], q[1], k[2], k[3]});
  Value scale = n.scalarLike(std::sqrt(parts.scale), parts.q);
  Value scores =
      n.matmul(n.mul(parts.q, scale), n.mul(keysWide, scale), false, true);
  if (mode == 0)
    return scores;
  if (parts.softcap > 0) {
    Value cap = n.scalarLike(parts.softcap, scores);
    scores = n.mul(n.unary(UnaryKind::Tanh, n.div(scores, cap)), cap);
  }
  if (mode == 1)
    return scores;
  Value mask = parts.mask;
  if (parts.causal) {
    int64_t past = parts.causalFromEnd ? keys - queries : 0;
    mask = joinMasks(n, mask, bandMask(n, queries, keys, [&](int64_t ahead) {
                       return past + ahead >= 0;
                     }));
  }
  if (mask && !isFloat(mask))
    mask = n.select(mask, n.scalarLike(0, scores),
                    n.scalarLike(-INFINITY, scores));
  if (mask)
    scores = n.add(scores, mask);
  if (mode == 2)
    return scores;
  // A row without any key is zero: exp(x - max) would be NaN.
  Value top = n.reduce(nn::ReduceKind::Max, scores, {3}, true);
  Value none =
      n.compare(ComparePredicate::Eq, top, n.scalarLike(-INFINITY, scores));
  return n.select(none, n.scalarLike(0, scores),
                  n.make<nn::SoftmaxOp>(scores, 3));
}

static Value importAttention(Node &n) {
  AttentionParts parts;
  bool flat = rankOf(n.input(0)) == 3;
  int64_t heads = n.getInt("q_num_heads", 0),
          keyHeads = n.getInt("kv_num_heads", 0);
  parts.q = splitHeads(n, n.input(0), heads);
  parts.k = splitHeads(n, n.input(1), keyHeads);
  parts.v = splitHeads(n, n.input(2), keyHeads);
  if (rankOf(parts.q) != 4 || rankOf(parts.k) != 4 || rankOf(parts.v) != 4)
    return n.fail("has inputs of rank " + Twine(rankOf(n.input(0))) +
                  ", expected 3 or 4");
  int64_t past = 0;
  if (n.input(4) && n.input(5)) {
    past = shapeOf(n.input(4))[2];
    parts.k = n.concat({n.input(4), parts.k}, 2);
    parts.v = n.concat({n.input(5), parts.v}, 2);
  }
  if (!parts.k || !parts.v)
    return {};
  int64_t width = shapeOf(parts.q)[3];
  parts.scale = n.attribute("scale") ? n.getFloat("scale", 1)
                                     : 1 / std::sqrt(double(width));
  parts.softcap = n.getFloat("softcap", 0);
  parts.causal = n.getInt("is_causal", 0) != 0;
  parts.causalFromEnd = false;
  parts.mask = givenMask(n, shapeOf(parts.k)[2]);
  if (n.hasFailed())
    return {};
  addMasks(n, parts, past);
  if (n.hasFailed())
    return {};
  auto flag = [&](bool on) {
    return on ? n.builder.getUnitAttr() : UnitAttr();
  };
  Value y = n.make<nn::AttentionOp>(
      parts.q, parts.k, parts.v, Node::Maybe{parts.mask},
      n.builder.getF64FloatAttr(parts.scale), flag(parts.causal),
      flag(parts.causalFromEnd), n.builder.getF64FloatAttr(parts.softcap));
  n.set(1, parts.k);
  n.set(2, parts.v);
  if (n.wantsOutput(3))
    n.set(3, scoresOutput(n, parts));
  return flat ? joinHeads(n, y) : y;
}

//===----------------------------------------------------------------------===//
// RotaryEmbedding
//===----------------------------------------------------------------------===//

/// A table [batch, length, half], or [positions, half] with position ids, as
/// [batch, 1, length, 2 half].
static Value rotaryTable(Node &n, Value table, Value positions, int64_t half,
                         bool interleaved) {
  if (positions)
    table = n.gather(table, positions, 0);
  if (rankOf(table) != 3 || shapeOf(table)[2] != half)
    return n.fail("has a table of cosines or sines whose shape is not [batch, "
                  "length, " +
                  Twine(half) + "]");
  int64_t batch = shapeOf(table)[0], length = shapeOf(table)[1];
  if (!interleaved)
    return n.reshape(n.concat({table, table}, 2), {batch, 1, length, 2 * half});
  return n.reshape(n.broadcast(n.reshape(table, {batch, length, half, 1}),
                               {batch, length, half, 2}),
                   {batch, 1, length, 2 * half});
}

static Value importRotaryEmbedding(Node &n) {
  bool flat = rankOf(n.input(0)) == 3;
  Value x = splitHeads(n, n.input(0), n.getInt("num_heads", 0));
  if (rankOf(x) != 4)
    return n.fail("has an input of rank " + Twine(rankOf(n.input(0))) +
                  ", expected 3 or 4");
  int64_t width = shapeOf(x)[3];
  int64_t turned = n.getInt("rotary_embedding_dim", 0);
  if (turned == 0)
    turned = width;
  if (turned < 0 || turned > width || turned % 2 != 0)
    return n.fail("rotates " + Twine(turned) + " of " + Twine(width) +
                  " elements, expected an even part");
  bool interleaved = n.getInt("interleaved", 0) != 0;
  Value cosine =
      rotaryTable(n, n.input(1), n.input(3), turned / 2, interleaved);
  Value sine = rotaryTable(n, n.input(2), n.input(3), turned / 2, interleaved);
  Value part = turned == width ? x : n.slice(x, 3, 0, turned);
  Value y = n.make<nn::RopeOp>(
      part, cosine, sine, interleaved ? n.builder.getUnitAttr() : UnitAttr(),
      UnitAttr());
  if (turned != width)
    y = n.concat({y, n.slice(x, 3, turned, width)}, 3);
  return flat ? joinHeads(n, y) : y;
}

void mgq::onnx::registerAttention(Registry &r) {
  r["Attention"] = importAttention;
  r["RotaryEmbedding"] = importRotaryEmbedding;
}
