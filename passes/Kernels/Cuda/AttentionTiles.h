//===- AttentionTiles.h - Products of tiles by a block of threads ---------===//
//
// What attention kernels are made of. The 256 threads of a block are a grid of
// 16 x 16. A *tile* is a matrix with R rows and C columns for each of them:
//
//   thread (y, x) has rows y R + 0, 1, ... R - 1 and columns x, x + 16, ...
//
// so that the 16 threads of a row are half a warp, and shuffles reduce it.
// Tiles are values in registers; what they are products of passes through
// shared memory, as f32, in chunks whose size depends on shapes only.
//
// Each function below that uses shared memory finds it free and leaves it free:
// the last thing it does is wait for all threads.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_ATTENTIONTILES_H
#define MGQ_PASSES_KERNELS_CUDA_ATTENTIONTILES_H

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"

namespace mgq::kernels {

/// Rows and columns of the grid of threads.
constexpr int64_t kGrid = 16;
constexpr int64_t kAttentionThreads = kGrid * kGrid;

/// What each thread has of a tile.
struct TileShape {
  int64_t rowsEach = 1, columnsEach = 1;

  int64_t rows() const { return kGrid * rowsEach; }
  int64_t columns() const { return kGrid * columnsEach; }
  int64_t valuesEach() const { return rowsEach * columnsEach; }
};

/// Rows [0, rows) of one head of a tensor [batch, heads, rows, columns].
struct HeadRows {
  Value buffer, batch, head;
  int64_t rows, columns;

  HeadRows(Value buffer, Value batch, Value head);
};

/// Columns of a matrix of any width over the 16 threads of a row: thread x has
/// `vector` consecutive ones of each group of 16 `vector`.
struct ColumnSplit {
  int64_t vector, each;

  explicit ColumnSplit(int64_t columns);
  int64_t padded() const { return kGrid * each; }
};

using Values = llvm::SmallVector<Value>;

class TileBuilder : public LoopBuilder {
public:
  /// Writes into `kernel`, whose blocks have kAttentionThreads threads;
  /// `sharedFloats`: the most that what follows needs.
  TileBuilder(mlir::OpBuilder &builder, mlir::gpu::GPUFuncOp kernel,
              int64_t sharedFloats);
  /// Shared memory, in f32, of products() over `depth` columns and of
  /// addProducts() with `columns` of them.
  static int64_t floatsOfProducts(const TileShape &tile, int64_t depth);
  static int64_t floatsOfSums(const TileShape &tile, int64_t columns);

  Value f32(double value) { return constant(builder.getF32Type(), value); }
  /// Number `i` of the thread's rows of a tile; number `j` of its columns.
  Value rowOf(const TileShape &tile, int64_t i);
  Value columnOf(int64_t j);
  /// Number `i` of the thread's columns of a matrix.
  Value columnOf(const ColumnSplit &split, int64_t i);

  /// A loop over [begin, end) in steps with carried values; all three are the
  /// same for all threads of a block. `unrolled`: how many iterations become
  /// one; none: as LLVM and ptxas like.
  Values range(Value begin, Value end, int64_t step, Values inits,
               llvm::function_ref<Values(Value, Values)> body,
               std::optional<int64_t> unrolled = std::nullopt);

  /// The products of rows a[firstA + i] and b[firstB + j], over their columns.
  Values products(const TileShape &tile, const HeadRows &a, Value firstA,
                  const HeadRows &b, Value firstB);
  /// sums + tile x rows of b from firstB on: R x `split` values of each thread.
  Values addProducts(const TileShape &tile, Values values, const HeadRows &b,
                     Value firstB, const ColumnSplit &split, Values sums);
  /// Combines a value of the 16 threads of a row; all get the same bits.
  Value rowMax(Value value);
  Value rowSum(Value value);

  /// Row `row`, or the last one where there are fewer.
  Value clamp(Value row, int64_t rows);
  /// Element of a head, as f32.
  Value loadElement(const HeadRows &from, Value row, Value column);
  /// Stores what addProducts() gave; rows and columns that do not exist are
  /// left out.
  void storeRows(const TileShape &tile, ValueRange values,
                 const ColumnSplit &split, const HeadRows &to, Value first);

private:
  using Combine = llvm::function_ref<Value(Value, Value)>;
  Value butterfly(Value value, Combine combine);
  void barrier() { mlir::gpu::BarrierOp::create(builder, loc); }
  Value shift(Value index, int64_t by) {
    return by ? add(index, this->index(by)) : index;
  }
  /// A part of shared memory: rows of `pitch` elements from `start` on.
  struct Part {
    int64_t start, pitch;
  };
  Value at(const Part &part, Value row, Value column);
  Value loadShared(Value at, int64_t behind);
  void copyRows(const HeadRows &from, Value first, int64_t rows, Value column,
                int64_t columns, const Part &to);
  void copyGroup(const HeadRows &from, Value first, Value group, Value column,
                 int64_t columns, const Part &to);

  Value shared, thread, y, x;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_ATTENTIONTILES_H
