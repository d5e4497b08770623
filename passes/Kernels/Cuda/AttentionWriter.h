//===- AttentionWriter.h - Writes one kernel of an attention --------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_ATTENTIONWRITER_H
#define MGQ_PASSES_KERNELS_CUDA_ATTENTIONWRITER_H

#include "passes/Kernels/Cuda/AttentionKernels.h"
#include "passes/Kernels/Cuda/AttentionTiles.h"
#include "runtime/include/rt_cuda.h"

#include <optional>

namespace mgq::kernels {

/// Lengths and sizes of an attention.
struct AttentionSizes {
  int64_t batch, heads, kvHeads, queries, keys, depth, valueDepth, causalOffset;

  AttentionSizes(ArrayRef<Value> tensors, const AttentionTerms &terms) {
    auto shapeOf = [&](int tensor) {
      return mlir::cast<mlir::MemRefType>(tensors[tensor].getType()).getShape();
    };
    auto q = shapeOf(MGQ_ATTENTION_Q), v = shapeOf(MGQ_ATTENTION_V);
    batch = q[0], heads = q[1], queries = q[2], depth = q[3];
    kvHeads = v[1], keys = v[2], valueDepth = v[3];
    causalOffset = terms.causalFromEnd ? keys - queries : 0;
  }
};

/// What a thread carries for its rows of a tile.
struct RunningSoftmax {
  Values maxima, sums; ///< the latter of the thread's columns only
};

/// Writes one kernel.
class AttentionWriter {
public:
  AttentionWriter(mlir::OpBuilder &builder, mlir::gpu::GPUModuleOp device,
                  mlir::StringRef name, ArrayRef<Value> tensors,
                  const AttentionTerms &terms);

  // Each writes the kernel, as its kind, and returns its number of blocks.
  int64_t writeForward();
  int64_t writeStatistics();
  int64_t writeGradQ();
  int64_t writeGradKV();
  mlir::gpu::GPUFuncOp getKernel() { return kernel; }

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
  Values advance(const TileShape &tile, mlir::MutableArrayRef<Value> scores,
                 RunningSoftmax &running);
  Value finite(Value maximum);
  Value reciprocalOfSum(Value sum);
  /// What backward knows of a row.
  struct Statistics {
    Value maximum; ///< of the scores; 0 where nothing is seen
    Value factor;  ///< 1 / sum of exponentials; 0 where nothing is seen
    Value product; ///< the sum of dO o O
  };
  Value probability(Value score, const Statistics &row);
  Value gradient(Value p, Value grad, Value product, Value squashed);
  Statistics loadStatistics(const Place &place, Value query);
  void storeStatistics(const Place &place, Value query, const Statistics &row);
  Value rowProduct(const Place &place, Value query);

  mlir::OpBuilder &b;
  mlir::gpu::GPUFuncOp kernel;
  AttentionTerms terms;
  AttentionSizes sizes;
  std::optional<TileBuilder> t;
};

/// Rows or columns of a tile for each thread where there are `count` in all.
inline int64_t valuesEach(int64_t count) {
  return count > 2 * kGrid ? 4 : count > kGrid ? 2 : 1;
}

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_ATTENTIONWRITER_H
