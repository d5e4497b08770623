//===- AttentionKernels.cpp - Attention by tiles, forward and backward ----===//
//
// A block of forward owns a tile of queries of a head; tiles of keys go by,
// with the running maximum and sum of each row in registers:
//
//   S = cap(scale Q K^T) + mask
//   max' = max(max, S), a = e^(max - max'), P = e^(S - max')
//   sum = a sum + rows of P,  O = a O + P V
//
// and O / sum is written at the end. A row that has seen no key yet has maximum
// -inf, and 0 takes its place in the differences: P is 0, sum is 0, and such a
// row becomes zeros. Backward first does the same without V, for the logarithm
// of each row's sum, and makes D = rowsum(dO o O). Then
//
//   P = e^(S - statistics),  dS = P (dO V^T - D) scale,  times 1 - tanh^2
//   dQ = dS K                (a block owns queries, keys go by)
//   dV = P^T dO, dK = dS^T Q (a block owns keys, the queries of all heads that
//                             read them go by)
//
// Causal: tiles of which nothing is seen are left out; blocks that have the
// most to do begin first.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/AttentionKernels.h"
#include "passes/Kernels/Cuda/AttentionTiles.h"
#include "passes/Kernels/Cuda/Passes.h"
#include "runtime/include/rt_cuda.h"

#include <limits>

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

/// Of buffers in device memory, in bytes.
static constexpr int64_t kAlignment = 16;

/// The layout of `buffer` as a parameter that points at its first element.
static MemRefType parameterType(MemRefType type) {
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)))
    llvm_unreachable("attention's buffers have a static layout");
  return MemRefType::get(type.getShape(), type.getElementType(),
                         StridedLayoutAttr::get(type.getContext(), 0, strides));
}

/// What the first element of a view is aligned to, in bytes.
static int64_t alignmentOf(MemRefType type) {
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)))
    llvm_unreachable("attention's buffers have a static layout");
  int64_t bytes = std::max(8u, type.getElementTypeBitWidth()) / 8;
  return offset * bytes % kAlignment == 0 ? kAlignment : bytes;
}

/// Rows or columns of a tile for each thread where there are `count` in all.
static int64_t valuesEach(int64_t count) {
  return count > 2 * kGrid ? 4 : count > kGrid ? 2 : 1;
}

namespace {
/// Lengths and sizes of an attention.
struct Sizes {
  int64_t batch, heads, kvHeads, queries, keys, depth, valueDepth, causalOffset;

  Sizes(ArrayRef<Value> tensors, const AttentionTerms &terms) {
    auto shapeOf = [&](int tensor) {
      return cast<MemRefType>(tensors[tensor].getType()).getShape();
    };
    auto q = shapeOf(MGQ_ATTENTION_Q), v = shapeOf(MGQ_ATTENTION_V);
    batch = q[0], heads = q[1], queries = q[2], depth = q[3];
    kvHeads = v[1], keys = v[2], valueDepth = v[3];
    causalOffset = terms.causalFromEnd ? keys - queries : 0;
  }
};

/// What the threads of a block carry for the rows of a tile.
struct Running {
  Values maxima, sums; ///< the latter of the thread's columns only
};

/// Writes one kernel.
class Writer {
public:
  Writer(OpBuilder &builder, gpu::GPUModuleOp device, StringRef name,
         ArrayRef<Value> tensors, const AttentionTerms &terms);

