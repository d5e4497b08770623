//===- AttentionTiles.cpp - Products of tiles by a block of threads -------===//
//
// Elements go through shared memory in groups of four, which LLVM joins to
// vectors. Rows there are an odd number of groups apart: eight of them, which
// the memory serves at once, begin in different banks.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/AttentionTiles.h"
#include "passes/Kernels/Cuda/Passes.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace mgq::kernels;
using P = mgq::nn::ComparePredicate;

/// Elements that are read and written together.
static constexpr int64_t kGroup = 4;
/// The most columns of a chunk of products(), and elements of a chunk of
/// addProducts().
static constexpr int64_t kMostColumns = 48, kMostElements = 4096;
/// A large tile: sums of a thread. Elements that several iterations, joined,
/// load at most.
static constexpr int64_t kLargeTile = 16, kMostLoads = 32;

/// What a loop says of `count` iterations being joined; 1: none.
static LLVM::LoopAnnotationAttr unrolling(Builder &builder, int64_t count) {
  MLIRContext *context = builder.getContext();
  BoolAttr off = count == 1 ? builder.getBoolAttr(true) : BoolAttr();
  IntegerAttr joined =
      count == 1 ? IntegerAttr() : builder.getI32IntegerAttr(count);
  auto unroll =
      LLVM::LoopUnrollAttr::get(context, off, joined, {}, {}, {}, {}, {});
  return LLVM::LoopAnnotationAttr::get(context, {}, {}, {}, unroll, {}, {}, {},
                                       {}, {}, {}, {}, {}, {}, {}, {});
}

/// Columns of `depth` that are multiplied at a time, a multiple of four. All
/// chunks are as wide; where that would make many narrow ones, columns of
/// zeros fill the last.
static int64_t chunkOfDepth(int64_t depth) {
  int64_t padded = llvm::alignTo(depth, kGroup);
  int64_t fewest = llvm::divideCeil(padded, kMostColumns);
  for (int64_t count = fewest; count <= 2 * fewest; ++count)
    if (padded % (count * kGroup) == 0)
      return padded / count;
  return llvm::alignTo(llvm::divideCeil(padded, fewest), kGroup);
}

/// Elements between rows of `columns` in shared memory.
static int64_t pitchOf(int64_t columns) {
  return (columns / kGroup | 1) * kGroup;
}

/// Rows of a matrix of `columns` that are in shared memory at a time.
static int64_t chunkOfRows(int64_t rows, int64_t columns) {
  while (rows * columns > kMostElements && rows % (2 * kGroup) == 0)
    rows /= 2;
  return rows;
}

/// How many of `trips` iterations become one, each of which loads `floats` for
/// products; nothing: as LLVM and ptxas like, which serves large tiles. Of
/// small ones they would join all iterations, load everything first, and run
/// out of registers.
static std::optional<int64_t> unrollingOf(int64_t trips, int64_t floats,
                                          bool isLarge) {
  if (isLarge)
    return std::nullopt;
  int64_t count = std::clamp<int64_t>(kMostLoads / floats, 1, trips);
  while (trips % count)
    --count;
  return count;
}

HeadRows::HeadRows(Value buffer, Value batch, Value head)
    : buffer(buffer), batch(batch), head(head) {
  ArrayRef<int64_t> shape = cast<MemRefType>(buffer.getType()).getShape();
  rows = shape[2];
  columns = shape[3];
}

ColumnSplit::ColumnSplit(int64_t columns) : vector(kGroup) {
  auto eachWith = [&](int64_t vector) {
    return llvm::divideCeil(columns, kGrid * vector) * vector;
  };
  while (eachWith(vector) > eachWith(1))
    vector /= 2;
  each = eachWith(vector);
}

TileBuilder::TileBuilder(OpBuilder &builder, gpu::GPUFuncOp kernel,
                         int64_t sharedFloats)
    : LoopBuilder(builder, kernel.getLoc()),
      shared(addSharedBuffer(kernel, builder.getF32Type(), sharedFloats)) {
  thread = gpu::ThreadIdOp::create(builder, loc, gpu::Dimension::x);
  y = arith::DivUIOp::create(builder, loc, thread, index(kGrid));
  x = arith::RemUIOp::create(builder, loc, thread, index(kGrid));
}

int64_t TileBuilder::floatsOfProducts(const TileShape &tile, int64_t depth) {
  return (tile.rows() + tile.columns()) * pitchOf(chunkOfDepth(depth));
}

int64_t TileBuilder::floatsOfSums(const TileShape &tile, int64_t columns) {
  int64_t padded = ColumnSplit(columns).padded();
  return tile.rows() * pitchOf(tile.columns()) +
         chunkOfRows(tile.columns(), padded) * padded;
}

Value TileBuilder::rowOf(const TileShape &tile, int64_t i) {
  return shift(mul(y, index(tile.rowsEach)), i);
}

