//===- AttentionGradKernels.cpp - Attention by tiles, backward ------------===//
//
// First the statistics of each row: its maximum and the reciprocal of its sum,
// as forward makes them without V, and D = rowsum(dO o O). Then
//
//   P = e^(S - maximum) / sum,  dS = P (dO V^T - D) scale,  times 1 - tanh^2
//   dQ = dS K                (a block owns queries, keys go by)
//   dV = P^T dO, dK = dS^T Q (a block owns keys, the queries of all heads that
//                             read them go by)
//
// One statistic, maximum + log(sum), would lose the sum of a row that a mask of
// large finite numbers hides: -3e38 + log(sum) is -3e38.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/AttentionWriter.h"

#include <limits>

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

AttentionWriter::Statistics AttentionWriter::loadStatistics(const Place &place,
                                                            Value query) {
  Value at = t->clamp(query, sizes.queries);
  Value stats = kernel.getArgument(MGQ_ATTENTION_STATS);
  return {t->load(stats, {t->index(0), place.batch, place.head, at}),
          t->load(stats, {t->index(1), place.batch, place.head, at}),
          t->load(kernel.getArgument(MGQ_ATTENTION_SUMS),
                  {place.batch, place.head, at})};
}

/// The first thread of the row stores them.
void AttentionWriter::storeStatistics(const Place &place, Value query,
                                      const Statistics &row) {
  Value mine = t->compare(P::Eq, t->columnOf(0), t->index(0));
  mine = t->land(mine, t->compare(P::Lt, query, t->index(sizes.queries)));
  Value stats = kernel.getArgument(MGQ_ATTENTION_STATS);
  t->when(mine, [&] {
    t->store(row.maximum, stats, {t->index(0), place.batch, place.head, query});
    t->store(row.factor, stats, {t->index(1), place.batch, place.head, query});
    t->store(row.product, kernel.getArgument(MGQ_ATTENTION_SUMS),
             {place.batch, place.head, query});
  });
}

/// P of an element.
Value AttentionWriter::probability(Value score, const Statistics &row) {
  return t->mul(t->exp(t->sub(score, row.maximum)), row.factor);
}

/// The sum of a row of dO o O.
Value AttentionWriter::rowProduct(const Place &place, Value query) {
  HeadRows result = rowsOf(MGQ_ATTENTION_RESULT, place);
  HeadRows grad = rowsOf(MGQ_ATTENTION_GRAD, place);
  Value row = t->clamp(query, sizes.queries), sum = t->f32(0);
  for (int64_t j = 0; j * kGrid < sizes.valueDepth; ++j) {
    Value column = t->columnOf(j), at = t->clamp(column, sizes.valueDepth);
    Value next = t->fma(t->loadElement(result, row, at),
                        t->loadElement(grad, row, at), sum);
    sum = t->select(t->compare(P::Lt, column, t->index(sizes.valueDepth)), next,
                    sum);
  }
  return t->rowSum(sum);
}

int64_t AttentionWriter::writeStatistics() {
  TileShape tile{valuesEach(sizes.queries), valuesEach(sizes.keys)};
  open(TileBuilder::floatsOfProducts(tile, sizes.depth));
  int64_t tiles = llvm::divideCeil(sizes.queries, tile.rows());
  Place place = findPlace(sizes.heads, tiles, tile.rows(), terms.causal);
  Place keys = place;
  keys.head = kvHeadOf(place.head);
  HeadRows q = rowsOf(MGQ_ATTENTION_Q, place);
  HeadRows k = rowsOf(MGQ_ATTENTION_K, keys);
  size_t rows = tile.rowsEach;
  Value never = t->f32(-std::numeric_limits<double>::infinity());
  Values carried(rows, never);
  carried.append(rows, t->f32(0));
  carried = t->range(
      t->index(0), keyEnd(tile, place.first), tile.columns(), carried,
      [&](Value key, Values carried) {
        RunningSoftmax running{Values(ArrayRef(carried).take_front(rows)),
                               Values(ArrayRef(carried).drop_front(rows))};
        Values p =
            scores(tile, t->products(tile, q, place.first, k, key), place, key);
        advance(tile, p, running);
        Values next = running.maxima;
        next.append(running.sums);
        return next;
      });
  for (size_t i = 0; i < rows; ++i) {
    Value query = t->add(place.first, t->rowOf(tile, i));
    storeStatistics(place, query,
                    {finite(carried[i]),
                     reciprocalOfSum(t->rowSum(carried[rows + i])),
                     rowProduct(place, query)});
  }
  close({MGQ_ATTENTION_STATS, MGQ_ATTENTION_SUMS});
  return sizes.batch * sizes.heads * tiles;
}

/// dS of an element.
Value AttentionWriter::gradient(Value p, Value grad, Value product,
                                Value squashed) {
  Value d = t->mul(p, t->sub(grad, product));
  if (squashed)
    d = t->mul(d, t->sub(t->f32(1), t->mul(squashed, squashed)));
  return t->mul(d, t->f32(terms.scale));
}

