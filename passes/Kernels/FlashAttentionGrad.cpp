//===- FlashAttentionGrad.cpp - Attention block by block, backward --------===//
//
// A task is a kv head with all the query heads that read it, so that the sums
// of dK and dV have one order. It first goes over all keys once per block of
// queries for the rows' statistics: max and 1 / sum of the softmax, and
// D = rowsum(dO o O). Then, blocks of keys outside, heads and blocks of queries
// inside:
//
//   S = Q K^T, dP = dO V^T         (K's and V's block in panels)
//   P = 2^(S' - max) / sum         S' = cap(S scale) + mask
//   dS = P (dP - D) scale          times 1 - tanh^2 with a cap
//   dV += P^T dO,  dK += dS^T Q,  dQ += dS K
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/FlashAttentionBlocks.h"
#include "passes/Kernels/VectorMath.h"

#include <limits>

using namespace mlir;
using namespace mgq::kernels;

using Vals = KernelBuilder::Vals;

static constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Fills rows with zeros.
void FlashAttention::zeroRows(const Rows &rows, Val count, Val columns) {
  kb.forLoop(kb.i(0), count, 1, [&](Val row) {
    Val base = kb.at(rows.base, row * rows.stride);
    vectorLoop(kb, columns, {}, [&](Val column, Val laneMask, Vals) -> Vals {
      Val at = kb.at(base, column);
      if (laneMask)
        kb.maskedStore(kb.splat(0.0f), at, laneMask);
      else
        kb.store(kb.splat(0.0f), at);
      return {};
    });
  });
}

/// Per query of a head: max, 1 / sum (0 where no key is seen), rowsum(dO o O).
void FlashAttention::statistics(const AttentionKind &kind, const Sizes &sizes,
                                const Rows &q, const Rows &k, const Rows &o,
                                const Rows &gradO, const Rows &mask,
                                Val packedK, Val scores, Val maxima,
                                Val inverses, Val products) {
  kb.forLoop(kb.i(0), sizes.queries, kQueryBlock, [&](Val query) {
    Val queries = kb.min(sizes.queries - query, kb.i(kQueryBlock));
    kb.forLoop(kb.i(0), queries, 1, [&](Val row) {
      // inverses hold sums until the end.
      kb.store(kb.f(-kInfinity), kb.at(maxima, query + row));
      kb.store(kb.f(0.0f), kb.at(inverses, query + row));
    });
    kb.forLoop(
        kb.i(0), keyEnd(kind, sizes, query, queries), kGradientKeyBlock,
        [&](Val key) {
          Val left = keyEnd(kind, sizes, query, queries) - key;
          Tile tile{query, queries, key, kb.min(left, kb.i(kGradientKeyBlock))};
          packTransposed(k, key, tile.keys, sizes.depth, packedK);
          multiplyTile(kind, sizes, tile, q, packedK, sizes.depth, scores);
          kb.forLoop(kb.i(0), queries, 1, [&](Val row) {
            Val maxAt = kb.at(maxima, query + row);
            Val sumAt = kb.at(inverses, query + row);
            Vals state =
                scoreRow(kind, sizes, tile, row, scores, mask,
                         kb.load(kb.f32(), maxAt), kb.load(kb.f32(), sumAt));
            kb.store(state[0], maxAt);
            kb.store(state[1], sumAt);
          });
        });
    kb.forLoop(kb.i(0), queries, 1, [&](Val row) {
      Val at = query + row;
      Val max = kb.load(kb.f32(), kb.at(maxima, at));
      Val sum = kb.load(kb.f32(), kb.at(inverses, at));
      Val zero = kb.f(0.0f);
      kb.store(kb.select(max == kb.f(-kInfinity), zero, max),
               kb.at(maxima, at));
      kb.store(kb.select(sum == zero, zero, kb.f(1.0f) / sum),
               kb.at(inverses, at));
      Val left = kb.at(o.base, at * o.stride);
      Val right = kb.at(gradO.base, at * gradO.stride);
      Val product =
          vectorLoop(kb, sizes.valueDepth, {kb.splat(0.0f)},
                     [&](Val column, Val laneMask, Vals sum) -> Vals {
                       auto load = [&](Val row) {
                         Val from = kb.at(row, column);
                         return laneMask ? kb.maskedLoad(from, laneMask)
                                         : kb.load(kb.vec(), from);
                       };
                       return {kb.fma(load(left), load(right), sum[0])};
                     })[0];
      kb.store(kb.reduceSum(product), kb.at(products, at));
    });
  });
}

