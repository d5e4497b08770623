//===- FlashAttention.cpp - Attention block by block, forward -------------===//
//
// A task is a block of queries of one head. Blocks of keys go by:
//
//   S = Q K^T                      (K's block transposed into panels)
//   S = cap(S scale) + mask        in units of log2: softmax is 2^(S - max)
//   max' = max(max, S), a = 2^(max - max'), P = 2^(S - max')
//   sum = a sum + rows of P,  O = a O + P V
//
// and O / sum is written at the end. A row that has seen no key yet has max
// -inf, and 0 takes its place in the differences: P is 0, sum is 0, and such a
// row becomes zeros.
//
// Causal: a panel of keys is only multiplied by the queries that see its first
// key, and P V stops at the last key that a group of queries sees.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/FlashAttention.h"
#include "passes/Kernels/FlashAttentionBlocks.h"
#include "passes/Kernels/VectorMath.h"

#include "llvm/ADT/bit.h"

#include <limits>

using namespace mlir;
using namespace mgq::kernels;

using Vals = KernelBuilder::Vals;

static constexpr float kInfinity = std::numeric_limits<float>::infinity();
static constexpr float kLog2E = 1.44269504f;

std::string AttentionKind::getName() const {
  static constexpr const char *kMasks[] = {"", "b", "f"};
  std::string name = "mgq_attention_";
  name += causal ? "c" : "n";
  name += softcap ? "s" : "";
  name += kMasks[int(mask)];
  name += maskByQuery ? "q" : "";
  return name;
}

SmallVector<int64_t> AttentionShape::getFields() const {
  // 2^x needs scores times log2(e); a cap c is c tanh(score / c).
  double in = softcap > 0 ? scale / softcap : scale * 1.4426950408889634;
  double out = softcap * 1.4426950408889634;
  auto bits = [](double value) {
    return int64_t(llvm::bit_cast<uint32_t>(float(value)));
  };
  SmallVector<int64_t> fields = {
      batch,      heads,        kvHeads,     queries,  keys,     depth,
      valueDepth, causalOffset, bits(scale), bits(in), bits(out)};
  for (const Strides &strides : {q, k, v, o, gradO, gradQ, gradK, gradV, mask})
    llvm::append_range(fields, strides);
  return fields;
}

Val FlashAttention::field(Val shape, int64_t index) {
  return kb.load(kb.i64(), kb.at(shape, index, kb.i64()));
}

FlashAttention::Sizes FlashAttention::loadSizes(Val shape) {
  auto number = [&](int64_t index) {
    return kb.load(kb.f32(), kb.at(shape, index, kb.i64()));
  };
  return {shape,
          field(shape, HEADS),
          field(shape, KV_HEADS),
          field(shape, QUERIES),
          field(shape, KEYS),
          field(shape, DEPTH),
          field(shape, VALUE_DEPTH),
          field(shape, CAUSAL_OFFSET),
          number(SCALE),
          number(SCALE_IN),
          number(SCALE_OUT)};
}

FlashAttention::Rows FlashAttention::loadRows(const Sizes &sizes, Val base,
                                              int64_t firstField, Val batch,
                                              Val head) {
  Val offset = batch * field(sizes.shape, firstField) +
               head * field(sizes.shape, firstField + 1);
  return {kb.at(base, offset), field(sizes.shape, firstField + 2)};
}

