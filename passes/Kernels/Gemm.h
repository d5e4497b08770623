//===- Gemm.h - Matrix products of any shape as functions of the module ---===//
//
// A product is a call of one of a few functions that know no shape:
//
//   mgq_gemm_<a><b>(A, B, C, shape)     a: n, t (transposed)
//                                       b: n, t, p (packed)
//
// with a suffix for each operand that is not stored as f32: _a_bf16, _b_f16.
//
// `shape` points at the i64 fields of GemmShape. The function cuts C into
// chunks (by shape only), runs them through mgq_parallel_for, and each chunk
// blocks its rows, columns and k, packs what it reads of B (and of a transposed
// A) into its own frame and runs micro-kernels. A frame takes up to 0.6 MiB of
// the thread's stack.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_GEMM_H
#define MGQ_PASSES_KERNELS_GEMM_H

#include "passes/Kernels/GemmKernels.h"

namespace mgq::kernels {

/// How B [k][n] lies in memory: as it is, as [n][k], or in panels.
enum class BLayout { rows, transposed, packed };

/// The order is that of the table in memory.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0; ///< elements between rows, as stored
  /// Products of one call, and elements from one to the next.
  int64_t batch = 1, strideA = 0, strideB = 0, strideC = 0;
  /// Rows and columns of C that are one chunk of work.
  int64_t chunkM = 0, chunkN = 0;

  /// Sets chunkM and chunkN.
  void chooseChunks(const CpuFamily &family, bool transposedA, BLayout layoutB);
  llvm::SmallVector<int64_t> getFields() const {
    return {m,     n,       k,       lda,     ldb,    ldc,
            batch, strideA, strideB, strideC, chunkM, chunkN};
  }
};

class GemmBuilder : public GemmKernels {
public:
  using GemmKernels::GemmKernels;

  /// gemm(A, B, C, shape).
  mlir::LLVM::LLVMFuncOp getGemm(bool transposedA, BLayout layoutB,
                                 Stored a = Stored::f32,
                                 Stored b = Stored::f32);

  /// pack(B, target, {n, k, ldb}): B, stored as `from`, into panels,
  /// [ceil(n / panel)][k][panel], of type `to`, filled up with zeros.
  mlir::LLVM::LLVMFuncOp getPackB(bool transposedB, Stored from, Stored to);

  /// The number of elements a packed B takes. Panels of bf16 are in pairs where
  /// the CPU has units for it, which takes an even depth.
  int64_t getPackedSize(int64_t n, int64_t k, Stored b) const {
    int64_t panel = getFamily().panel();
    int64_t depth = hasPairs(b) ? k + k % 2 : k;
    return (n + panel - 1) / panel * panel * depth;
  }

private:
  bool hasPairs(Stored b) const {
    return b == Stored::bf16 && getFamily().hasBf16Units;
  }
  mlir::LLVM::LLVMFuncOp getGemmChunk(bool transposedA, BLayout layoutB,
                                      Stored storedA, Stored storedB);
  mlir::LLVM::LLVMFuncOp getPackChunk(bool transposedB, Stored from, Stored to);
  void packPanel(bool transposedB, Stored storedB, Val source, Val ldb,
                 Val rows, Val width, Val panel);
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_GEMM_H
