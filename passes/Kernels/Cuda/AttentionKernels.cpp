//===- AttentionKernels.cpp - Attention by tiles, forward -----------------===//
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
// row becomes zeros. Backward: AttentionGradKernels.cpp.
//
// Causal: tiles of which nothing is seen are left out; blocks that have the
// most to do begin first.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/AttentionKernels.h"
#include "passes/Kernels/Cuda/AttentionWriter.h"
#include "passes/Kernels/Cuda/Passes.h"

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

AttentionWriter::AttentionWriter(OpBuilder &builder, gpu::GPUModuleOp device,
                                 StringRef name, ArrayRef<Value> tensors,
                                 const AttentionTerms &terms)
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
void AttentionWriter::open(int64_t sharedFloats) {
  b.setInsertionPointToEnd(&kernel.getBody().front());
  t.emplace(b, kernel, sharedFloats);
}

/// Ends it. What is written is reached through no other parameter.
void AttentionWriter::close(ArrayRef<int> written) {
  gpu::ReturnOp::create(b, kernel.getLoc());
  for (int tensor : written)
    kernel.setArgAttr(tensor, LLVM::LLVMDialect::getNoAliasAttrName(),
                      b.getUnitAttr());
}

/// Blocks are counted head by head, then tile by tile.
AttentionWriter::Place AttentionWriter::findPlace(int64_t heads, int64_t tiles,
                                                  int64_t tileRows,
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

Value AttentionWriter::kvHeadOf(Value head) {
  if (sizes.heads == sizes.kvHeads)
    return head;
  return arith::DivUIOp::create(b, t->loc, head,
                                t->index(sizes.heads / sizes.kvHeads));
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

/// The end of the keys that a tile of queries sees.
Value AttentionWriter::keyEnd(const TileShape &tile, Value firstQuery) {
  Value keys = t->index(sizes.keys);
  if (!terms.causal)
    return keys;
  return t->min(keys,
                t->add(firstQuery, t->index(tile.rows() + sizes.causalOffset)));
}

/// q k as a score, -inf where it is not seen or does not exist. `squashed`: the
/// cap's tanh, if there is a cap.
Value AttentionWriter::score(Value product, const Place &place, Value query,
                             Value key, bool keysAreRows, Value *squashed) {
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
Value AttentionWriter::finite(Value maximum) {
  Value never = t->f32(-std::numeric_limits<double>::infinity());
  return t->select(t->compare(P::Eq, maximum, never), t->f32(0), maximum);
}

/// 1 / sum of a row's exponentials; 0 of a row that sees nothing.
Value AttentionWriter::reciprocalOfSum(Value sum) {
  return t->select(t->compare(P::Eq, sum, t->f32(0)), t->f32(0),
                   t->div(t->f32(1), sum));
}

/// Scores of a tile of queries.
Values AttentionWriter::scores(const TileShape &tile, Values products,
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
Values AttentionWriter::advance(const TileShape &tile,
                                MutableArrayRef<Value> scores,
                                RunningSoftmax &running) {
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

int64_t AttentionWriter::writeForward() {
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
        RunningSoftmax running{Values(ArrayRef(carried).take_front(rows)),
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
    Value factor = reciprocalOfSum(t->rowSum(carried[rows + i]));
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
  AttentionWriter writer(builder, device, "attention",
                         tensors.take_front(MGQ_ATTENTION_RESULT + 1), terms);
  int64_t blocks = writer.writeForward();
  return share({writer.getKernel(), blocks});
}

SmallVector<AttentionKernel>
AttentionKernels::backward(ArrayRef<Value> tensors,
                           const AttentionTerms &terms) {
  using Write = int64_t (AttentionWriter::*)();
  const std::pair<const char *, Write> kinds[] = {
      {"attention_statistics", &AttentionWriter::writeStatistics},
      {"attention_grad_q", &AttentionWriter::writeGradQ},
      {"attention_grad_kv", &AttentionWriter::writeGradKV}};
  SmallVector<AttentionKernel> kernels;
  for (auto [name, write] : kinds) {
    AttentionWriter writer(builder, device, name, tensors, terms);
    int64_t blocks = (writer.*write)();
    kernels.push_back(share({writer.getKernel(), blocks}));
  }
  return kernels;
}