  int64_t writeForward();
  int64_t writeStatistics();
  int64_t writeGradQ();
  int64_t writeGradKV();
  gpu::GPUFuncOp getKernel() { return kernel; }

private:
  /// What a block owns: a tile from row `first` on of a head.
  struct Place {
    Value batch, head, first;
  };
  void open(int64_t sharedFloats);
  void close(ArrayRef<int> written);
  Place findPlace(int64_t heads, int64_t tiles, int64_t tileRows,
                  bool lastFirst);
  HeadRows rowsOf(int tensor, const Place &place) {
    return {kernel.getArgument(tensor), place.batch, place.head};
  }
  Value kvHeadOf(Value head);
  Value keyEnd(const TileShape &tile, Value firstQuery);
  Value score(Value product, const Place &place, Value query, Value key,
              bool keysAreRows, Value *squashed = nullptr);
  Values scores(const TileShape &tile, Values products, const Place &place,
                Value firstKey);
  Values advance(const TileShape &tile, MutableArrayRef<Value> scores,
                 Running &running);
  Value finite(Value maximum);
  Value gradient(Value p, Value grad, Value sum, Value squashed);
  Value loadStatistic(int tensor, const Place &place, Value query);
  void storeStatistic(int tensor, const Place &place, Value query, Value value);
  Value rowProduct(const Place &place, Value query);

  OpBuilder &b;
  gpu::GPUFuncOp kernel;
  AttentionTerms terms;
  Sizes sizes;
  std::optional<TileBuilder> t;
};
} // namespace

Writer::Writer(OpBuilder &builder, gpu::GPUModuleOp device, StringRef name,
               ArrayRef<Value> tensors, const AttentionTerms &terms)
    : b(builder), terms(terms), sizes(tensors, terms) {
  b.setInsertionPointToEnd(device.getBody());
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  SmallVector<Type> types;
  for (Value tensor : tensors)
    types.push_back(tensor ? parameterType(cast<MemRefType>(tensor.getType()))
                           : pointer);
  kernel = gpu::GPUFuncOp::create(b, device.getLoc(), name,
                                  b.getFunctionType(types, {}));
  kernel->setAttr(gpu::GPUDialect::getKernelFuncAttrName(), b.getUnitAttr());
  kernel->setAttr(kThreadsAttr, b.getI32IntegerAttr(kAttentionThreads));
  kernel.setKnownBlockSizeAttr(
      b.getDenseI32ArrayAttr({static_cast<int32_t>(kAttentionThreads), 1, 1}));
  // ptxas would rather spill sums than have one block on a multiprocessor.
  kernel->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                  b.getI32IntegerAttr(1));
  for (auto [i, tensor] : llvm::enumerate(tensors)) {
    if (!tensor)
      continue;
    kernel.setArgAttr(
        i, LLVM::LLVMDialect::getAlignAttrName(),
        b.getI64IntegerAttr(alignmentOf(cast<MemRefType>(tensor.getType()))));
  }
}

/// Begins the code.
void Writer::open(int64_t sharedFloats) {
  b.setInsertionPointToEnd(&kernel.getBody().front());
  t.emplace(b, kernel, sharedFloats);
}

/// Ends it. What is written is reached through no other parameter.
void Writer::close(ArrayRef<int> written) {
  gpu::ReturnOp::create(b, kernel.getLoc());
  for (int tensor : written)
    kernel.setArgAttr(tensor, LLVM::LLVMDialect::getNoAliasAttrName(),
                      b.getUnitAttr());
}

/// Blocks are counted head by head, then tile by tile.
Writer::Place Writer::findPlace(int64_t heads, int64_t tiles, int64_t tileRows,
                                bool lastFirst) {
  Location loc = t->loc;
  auto divide = [&](Value value, int64_t by) {
    return std::pair<Value, Value>(
        arith::DivUIOp::create(b, loc, value, t->index(by)),
        arith::RemUIOp::create(b, loc, value, t->index(by)));
  };
  Value block = gpu::BlockIdOp::create(b, loc, gpu::Dimension::x);
  auto [tile, row] = divide(block, sizes.batch * heads);
  auto [batch, head] = divide(row, heads);
  if (lastFirst)
    tile = t->sub(t->index(tiles - 1), tile);
  return {batch, head, t->mul(tile, t->index(tileRows))};
}

