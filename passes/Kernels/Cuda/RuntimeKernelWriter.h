//===- RuntimeKernelWriter.h - Kernels that the runtime calls ---------===//
//
// Not of a layer: they are about any number of elements, behind pointers.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_RUNTIMEKERNELWRITER_H
#define MGQ_PASSES_KERNELS_CUDA_RUNTIMEKERNELWRITER_H

#include "passes/Kernels/Cuda/Passes.h"
#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace mgq::kernels {

/// Threads of a block of these kernels.
constexpr int64_t kRuntimeThreads = 256;

/// Element access and arithmetic in a function of pointers.
class Writer {
public:
  Writer(mlir::OpBuilder &builder, Location loc)
      : b(builder), s(builder, loc) {}

  Value address(Value base, Value index, Type element) {
    return mlir::LLVM::GEPOp::create(b, s.loc, base.getType(), element, base,
                                     ArrayRef<mlir::LLVM::GEPArg>{index});
  }
  Value load(Value base, Value index, Type element) {
    return mlir::LLVM::LoadOp::create(b, s.loc, element,
                                      address(base, index, element));
  }
  Value load(Value base, Value index) {
    return load(base, index, b.getF32Type());
  }
  void store(Value value, Value base, Value index) {
    mlir::LLVM::StoreOp::create(b, s.loc, value,
                                address(base, index, value.getType()));
  }
  Value i64(int64_t value) { return s.constant(b.getI64Type(), value); }
  Value toI64(Value index) { return s.fromIndex(index, b.getI64Type()); }

  mlir::OpBuilder &b;
  ScalarBuilder s;
};

/// Writes kernels, and the host functions around them.
class RuntimeKernelWriter {
public:
  explicit RuntimeKernelWriter(mlir::ModuleOp module)
      : module(module), device(getCudaModule(module)), b(module.getContext()),
        loc(module.getLoc()),
        pointer(mlir::LLVM::LLVMPointerType::get(module.getContext())) {}

protected:
  /// The builder goes to the start of the function's code.
  mlir::gpu::GPUFuncOp kernel(mlir::StringRef name, ArrayRef<Type> types);
  mlir::LLVM::LLVMFuncOp host(mlir::StringRef name, ArrayRef<Type> types);

  void launch(mlir::gpu::GPUFuncOp kernel, Value blocks, ValueRange operands);
  /// Blocks of `size` that hold `count` elements, as index.
  Value blocksOf(Value count, int64_t size);

  mlir::ModuleOp module;
  mlir::gpu::GPUModuleOp device;
  mlir::OpBuilder b;
  Location loc;
  Type pointer;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_RUNTIMEKERNELWRITER_H
