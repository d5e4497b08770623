//===- mgq-opt.cpp - mlir-opt with this project's dialects and passes -----===//

#include "dialects/Kern/Kern.h"
#include "dialects/NN/NN.h"
#include "passes/Kernels/Passes.h"
#include "passes/NN/Passes.h"

#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::registerAllPasses();
  registry.insert<mgq::nn::NNDialect, mgq::kern::KernDialect>();
  mgq::kern::registerBufferization(registry);
  mgq::nn::registerNNPasses();
  mgq::kernels::registerKernelsPasses();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "mgq pass driver\n", registry));
}
