//===- RuntimeKernelWriter.cpp - Kernels that the runtime calls -------===//

#include "passes/Kernels/Cuda/RuntimeKernelWriter.h"

using namespace mlir;
using namespace mgq::kernels;

gpu::GPUFuncOp RuntimeKernelWriter::kernel(StringRef name,
                                           ArrayRef<Type> types) {
  b.setInsertionPointToEnd(device.getBody());
  auto kernel =
      gpu::GPUFuncOp::create(b, loc, name, b.getFunctionType(types, {}));
  kernel->setAttr(gpu::GPUDialect::getKernelFuncAttrName(), b.getUnitAttr());
  kernel->setAttr(kThreadsAttr, b.getI32IntegerAttr(kRuntimeThreads));
  kernel.setKnownBlockSizeAttr(
      b.getDenseI32ArrayAttr({static_cast<int32_t>(kRuntimeThreads), 1, 1}));
  b.setInsertionPointToEnd(&kernel.getBody().front());
  return kernel;
}

LLVM::LLVMFuncOp RuntimeKernelWriter::host(StringRef name,
                                           ArrayRef<Type> types) {
  b.setInsertionPointToEnd(module.getBody());
  auto function = LLVM::LLVMFuncOp::create(
      b, loc, name,
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(b.getContext()),
                                  types));
  b.setInsertionPointToStart(function.addEntryBlock(b));
  return function;
}

void RuntimeKernelWriter::launch(gpu::GPUFuncOp kernel, Value blocks,
                                 ValueRange operands) {
  Value one = arith::ConstantIndexOp::create(b, loc, 1);
  Value threads = arith::ConstantIndexOp::create(b, loc, kRuntimeThreads);
  gpu::LaunchFuncOp::create(
      b, loc,
      SymbolRefAttr::get(device.getNameAttr(),
                         {SymbolRefAttr::get(kernel.getNameAttr())}),
      gpu::KernelDim3{blocks, one, one}, gpu::KernelDim3{threads, one, one},
      Value(), operands);
}

Value RuntimeKernelWriter::blocksOf(Value count, int64_t size) {
  Writer w(b, loc);
  Value padded = w.s.add(count, w.i64(size - 1));
  return w.s.toIndex(w.s.div(padded, w.i64(size)));
}
