//===- FlashAttention.h - Attention block by block, forward and backward --===//
//
// softmax(scale Q K^T, capped, masked) V with nothing of size queries x keys
// (FlashAttention-2, arXiv 2307.08691). Functions know no shape:
//
//   mgq_attention_<kind>(q, k, v, mask, o, shape)
//   mgq_attention_grad_<kind>(q, k, v, o, dO, mask, dq, dk, dv, shape)
//
// `shape` points at the fields of AttentionShape.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_FLASHATTENTION_H
#define MGQ_PASSES_KERNELS_FLASHATTENTION_H

#include "passes/Kernels/Gemm.h"

#include <array>

namespace mgq::kernels {

enum class MaskKind { none, boolean, additive };

/// What a function is made for; the rest is in the shape.
struct AttentionKind {
  bool causal = false;
  bool softcap = false;
  MaskKind mask = MaskKind::none;
  bool maskByQuery = false; ///< one element of the mask for all keys

  std::string getName() const;
};

struct AttentionShape {
  int64_t batch = 1, heads = 1, kvHeads = 1, queries = 0, keys = 0;
  int64_t depth = 0, valueDepth = 0;
  int64_t causalOffset = 0; ///< query i sees keys up to i + causalOffset
  double scale = 1, softcap = 0;
  /// Elements from one batch, head and row to the next; elements of a row are
  /// contiguous.
  using Strides = std::array<int64_t, 3>;
  Strides q{}, k{}, v{}, o{}, gradO{}, gradQ{}, gradK{}, gradV{};
  /// As above; 0 where the mask is broadcast.
  Strides mask{};

  /// The table in memory.
  llvm::SmallVector<int64_t> getFields() const;
};

class FlashAttention {
public:
  explicit FlashAttention(GemmBuilder &gemms)
      : gemms(gemms), kb(gemms.getBuilder()) {}

  mlir::LLVM::LLVMFuncOp getForward(const AttentionKind &kind);
  mlir::LLVM::LLVMFuncOp getBackward(const AttentionKind &kind);

private:
  using Vals = KernelBuilder::Vals;

  /// A tensor of one head: its first row and the distance of rows.
  struct Rows {
    Val base, stride;
  };
  /// A rectangle of scores: queries from `query` on, keys from `key` on.
  struct Tile {
    Val query, queries, key, keys;
  };
  /// What a task reads once from the shape.
  struct Sizes {
    Val shape, heads, kvHeads, queries, keys, depth, valueDepth;
    Val causalOffset, scale, scaleIn, scaleOut;
  };

  Val field(Val shape, int64_t index);
  Sizes loadSizes(Val shape);
  Rows loadRows(const Sizes &sizes, Val base, int64_t firstField, Val batch,
                Val head);
  /// The mask of a head (null pointer arithmetic if there is none).
  Rows loadMask(const AttentionKind &kind, const Sizes &sizes, Val base,
                Val batch, Val head);

  void packTransposed(const Rows &rows, Val first, Val count, Val depth,
                      Val target);
  void multiplyTile(const AttentionKind &kind, const Sizes &sizes,
                    const Tile &tile, const Rows &left, Val packed, Val depth,
                    Val target);
  void multiplyRows(const AttentionKind &kind, const Sizes &sizes,
                    const Tile &tile, Val scores, const Rows &right,
                    Val columns, Val target, Val targetStride, Val accumulate);
  Val visibleKeys(const AttentionKind &kind, const Sizes &sizes,
                  const Tile &tile, Val row);
  Val keyEnd(const AttentionKind &kind, const Sizes &sizes, Val query,
             Val queries);
  Val transform(const AttentionKind &kind, const Sizes &sizes, Val score,
                const Rows &mask, Val query, Val key, Val laneMask,
                Val *squashed = nullptr);
  Vals scoreRow(const AttentionKind &kind, const Sizes &sizes, const Tile &tile,
                Val row, Val scores, const Rows &mask, Val oldMax, Val oldSum);
  void zeroRows(const Rows &rows, Val count, Val columns);

  mlir::LLVM::LLVMFuncOp getForwardTask(const AttentionKind &kind);
  mlir::LLVM::LLVMFuncOp getBackwardTask(const AttentionKind &kind);
  void statistics(const AttentionKind &kind, const Sizes &sizes, const Rows &q,
                  const Rows &k, const Rows &o, const Rows &gradO,
                  const Rows &mask, Val packedK, Val scores, Val maxima,
                  Val inverses, Val products);
  void gradientRows(const AttentionKind &kind, const Sizes &sizes,
                    const Tile &tile, Val scores, Val gradients,
                    const Rows &mask, Val maxima, Val inverses, Val products);
  void multiplyTransposed(const AttentionKind &kind, const Sizes &sizes,
                          const Tile &tile, Val scores, const Rows &right,
                          Val columns, const Rows &target);
  mlir::LLVM::LLVMFuncOp getEntry(llvm::StringRef name, int64_t pointers,
                                  mlir::LLVM::LLVMFuncOp task, bool backward);

  GemmBuilder &gemms;
  KernelBuilder &kb;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_FLASHATTENTION_H