Value TileBuilder::columnOf(int64_t j) { return shift(x, j * kGrid); }

Value TileBuilder::columnOf(const ColumnSplit &split, int64_t i) {
  int64_t group = i / split.vector;
  return shift(mul(x, index(split.vector)),
               group * kGrid * split.vector + i % split.vector);
}

Values TileBuilder::range(Value begin, Value end, int64_t step, Values inits,
                          llvm::function_ref<Values(Value, Values)> body,
                          std::optional<int64_t> unrolled) {
  auto loop = scf::ForOp::create(builder, loc, begin, end, index(step), inits);
  if (unrolled)
    loop->setDiscardableAttr(kLoopAnnotationAttr,
                             unrolling(builder, *unrolled));
  OpBuilder::InsertionGuard guard(builder);
  Block *block = loop.getBody();
  if (inits.empty())
    block->getTerminator()->erase();
  builder.setInsertionPointToEnd(block);
  scf::YieldOp::create(
      builder, loc,
      body(loop.getInductionVar(), Values(loop.getRegionIterArgs())));
  return Values(loop.getResults());
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Value TileBuilder::at(const Part &part, Value row, Value column) {
  return shift(add(mul(row, index(part.pitch)), column), part.start);
}

Value TileBuilder::loadShared(Value at, int64_t behind) {
  return load(shared, shift(at, behind));
}

Value TileBuilder::clamp(Value row, int64_t rows) {
  return arith::MinSIOp::create(builder, loc, row, index(rows - 1));
}

Value TileBuilder::loadElement(const HeadRows &from, Value row, Value column) {
  return load(from.buffer, {from.batch, from.head, row, column});
}

/// Copies group `group` of rows of `columns`; what lies behind the last column
/// is zero.
void TileBuilder::copyGroup(const HeadRows &from, Value first, Value group,
                            Value column, int64_t columns, const Part &to) {
  Value groups = index(columns / kGroup);
  Value row = arith::DivUIOp::create(builder, loc, group, groups);
  Value own =
      mul(arith::RemUIOp::create(builder, loc, group, groups), index(kGroup));
  Value source = clamp(add(first, row), from.rows);
  Value firstColumn = add(column, own), target = at(to, row, own);
  bool inGroups = from.columns % kGroup == 0; // none is cut by the last column
  bool whole = inGroups && from.columns % columns == 0;
  Value start = inGroups && !whole
                    ? clamp(firstColumn, from.columns - kGroup + 1)
                    : firstColumn;
  Values elements;
  for (int64_t i = 0; i < kGroup; ++i) {
    Value each = shift(firstColumn, i);
    Value read = inGroups ? shift(start, i) : clamp(each, from.columns);
    Value element = loadElement(from, source, read);
    elements.push_back(whole ? element
                             : select(compare(P::Lt, each, index(from.columns)),
                                      element, f32(0)));
  }
  for (int64_t i = 0; i < kGroup; ++i)
    store(elements[i], shared, shift(target, i));
}

/// Copies `columns` elements from `column` on of `rows` rows from `first` on.
/// Rows that do not exist are the last one again.
void TileBuilder::copyRows(const HeadRows &from, Value first, int64_t rows,
                           Value column, int64_t columns, const Part &to) {
  int64_t groups = rows * columns / kGroup;
  int64_t whole = groups / kAttentionThreads * kAttentionThreads;
  loop(whole / kAttentionThreads, [&](Value turn) {
    Value group = add(mul(turn, index(kAttentionThreads)), thread);
    copyGroup(from, first, group, column, columns, to);
  });
  if (whole == groups)
    return;
  Value group = shift(thread, whole);
  when(compare(P::Lt, group, index(groups)),
       [&] { copyGroup(from, first, group, column, columns, to); });
}

void TileBuilder::storeRows(const TileShape &tile, ValueRange values,
                            const ColumnSplit &split, const HeadRows &to,
                            Value first) {
  for (int64_t i = 0; i < tile.rowsEach; ++i) {
    Value row = add(first, rowOf(tile, i));
    auto storeRow = [&] {
      for (int64_t j = 0; j < split.each; ++j) {
        Value column = columnOf(split, j);
        auto storeOne = [&] {
          store(values[i * split.each + j], to.buffer,
                {to.batch, to.head, row, column});
        };
        if (split.padded() == to.columns)
          storeOne();
        else
          when(compare(P::Lt, column, index(to.columns)), storeOne);
      }
    };
    if (to.rows % tile.rows() == 0)
      storeRow();
    else
      when(compare(P::Lt, row, index(to.rows)), storeRow);
  }
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

Values TileBuilder::products(const TileShape &tile, const HeadRows &a,
                             Value firstA, const HeadRows &b, Value firstB) {
  int64_t chunk = chunkOfDepth(a.columns);
  Part partA{0, pitchOf(chunk)}, partB{tile.rows() * partA.pitch, partA.pitch};
  auto multiply = [&](Value depth, Values sums) {
    Values rowsA, rowsB;
    for (int64_t i = 0; i < tile.rowsEach; ++i)
      rowsA.push_back(at(partA, rowOf(tile, i), depth));
    for (int64_t j = 0; j < tile.columnsEach; ++j)
      rowsB.push_back(at(partB, columnOf(j), depth));
    auto loadGroups = [&](ArrayRef<Value> rows) {
      Values elements;
      for (Value row : rows)
        for (int64_t e = 0; e < kGroup; ++e)
          elements.push_back(loadShared(row, e));
      return elements;
    };
    Values left = loadGroups(rowsA), right = loadGroups(rowsB);
    for (int64_t e = 0; e < kGroup; ++e)
      for (int64_t i = 0; i < tile.rowsEach; ++i)
        for (int64_t j = 0; j < tile.columnsEach; ++j) {
          Value &sum = sums[i * tile.columnsEach + j];
          sum = fma(left[i * kGroup + e], right[j * kGroup + e], sum);
        }
    return sums;
  };
  Values zeros(tile.valuesEach(), f32(0));
  Value depth = index(llvm::alignTo(a.columns, kGroup));
  auto unrolled =
      unrollingOf(chunk / kGroup, kGroup * (tile.rowsEach + tile.columnsEach),
                  tile.valuesEach() >= kLargeTile);
  return range(
      index(0), depth, chunk, zeros,
      [&](Value column, Values sums) {
        copyRows(a, firstA, tile.rows(), column, chunk, partA);
        copyRows(b, firstB, tile.columns(), column, chunk, partB);
        barrier();
        sums = range(index(0), index(chunk), kGroup, sums, multiply, unrolled);
        barrier();
        return sums;
      },
      unrolled ? 1 : unrolled);
}

Values TileBuilder::addProducts(const TileShape &tile, Values values,
                                const HeadRows &b, Value firstB,
                                const ColumnSplit &split, Values sums) {
  Part own{0, pitchOf(tile.columns())};
  Part rowsOfB{tile.rows() * own.pitch, split.padded()};
  int64_t chunk = chunkOfRows(tile.columns(), split.padded());
  auto unrolled =
      unrollingOf(chunk / kGroup, kGroup * (tile.rowsEach + split.each),
                  tile.rowsEach * split.each >= kLargeTile);
  for (int64_t i = 0; i < tile.rowsEach; ++i)
    for (int64_t j = 0; j < tile.columnsEach; ++j)
      store(values[i * tile.columnsEach + j], shared,
            at(own, rowOf(tile, i), columnOf(j)));
  return range(
      index(0), index(tile.columns()), chunk, sums,
      [&](Value firstRow, Values sums) {
        copyRows(b, add(firstB, firstRow), chunk, index(0), split.padded(),
                 rowsOfB);
        barrier();
        auto multiply = [&](Value row, Values sums) {
          Values left;
          for (int64_t i = 0; i < tile.rowsEach; ++i) {
            Value start = at(own, rowOf(tile, i), add(firstRow, row));
            for (int64_t e = 0; e < kGroup; ++e)
              left.push_back(loadShared(start, e));
          }
          for (int64_t e = 0; e < kGroup; ++e)
            for (int64_t j = 0; j < split.each; ++j) {
              Value right =
                  load(shared, at(rowsOfB, shift(row, e), columnOf(split, j)));
              for (int64_t i = 0; i < tile.rowsEach; ++i) {
                Value &sum = sums[i * split.each + j];
                sum = fma(left[i * kGroup + e], right, sum);
              }
            }
          return sums;
        };
        sums = range(index(0), index(chunk), kGroup, sums, multiply, unrolled);
        barrier();
        return sums;
      },
      unrolled ? 1 : unrolled);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

/// Half a warp exchanges values with the lanes whose numbers differ in one bit:
/// in the end all have combined the same values, in an order that differs only
/// by which operand is first.
Value TileBuilder::butterfly(Value value, Combine combine) {
  auto word = [&](int64_t bits) {
    return constant(builder.getI32Type(), static_cast<double>(bits));
  };
  for (int64_t bit = kGrid / 2; bit > 0; bit /= 2) {
    Value other = NVVM::ShflOp::create(builder, loc, value.getType(), word(-1),
                                       value, word(bit), word(31),
                                       NVVM::ShflKind::bfly, UnitAttr());
    value = combine(value, other);
  }
  return value;
}

Value TileBuilder::rowMax(Value value) {
  return butterfly(value, [&](Value a, Value b) { return max(a, b); });
}

Value TileBuilder::rowSum(Value value) {
  return butterfly(value, [&](Value a, Value b) { return add(a, b); });
}
