//===- HandKernels.h - Calls of generated kernels on memrefs --------------===//
#ifndef MGQ_PASSES_KERNELS_HANDKERNELS_H
#define MGQ_PASSES_KERNELS_HANDKERNELS_H

#include "dialects/Kern/Kern.h"
#include "passes/Kernels/Gemm.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringMap.h"

namespace mgq::kernels {

/// The address of `buffer`'s first element, as an LLVM pointer.
mlir::Value makePointer(mlir::OpBuilder &builder, mlir::Location loc,
                        mlir::Value buffer);

/// Replaces ops on memrefs by calls of private functions, one per kind and
/// shape, which pass pointers and a constant table to a generated kernel.
class KernelCalls {
public:
  KernelCalls(mlir::ModuleOp module, CpuFamily family);

  mlir::ModuleOp getModule() { return module; }
  GemmBuilder &getGemms() { return gemms; }
  const CpuFamily &getFamily() const { return gemms.getFamily(); }

  /// Adds a call with `buffers`, whose function calls `kernel(pointers of
  /// buffers..., table of fields)`. A buffer may be null: a null pointer is
  /// passed.
  void call(mlir::OpBuilder &builder, mlir::Location loc, llvm::StringRef name,
            mlir::LLVM::LLVMFuncOp kernel, llvm::ArrayRef<mlir::Value> buffers,
            llvm::ArrayRef<int64_t> fields);
  /// Replaces `op` by such a call.
  void replace(mlir::Operation *op, llvm::StringRef name,
               mlir::LLVM::LLVMFuncOp kernel,
               llvm::ArrayRef<mlir::Value> buffers,
               llvm::ArrayRef<int64_t> fields);

private:
  mlir::func::FuncOp makeFunction(llvm::StringRef name,
                                  mlir::LLVM::LLVMFuncOp kernel,
                                  llvm::ArrayRef<mlir::Value> buffers,
                                  llvm::ArrayRef<int64_t> fields);

  mlir::ModuleOp module;
  GemmBuilder gemms;
  llvm::StringMap<mlir::func::FuncOp> functions; ///< by kernel, types, fields
};

/// Whether a product can read its right operand packed.
bool isPackable(kern::MatmulOp op);
/// Finds the arguments of layer functions that are to be read packed, adds the
/// functions that pack them, and names those in the layers' `nn.packed`.
void choosePackedWeights(KernelCalls &calls,
                         llvm::DenseSet<mlir::Value> &packedWeights);

/// Replaces attention by a call, or leaves it if a layout does not fit.
void callAttention(kern::AttentionOp op, KernelCalls &calls);
void callAttentionGrad(kern::AttentionGradOp op, KernelCalls &calls);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_HANDKERNELS_H