int64_t AttentionWriter::writeGradQ() {
  TileShape tile{valuesEach(sizes.queries), valuesEach(sizes.keys)};
  ColumnSplit split(sizes.depth);
  open(std::max({TileBuilder::floatsOfProducts(tile, sizes.depth),
                 TileBuilder::floatsOfProducts(tile, sizes.valueDepth),
                 TileBuilder::floatsOfSums(tile, sizes.depth)}));
  int64_t tiles = llvm::divideCeil(sizes.queries, tile.rows());
  Place place = findPlace(sizes.heads, tiles, tile.rows(), terms.causal);
  Place keys = place;
  keys.head = kvHeadOf(place.head);
  HeadRows q = rowsOf(MGQ_ATTENTION_Q, place);
  HeadRows k = rowsOf(MGQ_ATTENTION_K, keys);
  HeadRows v = rowsOf(MGQ_ATTENTION_V, keys);
  HeadRows grad = rowsOf(MGQ_ATTENTION_GRAD, place);
  Values queries;
  SmallVector<Statistics> statistics;
  for (int64_t i = 0; i < tile.rowsEach; ++i) {
    queries.push_back(t->add(place.first, t->rowOf(tile, i)));
    statistics.push_back(loadStatistics(place, queries[i]));
  }
  Values result = t->range(
      t->index(0), keyEnd(tile, place.first), tile.columns(),
      Values(tile.rowsEach * split.each, t->f32(0)),
      [&](Value key, Values result) {
        Values products = t->products(tile, q, place.first, k, key);
        Values gradients = t->products(tile, grad, place.first, v, key);
        for (int64_t i = 0; i < tile.rowsEach; ++i)
          for (int64_t j = 0; j < tile.columnsEach; ++j) {
            int64_t at = i * tile.columnsEach + j;
            Value squashed;
            Value s = score(products[at], place, queries[i],
                            t->add(key, t->columnOf(j)), false, &squashed);
            gradients[at] =
                gradient(probability(s, statistics[i]), gradients[at],
                         statistics[i].product, squashed);
          }
        return t->addProducts(tile, gradients, k, key, split, result);
      });
  t->storeRows(tile, result, split, rowsOf(MGQ_ATTENTION_GRAD_Q, place),
               place.first);
  close({MGQ_ATTENTION_GRAD_Q});
  return sizes.batch * sizes.heads * tiles;
}

int64_t AttentionWriter::writeGradKV() {
  ColumnSplit splitK(sizes.depth), splitV(sizes.valueDepth);
  // Both sums are in registers.
  int64_t columns = splitK.each + splitV.each;
  int64_t most = columns > 24 ? 1 : columns > 16 ? 2 : 4;
  TileShape tile{std::min(most, valuesEach(sizes.keys)),
                 valuesEach(sizes.queries)};
  open(std::max({TileBuilder::floatsOfProducts(tile, sizes.depth),
                 TileBuilder::floatsOfProducts(tile, sizes.valueDepth),
                 TileBuilder::floatsOfSums(tile, sizes.depth),
                 TileBuilder::floatsOfSums(tile, sizes.valueDepth)}));
  int64_t tiles = llvm::divideCeil(sizes.keys, tile.rows());
  int64_t group = sizes.heads / sizes.kvHeads;
  Place place = findPlace(sizes.kvHeads, tiles, tile.rows(), false);
  HeadRows k = rowsOf(MGQ_ATTENTION_K, place);
  HeadRows v = rowsOf(MGQ_ATTENTION_V, place);
  // The first tile of queries that sees a key of this one.
  Value firstQuery = t->index(0);
  if (terms.causal) {
    Value size = t->index(tile.columns());
    Value first = t->sub(place.first, t->index(sizes.causalOffset));
    first = t->max(first, firstQuery);
    firstQuery = t->mul(arith::DivUIOp::create(b, t->loc, first, size), size);
  }
  size_t ofK = tile.rowsEach * splitK.each, ofV = tile.rowsEach * splitV.each;
  auto addTile = [&](const Place &queries, Value query, Values result) {
    HeadRows q = rowsOf(MGQ_ATTENTION_Q, queries);
    HeadRows grad = rowsOf(MGQ_ATTENTION_GRAD, queries);
    Values gradients = t->products(tile, v, place.first, grad, query);
    Values p = t->products(tile, k, place.first, q, query);
    for (int64_t j = 0; j < tile.columnsEach; ++j) {
      Value own = t->add(query, t->columnOf(j));
      Statistics row = loadStatistics(queries, own);
      for (int64_t i = 0; i < tile.rowsEach; ++i) {
        int64_t at = i * tile.columnsEach + j;
        Value key = t->add(place.first, t->rowOf(tile, i)), squashed;
        Value s = score(p[at], queries, own, key, true, &squashed);
        p[at] = probability(s, row);
        gradients[at] = gradient(p[at], gradients[at], row.product, squashed);
      }
    }
    Values gradV = t->addProducts(tile, p, grad, query, splitV,
                                  Values(ArrayRef(result).drop_front(ofK)));
    Values gradK = t->addProducts(tile, gradients, q, query, splitK,
                                  Values(ArrayRef(result).take_front(ofK)));
    gradK.append(gradV);
    return gradK;
  };
  Values zeros(ofK + ofV, t->f32(0));
  Values result = t->range(
      t->index(0), t->index(group), 1, zeros, [&](Value member, Values result) {
        Place queries = place;
        queries.head = t->add(t->mul(place.head, t->index(group)), member);
        return t->range(firstQuery, t->index(sizes.queries), tile.columns(),
                        result, [&](Value query, Values result) {
                          return addTile(queries, query, result);
                        });
      });
  t->storeRows(tile, ValueRange(result).take_front(ofK), splitK,
               rowsOf(MGQ_ATTENTION_GRAD_K, place), place.first);
  t->storeRows(tile, ValueRange(result).drop_front(ofK), splitV,
               rowsOf(MGQ_ATTENTION_GRAD_V, place), place.first);
  close({MGQ_ATTENTION_GRAD_K, MGQ_ATTENTION_GRAD_V});
  return sizes.batch * sizes.kvHeads * tiles;
}
