//===- AttentionKernels.h - Attention by tiles, forward and backward ------===//
//
// softmax(scale Q K^T, capped, masked) V with nothing of size queries x keys
// (FlashAttention, arXiv 2205.14135 and 2307.08691), and its gradients without
// atomics: one kernel per kind of rows that a block owns, each of which
// computes the probabilities again. Sums are in f32, their order follows from
// shapes.
//
// Parameters are pointers to the first elements of the tensors of rt_cuda.h
// (mgq_cuda_attention_tensor), in that order; forward takes those up to the
// result. A shape has kernels of its own; equal ones are one.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_ATTENTIONKERNELS_H
#define MGQ_PASSES_KERNELS_CUDA_ATTENTIONKERNELS_H

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "llvm/ADT/StringMap.h"

namespace mgq::kernels {

/// What the ops say beside their tensors.
struct AttentionTerms {
  double scale = 1, softcap = 0;
  bool causal = false, causalFromEnd = false;
};

/// A kernel and on how many blocks it runs.
struct AttentionKernel {
  mlir::gpu::GPUFuncOp function;
  int64_t blocks;
};

/// The kernels of a module.
class AttentionKernels {
public:
  explicit AttentionKernels(mlir::ModuleOp module);

  /// `tensors`: buffers of static layout in the order of rt_cuda.h; the bias
  /// may be null.
  AttentionKernel forward(mlir::ArrayRef<Value> tensors,
                          const AttentionTerms &terms);
  /// In this order: the rows' statistics, the gradient of q, those of k and v.
  llvm::SmallVector<AttentionKernel> backward(mlir::ArrayRef<Value> tensors,
                                              const AttentionTerms &terms);

private:
  AttentionKernel share(AttentionKernel kernel);

  mlir::ModuleOp module;
  mlir::gpu::GPUModuleOp device;
  mlir::OpBuilder builder;
  llvm::StringMap<AttentionKernel> byText;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_ATTENTIONKERNELS_H
