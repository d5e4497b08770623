//===- GemmKernels.h - Micro-kernels and packing of matrix products -------===//
//
// Building blocks of products C = A B of f32 (operands may be stored narrower),
// made on demand, one function
// each. Every element of C is one chain of fused multiply-adds over ascending
// k, from 0 or (accumulating) from the value it has. So neither tiles nor
// blocks nor vector width change a bit of it.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_GEMMKERNELS_H
#define MGQ_PASSES_KERNELS_GEMMKERNELS_H

#include "passes/Kernels/StoredTypes.h"

namespace mgq::kernels {

/// What the kernels are shaped for. A tile of C is up to `rows` rows by
/// `panel()` columns; B is read in panels of that many columns.
struct CpuFamily {
  int64_t lanes;    ///< f32 in a vector
  int64_t rows;     ///< rows of a tile
  int64_t depth;    ///< k of a block: a panel's block fits the L1 cache
  int64_t rowBlock; ///< rows of a block: with depth, it fits the L2 cache

  /// 16 vector registers: 6 x 16, 12 of them sums.
  static CpuFamily avx2() { return {8, 6, 384, 256}; }
  /// 32 registers: 8 x 32, 16 of them sums.
  static CpuFamily avx512() { return {16, 8, 256, 512}; }
  /// The family of a CPU's name (x86-64-v3, x86-64-v4, x86-64-v4-bf16).
  static CpuFamily of(llvm::StringRef cpu) {
    return cpu.starts_with("x86-64-v4") ? avx512() : avx2();
  }

  int64_t panel() const { return 2 * lanes; }
};

class GemmKernels {
public:
  GemmKernels(mlir::ModuleOp module, CpuFamily family)
      : kb(module, family.lanes), family(family) {}

  KernelBuilder &getBuilder() { return kb; }
  const CpuFamily &getFamily() const { return family; }

  /// block(a, lda, b, ldb, panelStride, c, ldc, m, n, k, accumulate): a product
  /// whose operands are in cache. A is [m][lda], or [k][lda] if `transposedA`;
  /// panel j of B is [k][ldb] at b + j * panelStride, of which the columns
  /// there are are read; `accumulate` (i64) is 0 or 1. Narrower than f32,
  /// panels are whole and as loadPair reads them.
  mlir::LLVM::LLVMFuncOp getBlock(bool transposedA, Stored b = Stored::f32);

  /// transpose(source, ld, rows, columns, target, ldTarget): target[c][r] =
  /// source[r][c], f32; rows of the target are filled up with zeros to a
  /// multiple of the vector's length.
  mlir::LLVM::LLVMFuncOp getTranspose(Stored source = Stored::f32);

  /// pack(source, ld, rows, columns, target, panelStride): copies columns to
  /// panels of f32, [rows][panel()] at target + j * panelStride, filled up with
  /// zeros.
  mlir::LLVM::LLVMFuncOp getPack(Stored source = Stored::f32);

  /// widen(source, ld, rows, columns, target, ldTarget): target[r][c] =
  /// source[r][c], f32; rows of the target may be filled up with zeros to a
  /// multiple of the vector's length.
  mlir::LLVM::LLVMFuncOp getWiden(Stored source);

private:
  /// Which columns of a panel a tile covers.
  enum class Width {
    full,   ///< all
    edge,   ///< more than one vector
    narrow, ///< at most one vector
  };
  mlir::LLVM::LLVMFuncOp getTile(int64_t rows, bool transposedA, Width width,
                                 Stored b);
  mlir::LLVM::LLVMFuncOp getPanel(bool transposedA, Width width, Stored b);
  void transposeRegisters(KernelBuilder::Vals &rows);

  KernelBuilder kb;
  CpuFamily family;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_GEMMKERNELS_H
