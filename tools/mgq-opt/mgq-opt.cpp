//===- mgq-opt.cpp - mlir-opt with this project's dialects and passes -----===//

#include "compiler/Pipelines/Registration.h"

#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mgq::registerDialects(registry);
  mlir::registerAllPasses();
  mgq::registerPasses();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "mgq pass driver\n", registry));
}
