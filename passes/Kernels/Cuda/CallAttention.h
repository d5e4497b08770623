//===- CallAttention.h - Attention becomes a call of the runtime ----------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_CALLATTENTION_H
#define MGQ_PASSES_KERNELS_CUDA_CALLATTENTION_H

#include "dialects/Kern/Kern.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringMap.h"

namespace mgq::kernels {

/// Turns kern.device_attention into calls of mgq_cuda_attention. Kernels have
/// their numbers.
class AttentionCalls {
public:
  explicit AttentionCalls(mlir::ModuleOp module) : module(module) {}

  void call(kern::DeviceAttentionOp op);

private:
  mlir::LLVM::GlobalOp tableOf(kern::DeviceAttentionOp op);
  mlir::LLVM::LLVMFuncOp declare();

  mlir::ModuleOp module;
  llvm::StringMap<mlir::LLVM::GlobalOp> tables; ///< by their fields
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_CALLATTENTION_H
