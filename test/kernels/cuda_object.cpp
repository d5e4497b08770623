//===- cuda_object.cpp - Layer functions of nn ops to CUDA code -----------===//
//
//   mgq-cuda-object IN.mlir OUT.o TWINS [ARCH,... [COMPRESSION]]
//
// For tests: OUT.o has the host functions and mgq_cuda_module_table; TWINS gets
// the bitcode that host twins are made of, OUT.o.ARCH.ptxas.txt what ptxas
// says. Prints the size of each function's scratch.
//
//===----------------------------------------------------------------------===//

#include "compiler/Pipelines/Registration.h"
#include "passes/Kernels/Cuda/Images.h"
#include "passes/Kernels/Cuda/Pipeline.h"
#include "passes/Kernels/Object.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;

int main(int argc, char **argv) {
  if (argc < 4) {
    llvm::errs() << "usage: mgq-cuda-object IN.mlir OUT.o TWINS [ARCH,... "
                    "[COMPRESSION]]\n";
    return 2;
  }
  DialectRegistry registry;
  mgq::registerDialects(registry);
  MLIRContext context(registry);
  auto module = parseSourceFile<ModuleOp>(argv[1], &context);
  if (!module)
    return 1;
  PassManager passes(&context, ModuleOp::getOperationName());
  mgq::kernels::CudaOptions cuda;
  if (argc > 5)
    cuda.compression = argv[5];
  mgq::kernels::buildCudaKernelPipeline(passes, cuda);
  if (failed(passes.run(*module)))
    return 1;
  for (auto function : module->getOps<LLVM::LLVMFuncOp>())
    if (auto bytes = function->getAttrOfType<IntegerAttr>("nn.scratch_bytes"))
      llvm::outs() << function.getName() << " " << bytes.getInt() << "\n";
  mgq::kernels::CudaImageOptions options;
  options.twins = argv[3];
  options.keep = argv[2];
  options.architectures = {"sm_80"};
  if (argc > 4) {
    options.architectures.clear();
    for (StringRef name : llvm::split(StringRef(argv[4]), ','))
      options.architectures.push_back(name.str());
  }
  llvm::Error error = mgq::kernels::embedImages(*module, options);
  if (!error)
    error = mgq::kernels::writeObject(*module, argv[2]);
  if (error) {
    llvm::errs() << llvm::toString(std::move(error)) << "\n";
    return 1;
  }
  return 0;
}
