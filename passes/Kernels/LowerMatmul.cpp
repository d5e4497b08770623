//===- LowerMatmul.cpp - kern.matmul to calls of generated kernels --------===//
//
// In: kern.matmul on memrefs. After: those that sum in f32 and whose layout the
// generated products read (static strides; in each matrix one dimension is
// contiguous) are calls of a private function per shape, which calls mgq_gemm_*
// with the shape as a constant:
//
//   func.call @kern_matmul_0(%a, %b, %c)
//
//   func.func private @kern_matmul_0(%a: memref<48x64xf32>, ...) {
//     ... pointers of %a, %b, %c
//     llvm.call @mgq_gemm_nt(%pa, %pb, %pc, %shape)
//   }
//
// Attention likewise (LowerKernAttention.cpp). A weight that only products
// read may be passed packed (PackWeights.cpp). Others stay: kern-lower-loops
// takes them. The operands of the call are
// memrefs, so what plans their memory sees every use.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/HandKernels.h"
#include "passes/Kernels/Passes.h"

#include "dialects/Kern/Kern.h"
#include "passes/Kernels/Gemm.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_LOWERMATMULPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq::kernels;
namespace kern = mgq::kern;

namespace {

/// A matrix, or a batch of them, in memory.
struct Matrix {
  Value buffer;
  bool transposed; ///< its rows as stored are the columns
  int64_t stride;  ///< between rows as stored
  int64_t batchStride;
  Stored stored;
};

} // namespace

/// Reads `buffer` as matrices whose rows or columns are contiguous.
static std::optional<Matrix> readMatrix(Value buffer, bool transposed) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  std::optional<Stored> stored = storedOf(type.getElementType());
  if (!stored || !type.hasStaticShape() ||
      failed(type.getStridesAndOffset(strides, offset)) ||
      llvm::is_contained(strides, ShapedType::kDynamic))
    return std::nullopt;
  ArrayRef<int64_t> shape = type.getShape().take_back(2);
  int64_t rowStride = strides[strides.size() - 2], stride = strides.back();
  int64_t batchStride = strides.size() == 3 ? strides[0] : 0;
  if (stride == 1 || shape[1] == 1) {
    // A stride that no element uses may be anything.
    return Matrix{buffer, transposed, std::max(rowStride, shape[1]),
                  batchStride, *stored};
  }
  if (rowStride == 1 || shape[0] == 1)
    return Matrix{buffer, !transposed, std::max(stride, shape[0]), batchStride,
                  *stored};
  return std::nullopt;
}

/// The same for what a product writes: f32.
static std::optional<Matrix> readResult(Value buffer) {
  std::optional<Matrix> matrix = readMatrix(buffer, false);
  return matrix && matrix->stored == Stored::f32 ? matrix : std::nullopt;
}

bool mgq::kernels::isPackable(kern::MatmulOp op) {
  std::optional<Matrix> a = readMatrix(op.getLhs(), op.getTransposeA());
  std::optional<Matrix> c = readResult(op.getInit());
  return a && c && !c->transposed && !op.hasEpilogue();
}

/// Replaces `op` by a call, or leaves it.
static void lowerMatmul(kern::MatmulOp op, KernelCalls &calls,
                        const llvm::DenseSet<Value> &packedWeights) {
  std::optional<Matrix> a = readMatrix(op.getLhs(), op.getTransposeA());
  std::optional<Matrix> b = readMatrix(op.getRhs(), op.getTransposeB());
  std::optional<Matrix> c = readResult(op.getInit());
  if (!a || !b || !c || op.hasEpilogue())
    return;
  auto [batch, m, n, k] = op.getSizes();
  if (c->transposed) {
    // C^T = B^T A^T.
    std::swap(a, b);
    std::swap(m, n);
    a->transposed = !a->transposed;
    b->transposed = !b->transposed;
  }
  // Products that share B and follow each other are one.
  if (batch > 1 && b->batchStride == 0 && !a->transposed &&
      a->batchStride == m * a->stride && c->batchStride == m * c->stride) {
    m *= batch;
    batch = 1;
  }
  GemmShape shape;
  shape.m = m;
  shape.n = n;
  shape.k = k;
  shape.lda = a->stride;
  shape.ldb = b->stride;
  shape.ldc = c->stride;
  shape.batch = batch;
  shape.strideA = a->batchStride;
  shape.strideB = b->batchStride;
  shape.strideC = c->batchStride;
  BLayout layout = b->transposed ? BLayout::transposed : BLayout::rows;
  if (packedWeights.contains(op.getRhs()))
    layout = BLayout::packed;
  shape.chooseChunks(calls.getFamily(), a->transposed, layout);

  LLVM::LLVMFuncOp gemm =
      calls.getGemms().getGemm(a->transposed, layout, a->stored, b->stored);
  calls.replace(op, "kern_matmul", gemm, {a->buffer, b->buffer, c->buffer},
                shape.getFields());
}

namespace {
struct LowerMatmulPass
    : mgq::kernels::impl::LowerMatmulPassBase<LowerMatmulPass> {
  using LowerMatmulPassBase::LowerMatmulPassBase;
  void runOnOperation() override {
    KernelCalls calls(getOperation(), CpuFamily::of(cpu));
    llvm::DenseSet<Value> packedWeights;
    choosePackedWeights(calls, packedWeights);
    SmallVector<Operation *> ops;
    getOperation().walk([&](Operation *op) {
      if (isa<kern::MatmulOp, kern::AttentionOp, kern::AttentionGradOp>(op) &&
          op->getNumResults() == 0)
        ops.push_back(op);
    });
    for (Operation *op : ops)
      llvm::TypeSwitch<Operation *>(op)
          .Case(
              [&](kern::MatmulOp op) { lowerMatmul(op, calls, packedWeights); })
          .Case([&](kern::AttentionOp op) { callAttention(op, calls); })
          .Case(
              [&](kern::AttentionGradOp op) { callAttentionGrad(op, calls); });
  }
};
} // namespace
