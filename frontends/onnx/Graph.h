//===- Graph.h - Imports the nodes of a graph -----------------------------===//
#ifndef MGQ_FRONTENDS_ONNX_GRAPH_H
#define MGQ_FRONTENDS_ONNX_GRAPH_H

#include "frontends/onnx/Import.h"
#include "frontends/onnx/Names.h"
#include "frontends/onnx/Node.h"
#include "frontends/onnx/Tensors.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mgq::onnx {

/// Values by name in one graph or function body; an inner graph sees the outer
/// one's.
struct Scope {
  const Scope *outer = nullptr;
  llvm::StringMap<mlir::Value> values;
  /// Names that a later node defines: use before that is an error of order.
  llvm::StringMap<const ::onnx::NodeProto *> definitions;
  /// What SplitToSequence made, by name.
  llvm::StringMap<llvm::SmallVector<mlir::Value>> sequences;
  /// Version of the default operator set.
  int64_t opset = 0;
};

class GraphImporter {
public:
  GraphImporter(mlir::MLIRContext *context, const ImportOptions &options,
                const ModelFiles &files, const ::onnx::ModelProto &model,
                std::vector<llvm::GlobPattern> trainable);

  /// Builds the module; null after a report.
  mlir::OwningOpRef<mlir::ModuleOp> run();

private:
  mlir::LogicalResult checkOperators();
  mlir::LogicalResult checkDims();
  mlir::LogicalResult importInputs();
  mlir::LogicalResult importOutputs();
  mlir::LogicalResult checkTrainable();
  mlir::LogicalResult readInitializers();

  mlir::LogicalResult importNodes(
      const google::protobuf::RepeatedPtrField<::onnx::NodeProto> &nodes,
      Scope &scope);
  mlir::LogicalResult importNode(const ::onnx::NodeProto &node, Scope &scope);
  /// Samples of a micro-batch: the leading dimension of the first input.
  int64_t samples();
  /// Adds an input of the graph for the key of one op that is random.
  mlir::Value randomKey(mlir::Location loc);
  mlir::LogicalResult inlineIf(const ::onnx::NodeProto &node, Scope &scope);
  mlir::LogicalResult splitToSequence(const ::onnx::NodeProto &node,
                                      Scope &scope);
  mlir::LogicalResult sequenceAt(const ::onnx::NodeProto &node, Scope &scope);
  mlir::LogicalResult inlineFunction(const ::onnx::NodeProto &node,
                                     const ::onnx::FunctionProto &function,
                                     Scope &scope);
  mlir::LogicalResult define(const ::onnx::NodeProto &node, int output,
                             mlir::Value value, Scope &scope);
  mlir::FailureOr<mlir::Value> lookup(llvm::StringRef name,
                                      const ::onnx::NodeProto *node, int index,
                                      Scope &scope);

  /// A parameter's value, or that of an initializer that is a constant.
  mlir::FailureOr<mlir::Value>
  initializer(int64_t index, const ::onnx::NodeProto *node, int use);
  mlir::FailureOr<mlir::Value> tiedTo(int64_t index, const ParamName &name);
  void reportLeftOut();
  mlir::FailureOr<mlir::Value> constantOf(mlir::Location loc,
                                          const ::onnx::TensorProto &tensor);
  mlir::Value paramRef(const ::onnx::TensorProto &tensor, const Home &home,
                       const ParamName &name, bool isTable);
  mlir::FailureOr<mlir::RankedTensorType>
  inputType(const ::onnx::ValueInfoProto &input);

  mlir::Location locationOf(const ::onnx::NodeProto &node) const;
  const ::onnx::FunctionProto *functionOf(const ::onnx::NodeProto &node) const;
  void eraseDeadOps();

  mlir::MLIRContext *context;
  const ImportOptions &options;
  const ModelFiles &files;
  const ::onnx::ModelProto &model;
  const ::onnx::GraphProto &graph;
  std::vector<llvm::GlobPattern> trainable;
  ParamNames names;

  mlir::OpBuilder builder;
  mlir::ModuleOp module;
  mlir::func::FuncOp function;
  Scope top;
  llvm::StringMap<int64_t> initializers;
  /// Value of each initializer by the name that it has at a use.
  llvm::StringMap<mlir::Value> initializerValues;
  /// Home of each parameter by name.
  llvm::StringMap<Home> paramHomes;
  /// Tables that a trainable glob matches, though nobody can have meant them.
  std::vector<std::string> nameless;
  /// Tensors whose names the exporter made up.
  std::vector<std::string> madeUp;
  /// Names of module paths that enclose the current node (inlined functions).
  std::string enclosing;
  int inlineDepth = 0;
  int64_t randomKeys = 0;
};

} // namespace mgq::onnx

#endif // MGQ_FRONTENDS_ONNX_GRAPH_H