/// Turns tiles of q k and dO v into P and dS; zeros where no key is seen.
void FlashAttention::gradientRows(const AttentionKind &kind, const Sizes &sizes,
                                  const Tile &tile, Val scores, Val gradients,
                                  const Rows &mask, Val maxima, Val inverses,
                                  Val products) {
  OpBuilder &ops = kb.getOps();
  Location loc = kb.getLoc();
  const int64_t stride = tileStride(gemms.getFamily()), lanes = kb.getLanes();
  kb.forLoop(kb.i(0), tile.queries, 1, [&](Val row) {
    auto perRow = [&](Val array) {
      return kb.splat(kb.load(kb.f32(), kb.at(array, tile.query + row)));
    };
    Val max = perRow(maxima), inverse = perRow(inverses);
    Val product = perRow(products);
    Val one = kb.splat(1.0f), zero = kb.splat(0.0f);
    Val scoreRow = kb.at(scores, row * stride);
    Val gradientRow = kb.at(gradients, row * stride);
    Val count = visibleKeys(kind, sizes, tile, row);
    vectorLoop(kb, count, {}, [&](Val column, Val laneMask, Vals) -> Vals {
      Val scoreAt = kb.at(scoreRow, column);
      Val gradientAt = kb.at(gradientRow, column);
      Val squashed;
      Val score =
          transform(kind, sizes, kb.load(kb.vec(), scoreAt), mask,
                    tile.query + row, tile.key + column, laneMask, &squashed);
      Val p(kb, emitExp2NonPositive(ops, loc, score - max));
      p = p * inverse;
      Val gradient = kb.load(kb.vec(), gradientAt) - product;
      gradient = p * gradient * kb.splat(sizes.scale);
      if (kind.softcap)
        gradient = gradient * (one - squashed * squashed);
      if (laneMask)
        gradient = kb.select(laneMask, gradient, zero);
      kb.store(p, scoreAt);
      kb.store(gradient, gradientAt);
      return {};
    });
    if (kind.causal)
      kb.forLoop(kb.ceilDiv(count, lanes) * lanes, tile.keys, lanes,
                 [&](Val column) {
                   kb.store(zero, kb.at(scoreRow, column));
                   kb.store(zero, kb.at(gradientRow, column));
                 });
  });
}

/// target (rows of keys) += tile^T x right (rows of queries).
void FlashAttention::multiplyTransposed(const AttentionKind &kind,
                                        const Sizes &sizes, const Tile &tile,
                                        Val scores, const Rows &right,
                                        Val columns, const Rows &target) {
  const CpuFamily &family = gemms.getFamily();
  const int64_t stride = tileStride(family);
  auto multiply = [&](Val key, Val keys, Val firstRow) {
    kb.call(gemms.getBlock(true),
            {kb.at(scores, firstRow * stride + key), kb.i(stride),
             kb.at(right.base, (tile.query + firstRow) * right.stride),
             right.stride, kb.i(family.panel()),
             kb.at(target.base, (tile.key + key) * target.stride),
             target.stride, keys, columns, tile.queries - firstRow, kb.i(1)});
  };
  if (!kind.causal) {
    multiply(kb.i(0), tile.keys, kb.i(0));
    return;
  }
  const int64_t group = 2 * family.rows;
  kb.forLoop(kb.i(0), tile.keys, group, [&](Val key) {
    Val first = tile.key + key - sizes.causalOffset - tile.query;
    first = kb.min(kb.max(first, kb.i(0)), tile.queries);
    multiply(key, kb.min(tile.keys - key, kb.i(group)), first);
  });
}

