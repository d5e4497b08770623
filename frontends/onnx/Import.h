//===- Import.h - ONNX in, nn out -----------------------------------------===//
#ifndef MGQ_FRONTENDS_ONNX_IMPORT_H
#define MGQ_FRONTENDS_ONNX_IMPORT_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringMap.h"
#include <string>
#include <vector>

namespace mgq::onnx {

/// What the importer needs to know beside the file.
struct ImportOptions {
  /// Sizes of symbolic dimensions, by name (`--dim=NAME=N`).
  llvm::StringMap<int64_t> dims;
  /// Globs of parameters that will train (`--trainable`, else the metadata
  /// `mgq.trainable`): merged parameters among them are un-merged, and a
  /// float initializer of one element is a parameter only if it is named here.
  std::vector<std::string> trainable;
  /// Graph inputs that are bound to constants (mgq-run: inputs that decide
  /// shapes), by name; each ElementsAttr has the input's type.
  llvm::StringMap<mlir::ElementsAttr> constantInputs;
  /// Float initializers are constants, not parameters (mgq-run on small
  /// graphs needs no weights at run time).
  bool inlineWeights = false;
  /// The graph will train: dropout drops. Else training modes mean nothing.
  bool training = true;
};

/// Reads `path` into a module with one func.func @model over nn ops, or
/// reports what is wrong (all unsupported nodes in one error) and gives null.
///
/// The location of an op is NameLoc("node name"), or, where the exporter says
/// in which module the node was traced, NameLoc("node name",
/// NameLoc("module.path")). A node without a name is called "OpType:output".
/// The location of an nn.param is NameLoc of the ONNX initializer.
mlir::OwningOpRef<mlir::ModuleOp> importModel(mlir::MLIRContext *context,
                                              llvm::StringRef path,
                                              const ImportOptions &options);

/// The leading dimension of a graph's inputs, which counts samples.
struct SampleAxis {
  std::string name; ///< Of the symbolic dimension; empty: it has a size.
  int64_t size = 0;
};

/// Finds the leading dimension that all inputs of the graph in `path` share;
/// `bound` holds sizes of symbolic ones (`--dim`). Reports inputs that have
/// none, or another one than the first.
mlir::FailureOr<SampleAxis>
findSampleAxis(mlir::MLIRContext *context, llvm::StringRef path,
               const llvm::StringMap<int64_t> &bound);

/// Names of the ONNX operators that importModel knows, sorted.
std::vector<llvm::StringRef> supportedOperators();

} // namespace mgq::onnx

#endif // MGQ_FRONTENDS_ONNX_IMPORT_H
