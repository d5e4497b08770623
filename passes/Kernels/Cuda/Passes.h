//===- Passes.h - Passes from buffers to CUDA kernels ---------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_PASSES_H
#define MGQ_PASSES_KERNELS_CUDA_PASSES_H

#include "passes/Kernels/Passes.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

namespace mgq::kernels {

/// The module of device code, nested in the module of kernels.
constexpr llvm::StringLiteral kCudaModule = "cuda";
/// On it: what failing checks name, an array of strings.
constexpr llvm::StringLiteral kChecksAttr = "cuda.checks";
/// On a kernel: its last parameter is the address of a mgq_cuda_check.
constexpr llvm::StringLiteral kReportsAttr = "cuda.reports";
/// Of an scf.for, and of the branch it becomes: how LLVM unrolls the loop.
constexpr llvm::StringLiteral kLoopAnnotationAttr = "llvm.loop_annotation";
/// On a kernel: threads of a block.
constexpr llvm::StringLiteral kThreadsAttr = "cuda.threads";
/// On a kernel: its place in the table of kernels.
constexpr llvm::StringLiteral kNumberAttr = "cuda.number";

/// Adds a buffer in shared memory to a kernel.
mlir::Value addSharedBuffer(mlir::gpu::GPUFuncOp kernel, mlir::Type element,
                            int64_t count);

/// The module of device code of `kernels`, made if there is none.
mlir::gpu::GPUModuleOp getCudaModule(mlir::ModuleOp kernels);

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "passes/Kernels/Cuda/Passes.h.inc"

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_PASSES_H
