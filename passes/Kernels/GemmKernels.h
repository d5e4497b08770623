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
  /// Products of bf16 use vdpbf16ps.
  bool hasBf16Units = false;

  /// 16 vector registers: 6 x 16, 12 of them sums.
  static CpuFamily avx2() { return {8, 6, 384, 256}; }
  /// 32 registers: 8 x 32, 16 of them sums.
  static CpuFamily avx512() { return {16, 8, 256, 512}; }
  /// The family of a CPU's name (x86-64-v3, x86-64-v4, x86-64-v4-bf16).
  static CpuFamily of(llvm::StringRef cpu) {
    CpuFamily family = cpu.starts_with("x86-64-v4") ? avx512() : avx2();
    family.hasBf16Units = cpu == "x86-64-v4-bf16";
    return family;
  }

  int64_t panel() const { return 2 * lanes; }
};

/// How a micro-kernel reads its operands: B in panels of this form, A in f32
/// but for `units`. "Pairs": 32 bits hold elements k and k + 1 of a column, for
/// even k; a last k without a partner is paired with zero.
enum class Read {
  f32,   ///< also a B that is not in panels
  f16,   ///< widened
  bf16,  ///< widened; columns i and i + lanes in 32 bits (loadPair)
  pairs, ///< bf16 in pairs, widened
  units  ///< bf16 in pairs, and A of bf16: for vdpbf16ps
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
  /// panels are whole. Sizes and strides count elements, those of B in pairs
  /// count pairs; a transposed A of `units` is in pairs too, [k / 2][lda].
  mlir::LLVM::LLVMFuncOp getBlock(bool transposedA, Read read = Read::f32);

  /// transpose(source, ld, rows, columns, target, ldTarget): target[c][r] =
  /// source[r][c], f32; rows of the target are filled up with zeros to a
  /// multiple of the vector's length.
  mlir::LLVM::LLVMFuncOp getTranspose(Stored source = Stored::f32);

  /// transposePairs(source, ld, rows, columns, target, ldTarget): target[c / 2]
  /// [r] = the pair of source[r][c] and source[r][c + 1], bf16, filled up as
  /// above.
  mlir::LLVM::LLVMFuncOp getTransposePairs();
  /// interleave(source, ld, rows, columns, target, ldTarget): target[r / 2][c]
  /// = the pair of source[r][c] and source[r + 1][c], bf16, filled up likewise.
  mlir::LLVM::LLVMFuncOp getInterleave();

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
  struct Tile;
  void addProducts(const Tile &tile, Val step, KernelBuilder::Vals &sums);
  void addPairs(const Tile &tile, Val step, bool isLast,
                KernelBuilder::Vals &sums);
  mlir::LLVM::LLVMFuncOp getTile(int64_t rows, bool transposedA, Width width,
                                 Read read);
  mlir::LLVM::LLVMFuncOp getPanel(bool transposedA, Width width, Read read);
  struct Source;
  mlir::LLVM::LLVMFuncOp makeTranspose(llvm::StringRef name,
                                       const Source &matrix);
  void transposeRegisters(KernelBuilder::Vals &rows);

  KernelBuilder kb;
  CpuFamily family;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_GEMMKERNELS_H
