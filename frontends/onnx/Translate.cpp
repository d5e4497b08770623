//===- Translate.cpp - mgq-translate shows imported IR
//---------------------===//

#include "frontends/onnx/Import.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/SourceMgr.h"

namespace cl = llvm::cl;

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  cl::opt<std::string> input(cl::Positional, cl::desc("<model.onnx>"));
  cl::opt<bool> listOps("list-ops", cl::desc("Print the operators it knows"));
  cl::opt<bool> import("import-onnx", cl::desc("ONNX to nn (the default)"));
  cl::list<std::string> dims("dim", cl::desc("Bind a symbolic dimension"),
                             cl::value_desc("NAME=N"));
  cl::list<std::string> trainable("trainable", cl::CommaSeparated,
                                  cl::desc("Parameters to train"));
  cl::opt<bool> inlineWeights(
      "inline-weights", cl::desc("Weights become constants, nothing trains"));
  cl::opt<bool> locations("mlir-print-debuginfo", cl::desc("Print locations"));
  cl::opt<bool> generic("mlir-print-op-generic",
                        cl::desc("Print the generic form"));
  cl::ParseCommandLineOptions(argc, argv, "imports an ONNX model\n");

  if (listOps) {
    for (llvm::StringRef name : mgq::onnx::supportedOperators())
      llvm::outs() << name << "\n";
    return 0;
  }
  mgq::onnx::ImportOptions options;
  options.trainable.assign(trainable.begin(), trainable.end());
  options.inlineWeights = inlineWeights;
  options.training = !inlineWeights;
  for (llvm::StringRef text : dims) {
    auto [name, number] = text.rsplit('=');
    if (number.getAsInteger(10, options.dims[name]))
      return (llvm::errs() << "bad --dim=" << text << "\n", 2);
  }
  mlir::MLIRContext context;
  llvm::SourceMgr sources;
  mlir::SourceMgrDiagnosticHandler handler(sources, &context);
  auto module = mgq::onnx::importModel(&context, input, options);
  if (!module)
    return 1;
  mlir::OpPrintingFlags flags;
  if (locations)
    flags.enableDebugInfo(true, /*prettyForm=*/false);
  if (generic)
    flags.printGenericOpForm();
  module->print(llvm::outs(), flags);
  return 0;
}