FlashAttention::Rows FlashAttention::loadMask(const AttentionKind &kind,
                                              const Sizes &sizes, Val base,
                                              Val batch, Val head) {
  if (kind.mask == MaskKind::none)
    return {};
  Val offset =
      batch * field(sizes.shape, MASK) + head * field(sizes.shape, MASK + 1);
  Type element = kind.mask == MaskKind::boolean ? kb.i8() : kb.f32();
  return {kb.at(base, offset, element), field(sizes.shape, MASK + 2)};
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// Rows [first, first + count) as panels of columns: B of a product.
void FlashAttention::packTransposed(const Rows &rows, Val first, Val count,
                                    Val depth, Val target) {
  const int64_t panel = gemms.getFamily().panel();
  kb.forLoop(kb.i(0), count, panel, [&](Val row) {
    kb.call(gemms.getTranspose(),
            {kb.at(rows.base, (first + row) * rows.stride), rows.stride,
             kb.min(count - row, kb.i(panel)), depth,
             kb.at(target, row * depth), kb.i(panel)});
  });
}

/// The end of the keys that a block of queries sees.
Val FlashAttention::keyEnd(const AttentionKind &kind, const Sizes &sizes,
                           Val query, Val queries) {
  if (!kind.causal)
    return sizes.keys;
  return kb.min(sizes.keys, query + queries + sizes.causalOffset);
}

/// How many of the tile's keys its row `row` sees.
Val FlashAttention::visibleKeys(const AttentionKind &kind, const Sizes &sizes,
                                const Tile &tile, Val row) {
  if (!kind.causal)
    return tile.keys;
  Val end = tile.query + row + sizes.causalOffset + 1 - tile.key;
  return kb.max(kb.min(end, tile.keys), kb.i(0));
}

/// tile = left (rows of queries) x packed; where queries see no key of a panel
/// it is not written.
void FlashAttention::multiplyTile(const AttentionKind &kind, const Sizes &sizes,
                                  const Tile &tile, const Rows &left,
                                  Val packed, Val depth, Val target) {
  const int64_t panel = gemms.getFamily().panel();
  const int64_t stride = tileStride(gemms.getFamily());
  auto multiply = [&](Val firstRow, Val key, Val keys) {
    kb.call(gemms.getBlock(false),
            {kb.at(left.base, (tile.query + firstRow) * left.stride),
             left.stride, kb.at(packed, key * depth), kb.i(panel),
             depth * panel, kb.at(target, firstRow * stride + key),
             kb.i(stride), tile.queries - firstRow, keys, depth, kb.i(0)});
  };
  if (!kind.causal) {
    multiply(kb.i(0), kb.i(0), tile.keys);
    return;
  }
  kb.forLoop(kb.i(0), tile.keys, panel, [&](Val key) {
    Val first = tile.key + key - sizes.causalOffset - tile.query;
    first = kb.min(kb.max(first, kb.i(0)), tile.queries);
    multiply(first, key, kb.min(tile.keys - key, kb.i(panel)));
  });
}

/// target (+)= tile x right (rows of keys).
void FlashAttention::multiplyRows(const AttentionKind &kind, const Sizes &sizes,
                                  const Tile &tile, Val scores,
                                  const Rows &right, Val columns, Val target,
                                  Val targetStride, Val accumulate) {
  const CpuFamily &family = gemms.getFamily();
  const int64_t stride = tileStride(family);
  auto multiply = [&](Val row, Val rows, Val keys) {
    kb.call(gemms.getBlock(false),
            {kb.at(scores, row * stride), kb.i(stride),
             kb.at(right.base, tile.key * right.stride), right.stride,
             kb.i(family.panel()), kb.at(target, row * targetStride),
             targetStride, rows, columns, keys, accumulate});
  };
  if (!kind.causal) {
    multiply(kb.i(0), tile.queries, tile.keys);
    return;
  }
  const int64_t group = 2 * family.rows;
  kb.forLoop(kb.i(0), tile.queries, group, [&](Val row) {
    Val rows = kb.min(tile.queries - row, kb.i(group));
    multiply(row, rows, visibleKeys(kind, sizes, tile, row + rows - 1));
  });
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

KernelBuilder::Vals
mgq::kernels::vectorLoop(KernelBuilder &kb, Val count, ArrayRef<Val> inits,
                         function_ref<Vals(Val, Val, Vals)> body) {
  const int64_t lanes = kb.getLanes();
  Val rest = count % lanes, whole = count - rest;
  Vals carried =
      kb.forLoop(kb.i(0), whole, lanes, inits, [&](Val column, Vals values) {
        return body(column, Val(), values);
      });
  auto last = [&] { return body(whole, kb.laneMask(rest), carried); };
  if (!inits.empty())
    return kb.ifElse(rest > 0, last, [&] { return carried; });
  kb.ifThen(rest > 0, [&] { last(); });
  return {};
}

/// A vector of products q k as scores in units of log2, capped and masked; -inf
/// outside of `laneMask`. `squashed`: the cap's tanh.
Val FlashAttention::transform(const AttentionKind &kind, const Sizes &sizes,
                              Val score, const Rows &mask, Val query, Val key,
                              Val laneMask, Val *squashed) {
  OpBuilder &ops = kb.getOps();
  Location loc = kb.getLoc();
  score = score * kb.splat(sizes.scaleIn);
  if (kind.softcap) {
    Val t(kb, emitTanh(ops, loc, score));
    if (squashed)
      *squashed = t;
    score = t * kb.splat(sizes.scaleOut);
  }
  Val hidden = kb.splat(-kInfinity);
  if (kind.mask == MaskKind::boolean) {
    auto type = VectorType::get({kb.getLanes()}, kb.i8());
    Val zero(kb, arith::ConstantOp::create(ops, loc, ops.getZeroAttr(type)));
    Val bytes;
    if (kind.maskByQuery) {
      Val byte =
          kb.load(kb.i8(), kb.at(mask.base, query * mask.stride, kb.i8()));
      bytes = Val(kb, vector::BroadcastOp::create(ops, loc, type, byte));
    } else {
      Val at = kb.at(mask.base, query * mask.stride + key, kb.i8());
      bytes = laneMask ? kb.maskedLoad(at, laneMask, type) : kb.load(type, at);
    }
    Val visible(kb, arith::CmpIOp::create(ops, loc, arith::CmpIPredicate::ne,
                                          bytes, zero));
    score = kb.select(visible, score, hidden);
  }
  if (kind.mask == MaskKind::additive) {
    Val added;
    if (kind.maskByQuery) {
      added =
          kb.splat(kb.load(kb.f32(), kb.at(mask.base, query * mask.stride)));
    } else {
      Val at = kb.at(mask.base, query * mask.stride + key);
      added = laneMask ? kb.maskedLoad(at, laneMask) : kb.load(kb.vec(), at);
    }
    // The lowest finite number must not become -inf: a row of it is no row
    // without keys.
    Val lowest = kb.splat(std::numeric_limits<float>::lowest());
    Val scaled = kb.maxf(lowest, added * kb.splat(kLog2E));
    score = score + kb.select(added == hidden, hidden, scaled);
  }
  return laneMask ? kb.select(laneMask, score, hidden) : score;
}

/// Turns a row of products into P; returns the new max, the new sum and the
/// factor of what was summed before. Writes zeros up to the tile's last key.
KernelBuilder::Vals FlashAttention::scoreRow(const AttentionKind &kind,
                                             const Sizes &sizes,
                                             const Tile &tile, Val row,
                                             Val scores, const Rows &mask,
                                             Val oldMax, Val oldSum) {
  OpBuilder &ops = kb.getOps();
  Location loc = kb.getLoc();
  const int64_t lanes = kb.getLanes();
  Val base = kb.at(scores, row * tileStride(gemms.getFamily()));
  Val count = visibleKeys(kind, sizes, tile, row);
  Val top = vectorLoop(kb, count, {kb.splat(-kInfinity)},
                       [&](Val column, Val laneMask, Vals top) -> Vals {
                         // Rows of the tile have room for a whole last vector.
                         Val at = kb.at(base, column);
                         Val score = transform(
                             kind, sizes, kb.load(kb.vec(), at), mask,
                             tile.query + row, tile.key + column, laneMask);
                         kb.store(score, at);
                         return {kb.maxf(top[0], score)};
                       })[0];
  Val newMax = kb.maxf(oldMax, kb.reduceMax(top));
  Val shift = kb.select(newMax == kb.f(-kInfinity), kb.f(0.0f), newMax);
  Val shifts = kb.splat(shift);
  Val end = kb.ceilDiv(count, lanes) * lanes;
  Val sums = kb.forLoop(kb.i(0), end, lanes, {kb.splat(0.0f)},
                        [&](Val column, Vals sum) -> Vals {
                          Val at = kb.at(base, column);
                          Val x = kb.load(kb.vec(), at) - shifts;
                          Val p(kb, emitExp2NonPositive(ops, loc, x));
                          kb.store(p, at);
                          return {sum[0] + p};
                        })[0];
  if (kind.causal)
    kb.forLoop(end, tile.keys, lanes, [&](Val column) {
      kb.store(kb.splat(0.0f), kb.at(base, column));
    });
  Val factor(kb, emitExp2NonPositive(ops, loc, oldMax - shift));
  return {newMax, oldSum * factor + kb.reduceSum(sums), factor};
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

LLVM::LLVMFuncOp FlashAttention::getForwardTask(const AttentionKind &kind) {
  Type ptr = kb.ptr(), i64 = kb.i64();
  return kb.function(kind.getName() + "_task", {ptr, i64}, [&](Vals args) {
    auto pointer = [&](int64_t i) {
      return kb.load(ptr, kb.at(args[0], i, ptr));
    };
    Sizes sizes = loadSizes(pointer(5));
    const CpuFamily &family = gemms.getFamily();
    const int64_t stride = tileStride(family), lanes = family.lanes;
    // index = (batch, head, block of queries).
    Val blocks = kb.ceilDiv(sizes.queries, kQueryBlock);
    Val query = args[1] % blocks * kQueryBlock;
    Val head = args[1] / blocks % sizes.heads;
    Val batch = args[1] / blocks / sizes.heads;
    Val kvHead = head / (sizes.heads / sizes.kvHeads);
    Rows q = loadRows(sizes, pointer(0), Q, batch, head);
    Rows k = loadRows(sizes, pointer(1), K, batch, kvHead);
    Rows v = loadRows(sizes, pointer(2), V, batch, kvHead);
    Rows mask = loadMask(kind, sizes, pointer(3), batch, head);
    Rows o = loadRows(sizes, pointer(4), O, batch, head);

    Val packedK = kb.stack(sizes.depth * kKeyBlock);
    Val scores = kb.stack(kQueryBlock * stride);
    Val sumStride = kb.ceilDiv(sizes.valueDepth, lanes) * lanes;
    Val outputs = kb.stack(sumStride * kQueryBlock);
    Val maxima = kb.stack(kQueryBlock), sums = kb.stack(kQueryBlock);

    Val queries = kb.min(sizes.queries - query, kb.i(kQueryBlock));
    kb.forLoop(kb.i(0), queries, 1, [&](Val row) {
      kb.store(kb.f(-kInfinity), kb.at(maxima, row));
      kb.store(kb.f(0.0f), kb.at(sums, row));
    });
    kb.forLoop(
        kb.i(0), keyEnd(kind, sizes, query, queries), kKeyBlock, [&](Val key) {
          Val keysLeft = keyEnd(kind, sizes, query, queries) - key;
          Tile tile{query, queries, key, kb.min(keysLeft, kb.i(kKeyBlock))};
          packTransposed(k, key, tile.keys, sizes.depth, packedK);
          multiplyTile(kind, sizes, tile, q, packedK, sizes.depth, scores);
          kb.forLoop(kb.i(0), queries, 1, [&](Val row) {
            Val maxAt = kb.at(maxima, row), sumAt = kb.at(sums, row);
            Vals state =
                scoreRow(kind, sizes, tile, row, scores, mask,
                         kb.load(kb.f32(), maxAt), kb.load(kb.f32(), sumAt));
            kb.store(state[0], maxAt);
            kb.store(state[1], sumAt);
            kb.ifThen((key > 0) & (state[2] != kb.f(1.0f)), [&] {
              kb.forLoop(kb.i(0), sumStride, lanes, [&](Val column) {
                Val at = kb.at(outputs, row * sumStride + column);
                kb.store(kb.load(kb.vec(), at) * kb.splat(state[2]), at);
              });
            });
          });
          multiplyRows(kind, sizes, tile, scores, v, sizes.valueDepth, outputs,
                       sumStride, kb.select(key > 0, kb.i(1), kb.i(0)));
        });
    kb.forLoop(kb.i(0), queries, 1, [&](Val row) {
      Val sum = kb.load(kb.f32(), kb.at(sums, row));
      Val inverse = kb.splat(kb.f(1.0f) / sum), zero = kb.splat(0.0f);
      Val isEmpty = kb.splat(sum) == zero;
      Val source = kb.at(outputs, row * sumStride);
      Val target = kb.at(o.base, (query + row) * o.stride);
      vectorLoop(kb, sizes.valueDepth, {},
                 [&](Val column, Val laneMask, Vals) -> Vals {
                   Val value = kb.load(kb.vec(), kb.at(source, column));
                   value = kb.select(isEmpty, zero, value * inverse);
                   if (laneMask)
                     kb.maskedStore(value, kb.at(target, column), laneMask);
                   else
                     kb.store(value, kb.at(target, column));
                   return {};
                 });
    });
  });
}

/// The function that hands out tasks: `pointers` tensors and the shape.
LLVM::LLVMFuncOp FlashAttention::getEntry(StringRef name, int64_t pointers,
                                          LLVM::LLVMFuncOp task,
                                          bool backward) {
  SmallVector<Type> types(pointers + 1, kb.ptr());
  return kb.function(name, types, [&](Vals args) {
    Val context = kb.stack(args.size(), kb.ptr());
    for (auto [i, argument] : llvm::enumerate(args))
      kb.store(argument, kb.at(context, i, kb.ptr()));
    Val shape = args.back();
    Val tasks = field(shape, BATCH);
    if (backward)
      tasks = tasks * field(shape, KV_HEADS);
    else
      tasks = tasks * field(shape, HEADS) *
              kb.ceilDiv(field(shape, QUERIES), kQueryBlock);
    kb.parallelFor(task, context, tasks);
  });
}

LLVM::LLVMFuncOp FlashAttention::getForward(const AttentionKind &kind) {
  return getEntry(kind.getName(), 5, getForwardTask(kind), /*backward=*/false);
}
