//===- Pipeline.h - From layer functions of nn ops to CUDA code -----------===//
//
// Up to memrefs, the CUDA pipeline is that of the CPU (passes/Kernels):
//
//   convert-nn-to-linalg ... one-shot-bufferize
//   cuda-prepare-products    operands as cuBLASLt takes them
//   kern-lower-loops         linalg, kern.loops, copies -> scf.parallel
//   cuda-outline             nests -> gpu.func in gpu.module @cuda
//   cuda-tile-attention      kern.attention* -> kern.device_attention
//   kern-plan-scratch        memref.alloc -> offsets in the scratch argument
//   cuda-add-optimizer       mgq_adamw, mgq_accumulate, mgq_cuda_sq_norm
//   cuda-add-compression     mgq_cuda_encode, if gradients are compressed
//   cuda-call-runtime        launches, products, attention -> calls
//   (in gpu.module @cuda)    cuda-expand-math ... convert-gpu-to-nvvm
//   convert-kern-to-llvm     host functions of the kernel ABI
//
// Out: llvm.func of the kernel ABI on device addresses, and gpu.module @cuda of
// LLVM and NVVM ops, which Images.h makes cubins of.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_PIPELINE_H
#define MGQ_PASSES_KERNELS_CUDA_PIPELINE_H

#include "mlir/Pass/PassManager.h"
#include <string>

namespace mgq::kernels {

struct CudaOptions {
  /// Whether to add the kernels that the runtime calls itself to train.
  bool optimizer = true;
  /// Of gradients between replicas: none, or a format that
  /// `cuda-add-compression` knows.
  std::string compression = "none";
};

/// Adds the passes above to `pm`, a pass manager of the module of layers.
void buildCudaKernelPipeline(mlir::OpPassManager &pm,
                             const CudaOptions &options);

/// Registers that pipeline as mgq-opt's `--kern-cuda-pipeline`.
void registerCudaKernelPipeline();

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_PIPELINE_H
