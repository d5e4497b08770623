//===- kernel_object.cpp - Layer functions of nn ops to an object file ----===//
//
//   mgq-kernel-object IN.mlir OUT.o [CPU [fused]]
//
// For tests, which link the object to a shared library and call its functions.
//
//===----------------------------------------------------------------------===//

#include "compiler/Pipelines/Registration.h"
#include "passes/Kernels/Object.h"
#include "passes/Kernels/Pipeline.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"

using namespace mlir;

int main(int argc, char **argv) {
  if (argc < 3) {
    llvm::errs() << "usage: mgq-kernel-object IN.mlir OUT.o [CPU [fused]]\n";
    return 2;
  }
  DialectRegistry registry;
  mgq::registerDialects(registry);
  MLIRContext context(registry);
  auto module = parseSourceFile<ModuleOp>(argv[1], &context);
  if (!module)
    return 1;
  mgq::kernels::CpuOptions options;
  options.cpu = argc > 3 ? argv[3] : "native";
  options.fusedAttention = argc > 4;
  PassManager passes(&context, ModuleOp::getOperationName());
  mgq::kernels::buildCpuKernelPipeline(passes, options);
  if (failed(passes.run(*module)))
    return 1;
  // The caller needs the size of each function's scratch.
  for (auto function : module->getOps<LLVM::LLVMFuncOp>())
    if (auto bytes = function->getAttrOfType<IntegerAttr>("nn.scratch_bytes"))
      llvm::outs() << function.getName() << " " << bytes.getInt() << "\n";
  if (llvm::Error error = mgq::kernels::writeObject(*module, argv[2])) {
    llvm::errs() << llvm::toString(std::move(error)) << "\n";
    return 1;
  }
  return 0;
}