Value Writer::kvHeadOf(Value head) {
  if (sizes.heads == sizes.kvHeads)
    return head;
  return arith::DivUIOp::create(b, t->loc, head,
                                t->index(sizes.heads / sizes.kvHeads));
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

/// The end of the keys that a tile of queries sees.
Value Writer::keyEnd(const TileShape &tile, Value firstQuery) {
  Value keys = t->index(sizes.keys);
  if (!terms.causal)
    return keys;
  return t->min(keys,
                t->add(firstQuery, t->index(tile.rows() + sizes.causalOffset)));
}

/// q k as a score, -inf where it is not seen or does not exist. `squashed`: the
/// cap's tanh, if there is a cap.
Value Writer::score(Value product, const Place &place, Value query, Value key,
                    bool keysAreRows, Value *squashed) {
  Value score;
  if (terms.softcap > 0) {
    Value tanh = t->tanh(t->mul(product, t->f32(terms.scale / terms.softcap)));
    if (squashed)
      *squashed = tanh;
    score = t->mul(t->f32(terms.softcap), tanh);
  } else {
    score = t->mul(product, t->f32(terms.scale));
  }
  Value seen;
  auto require = [&](Value condition) {
    seen = seen ? t->land(seen, condition) : condition;
  };
  Value bias = kernel.getArgument(MGQ_ATTENTION_BIAS);
  if (isa<MemRefType>(bias.getType())) {
    Value at[] = {place.batch, place.head, t->clamp(query, sizes.queries),
                  t->clamp(key, sizes.keys)};
    auto shape = cast<MemRefType>(bias.getType()).getShape();
    Value value = t->load(bias, t->broadcastIndices(shape, at));
    if (value.getType().isInteger(1))
      require(value);
    else
      score = t->add(score, value);
  }
  if (terms.causal)
    require(
        t->compare(P::Le, key, t->add(query, t->index(sizes.causalOffset))));
  // Columns that do not exist; rows that do not are never stored.
  int64_t columns = keysAreRows ? sizes.queries : sizes.keys;
  if (columns % (kGrid * valuesEach(columns)))
    require(t->compare(P::Lt, keysAreRows ? query : key, t->index(columns)));
  if (!seen)
    return score;
  return t->select(seen, score,
                   t->f32(-std::numeric_limits<double>::infinity()));
}

/// A maximum, or 0 instead of -inf.
Value Writer::finite(Value maximum) {
  Value never = t->f32(-std::numeric_limits<double>::infinity());
  return t->select(t->compare(P::Eq, maximum, never), t->f32(0), maximum);
}

/// Scores of a tile of queries.
Values Writer::scores(const TileShape &tile, Values products,
                      const Place &place, Value firstKey) {
  for (int64_t i = 0; i < tile.rowsEach; ++i)
    for (int64_t j = 0; j < tile.columnsEach; ++j) {
      Value &value = products[i * tile.columnsEach + j];
      value = score(value, place, t->add(place.first, t->rowOf(tile, i)),
                    t->add(firstKey, t->columnOf(j)), /*keysAreRows=*/false);
    }
  return products;
}

/// Turns scores into P with the new maxima; returns what sums of before are
/// multiplied by.
Values Writer::advance(const TileShape &tile, MutableArrayRef<Value> scores,
                       Running &running) {
  Values factors;
  for (int64_t i = 0; i < tile.rowsEach; ++i) {
    auto row = scores.slice(i * tile.columnsEach, tile.columnsEach);
    Value most = row[0];
    for (Value value : row.drop_front())
      most = t->max(most, value);
    Value &maximum = running.maxima[i], &sum = running.sums[i];
    Value next = t->max(maximum, t->rowMax(most)), base = finite(next);
    factors.push_back(t->exp(t->sub(maximum, base)));
    maximum = next;
    sum = t->mul(sum, factors.back());
    for (Value &value : row) {
      value = t->exp(t->sub(value, base));
      sum = t->add(sum, value);
    }
  }
  return factors;
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

int64_t Writer::writeForward() {
  TileShape tile{valuesEach(sizes.queries), valuesEach(sizes.keys)};
  ColumnSplit split(sizes.valueDepth);
  open(std::max(TileBuilder::floatsOfProducts(tile, sizes.depth),
                TileBuilder::floatsOfSums(tile, sizes.valueDepth)));
  int64_t tiles = llvm::divideCeil(sizes.queries, tile.rows());
  Place place = findPlace(sizes.heads, tiles, tile.rows(), terms.causal);
  Place keys = place;
  keys.head = kvHeadOf(place.head);
  HeadRows q = rowsOf(MGQ_ATTENTION_Q, place);
  HeadRows k = rowsOf(MGQ_ATTENTION_K, keys);
  HeadRows v = rowsOf(MGQ_ATTENTION_V, keys);

  // Carried: maxima, sums, then the tile of the result.
  size_t rows = tile.rowsEach;
  Values carried(rows, t->f32(-std::numeric_limits<double>::infinity()));
  carried.append(rows + rows * split.each, t->f32(0));
  carried = t->range(
      t->index(0), keyEnd(tile, place.first), tile.columns(), carried,
      [&](Value key, Values carried) {
        Running running{Values(ArrayRef(carried).take_front(rows)),
                        Values(ArrayRef(carried).slice(rows, rows))};
        Values result(ArrayRef(carried).drop_front(2 * rows));
        Values p =
            scores(tile, t->products(tile, q, place.first, k, key), place, key);
        Values factors = advance(tile, p, running);
        for (auto [i, value] : llvm::enumerate(result))
          value = t->mul(value, factors[i / split.each]);
        result = t->addProducts(tile, p, v, key, split, result);
        Values next = running.maxima;
        next.append(running.sums);
        next.append(result);
        return next;
      });
  Values result(ArrayRef(carried).drop_front(2 * rows));
  for (size_t i = 0; i < rows; ++i) {
    Value sum = t->rowSum(carried[rows + i]);
    // A row that sees nothing gives zeros.
    Value factor = t->select(t->compare(P::Eq, sum, t->f32(0)), t->f32(0),
                             t->div(t->f32(1), sum));
    for (int64_t j = 0; j < split.each; ++j) {
      Value &value = result[i * split.each + j];
      value = t->mul(value, factor);
    }
  }
  t->storeRows(tile, result, split, rowsOf(MGQ_ATTENTION_RESULT, place),
               place.first);
  close({MGQ_ATTENTION_RESULT});
  return sizes.batch * sizes.heads * tiles;
}

//===----------------------------------------------------------------------===//
// Backward
//===----------------------------------------------------------------------===//

Value Writer::loadStatistic(int tensor, const Place &place, Value query) {
  return t->load(kernel.getArgument(tensor),
                 {place.batch, place.head, t->clamp(query, sizes.queries)});
}

/// The first thread of the row stores it.
void Writer::storeStatistic(int tensor, const Place &place, Value query,
                            Value value) {
  Value mine = t->compare(P::Eq, t->columnOf(0), t->index(0));
  mine = t->land(mine, t->compare(P::Lt, query, t->index(sizes.queries)));
  t->when(mine, [&] {
    t->store(value, kernel.getArgument(tensor),
             {place.batch, place.head, query});
  });
}

/// The sum of a row of dO o O.
Value Writer::rowProduct(const Place &place, Value query) {
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

int64_t Writer::writeStatistics() {
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
        Running running{Values(ArrayRef(carried).take_front(rows)),
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
    Value sum = t->rowSum(carried[rows + i]);
    // -inf where nothing is seen.
    storeStatistic(MGQ_ATTENTION_STATS, place, query,
                   t->add(carried[i], t->log(sum)));
    storeStatistic(MGQ_ATTENTION_SUMS, place, query, rowProduct(place, query));
  }
  close({MGQ_ATTENTION_STATS, MGQ_ATTENTION_SUMS});
  return sizes.batch * sizes.heads * tiles;
}

/// dS of an element.
Value Writer::gradient(Value p, Value grad, Value sum, Value squashed) {
  Value d = t->mul(p, t->sub(grad, sum));
  if (squashed)
    d = t->mul(d, t->sub(t->f32(1), t->mul(squashed, squashed)));
  return t->mul(d, t->f32(terms.scale));
}

int64_t Writer::writeGradQ() {
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
  Values queries, statistics, sums;
  for (int64_t i = 0; i < tile.rowsEach; ++i) {
    queries.push_back(t->add(place.first, t->rowOf(tile, i)));
    statistics.push_back(
        finite(loadStatistic(MGQ_ATTENTION_STATS, place, queries[i])));
    sums.push_back(loadStatistic(MGQ_ATTENTION_SUMS, place, queries[i]));
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
            Value p = t->exp(t->sub(s, statistics[i]));
            gradients[at] = gradient(p, gradients[at], sums[i], squashed);
          }
        return t->addProducts(tile, gradients, k, key, split, result);
      });
  t->storeRows(tile, result, split, rowsOf(MGQ_ATTENTION_GRAD_Q, place),
               place.first);
  close({MGQ_ATTENTION_GRAD_Q});
  return sizes.batch * sizes.heads * tiles;
}

int64_t Writer::writeGradKV() {
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
      Value statistic =
          finite(loadStatistic(MGQ_ATTENTION_STATS, queries, own));
      Value sum = loadStatistic(MGQ_ATTENTION_SUMS, queries, own);
      for (int64_t i = 0; i < tile.rowsEach; ++i) {
        int64_t at = i * tile.columnsEach + j;
        Value key = t->add(place.first, t->rowOf(tile, i)), squashed;
        Value s = score(p[at], queries, own, key, true, &squashed);
        p[at] = t->exp(t->sub(s, statistic));
        gradients[at] = gradient(p[at], gradients[at], sum, squashed);
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

//===----------------------------------------------------------------------===//
// The kernels of a module
//===----------------------------------------------------------------------===//

AttentionKernels::AttentionKernels(ModuleOp module)
    : module(module), device(getCudaModule(module)),
      builder(module.getContext()) {}

/// The kernel with the same code that is there already, or this one.
AttentionKernel AttentionKernels::share(AttentionKernel kernel) {
  std::string stem = kernel.function.getName().str(), text;
  kernel.function.setName("kernel");
  llvm::raw_string_ostream stream(text);
  kernel.function->print(stream, OpPrintingFlags().useLocalScope());
  auto [entry, isNew] = byText.try_emplace(text, kernel);
  if (!isNew) {
    kernel.function.erase();
    return entry->second;
  }
  kernel.function.setName(stem + "_" + std::to_string(byText.size() - 1));
  return kernel;
}

AttentionKernel AttentionKernels::forward(ArrayRef<Value> tensors,
                                          const AttentionTerms &terms) {
  Writer writer(builder, device, "attention",
                tensors.take_front(MGQ_ATTENTION_RESULT + 1), terms);
  int64_t blocks = writer.writeForward();
  return share({writer.getKernel(), blocks});
}

SmallVector<AttentionKernel>
AttentionKernels::backward(ArrayRef<Value> tensors,
                           const AttentionTerms &terms) {
  using Write = int64_t (Writer::*)();
  const std::pair<const char *, Write> kinds[] = {
      {"attention_statistics", &Writer::writeStatistics},
      {"attention_grad_q", &Writer::writeGradQ},
      {"attention_grad_kv", &Writer::writeGradKV}};
  SmallVector<AttentionKernel> kernels;
  for (auto [name, write] : kinds) {
    Writer writer(builder, device, name, tensors, terms);
    int64_t blocks = (writer.*write)();
    kernels.push_back(share({writer.getKernel(), blocks}));
  }
  return kernels;
}