LLVM::LLVMFuncOp FlashAttention::getBackwardTask(const AttentionKind &kind) {
  Type ptr = kb.ptr(), i64 = kb.i64();
  std::string name = kind.getName() + "_grad_task";
  return kb.function(name, {ptr, i64}, [&](Vals args) {
    auto pointer = [&](int64_t i) {
      return kb.load(ptr, kb.at(args[0], i, ptr));
    };
    Sizes sizes = loadSizes(pointer(9));
    const int64_t stride = tileStride(gemms.getFamily());
    Val kvHead = args[1] % sizes.kvHeads, batch = args[1] / sizes.kvHeads;
    Val group = sizes.heads / sizes.kvHeads;
    Val firstHead = kvHead * group;
    Rows k = loadRows(sizes, pointer(1), K, batch, kvHead);
    Rows v = loadRows(sizes, pointer(2), V, batch, kvHead);
    Rows gradK = loadRows(sizes, pointer(7), GRAD_K, batch, kvHead);
    Rows gradV = loadRows(sizes, pointer(8), GRAD_V, batch, kvHead);
    auto perHead = [&](int64_t argument, int64_t fields, Val head) {
      return loadRows(sizes, pointer(argument), fields, batch,
                      firstHead + head);
    };

    Val packedK = kb.stack(sizes.depth * kGradientKeyBlock);
    Val packedV = kb.stack(sizes.valueDepth * kGradientKeyBlock);
    Val scores = kb.stack(kQueryBlock * stride);
    Val gradients = kb.stack(kQueryBlock * stride);
    Val rowCount = group * sizes.queries;
    Val maxima = kb.stack(rowCount), inverses = kb.stack(rowCount);
    Val products = kb.stack(rowCount);

    zeroRows(gradK, sizes.keys, sizes.depth);
    zeroRows(gradV, sizes.keys, sizes.valueDepth);
    kb.forLoop(kb.i(0), group, 1, [&](Val head) {
      Val first = head * sizes.queries;
      zeroRows(perHead(6, GRAD_Q, head), sizes.queries, sizes.depth);
      statistics(kind, sizes, perHead(0, Q, head), k, perHead(3, O, head),
                 perHead(4, GRAD_O, head),
                 loadMask(kind, sizes, pointer(5), batch, firstHead + head),
                 packedK, scores, kb.at(maxima, first), kb.at(inverses, first),
                 kb.at(products, first));
    });

    kb.forLoop(kb.i(0), sizes.keys, kGradientKeyBlock, [&](Val key) {
      Val keys = kb.min(sizes.keys - key, kb.i(kGradientKeyBlock));
      packTransposed(k, key, keys, sizes.depth, packedK);
      packTransposed(v, key, keys, sizes.valueDepth, packedV);
      // The first block of queries that sees a key of this block.
      Val firstQuery = kb.i(0);
      if (kind.causal) {
        firstQuery = kb.max(key - sizes.causalOffset, kb.i(0));
        firstQuery = firstQuery / kQueryBlock * kQueryBlock;
      }
      kb.forLoop(kb.i(0), group, 1, [&](Val head) {
        Val first = head * sizes.queries;
        Rows q = perHead(0, Q, head), gradO = perHead(4, GRAD_O, head);
        Rows gradQ = perHead(6, GRAD_Q, head);
        Rows mask = loadMask(kind, sizes, pointer(5), batch, firstHead + head);
        kb.forLoop(firstQuery, sizes.queries, kQueryBlock, [&](Val query) {
          Tile tile{query, kb.min(sizes.queries - query, kb.i(kQueryBlock)),
                    key, keys};
          multiplyTile(kind, sizes, tile, q, packedK, sizes.depth, scores);
          multiplyTile(kind, sizes, tile, gradO, packedV, sizes.valueDepth,
                       gradients);
          gradientRows(kind, sizes, tile, scores, gradients, mask,
                       kb.at(maxima, first), kb.at(inverses, first),
                       kb.at(products, first));
          multiplyTransposed(kind, sizes, tile, scores, gradO, sizes.valueDepth,
                             gradV);
          multiplyTransposed(kind, sizes, tile, gradients, q, sizes.depth,
                             gradK);
          multiplyRows(kind, sizes, tile, gradients, k, sizes.depth,
                       kb.at(gradQ.base, query * gradQ.stride), gradQ.stride,
                       kb.i(1));
        });
      });
    });
  });
}

LLVM::LLVMFuncOp FlashAttention::getBackward(const AttentionKind &kind) {
  return getEntry(kind.getName() + "_grad", 9, getBackwardTask(kind),
                  /*backward=*/true);
}
