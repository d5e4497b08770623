//===- Graph.cpp - Imports the nodes of a graph ---------------------------===//

#include "frontends/onnx/Graph.h"

#include "frontends/onnx/Registry.h"

#include "llvm/ADT/StringExtras.h"
#include <set>

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using ::onnx::NodeProto;
using ::onnx::TensorProto;

/// Newest operator set whose operators have been read through.
static constexpr int64_t kNewestOpset = 28;

static std::string displayName(const NodeProto &node) {
  if (!node.name().empty())
    return node.name();
  return node.op_type() + " of '" +
         (node.output_size() ? node.output(0) : std::string()) + "'";
}

static bool isDefaultDomain(StringRef domain) {
  return domain.empty() || domain == "ai.onnx";
}

static std::string operatorKey(const NodeProto &node) {
  return isDefaultDomain(node.domain()) ? node.op_type()
                                        : node.domain() + ":" + node.op_type();
}

GraphImporter::GraphImporter(MLIRContext *context, const ImportOptions &options,
                             const ModelFiles &files,
                             const ::onnx::ModelProto &model,
                             std::vector<llvm::GlobPattern> globs)
    : context(context), options(options), files(files), model(model),
      graph(model.graph()), trainable(std::move(globs)),
      names(graph, trainable), builder(context) {}

OwningOpRef<ModuleOp> GraphImporter::run() {
  Location loc = NameLoc::get(builder.getStringAttr(files.fileName()));
  OwningOpRef<ModuleOp> owner = ModuleOp::create(loc);
  module = *owner;
  for (const auto &entry : model.opset_import())
    if (isDefaultDomain(entry.domain()))
      top.opset = entry.version();
  if (top.opset > kNewestOpset) {
    emitError(loc) << "not supported yet: operator set " << top.opset
                   << "; supported: up to " << kNewestOpset;
    return {};
  }
  builder.setInsertionPointToEnd(module.getBody());
  function = func::FuncOp::create(builder, loc, "model",
                                  builder.getFunctionType({}, {}));
  builder.setInsertionPointToStart(function.addEntryBlock());
  module->setAttr(nn::kModelAttr, builder.getStringAttr(files.fileName()));
  SmallVector<NamedAttribute> metadata;
  for (const auto &entry : model.metadata_props())
    metadata.push_back({builder.getStringAttr(entry.key()),
                        builder.getStringAttr(entry.value())});
  module->setAttr(nn::kMetadataAttr, builder.getDictionaryAttr(metadata));
  if (failed(checkOperators()) || failed(readInitializers()) ||
      failed(importInputs()) || failed(importNodes(graph.node(), top)) ||
      failed(importOutputs()))
    return {};
  eraseDeadOps();
  if (failed(checkTrainable()))
    return {};
  for (const auto &[initializer, list] : names.merged())
    emitWarning(loc) << "the exporter stored parameters with equal values as "
                        "one tensor '"
                     << initializer
                     << "'; they train apart: " << llvm::join(list, ", ");
  reportLeftOut();
  if (!nameless.empty())
    emitWarning(loc) << "tensors without a name of their own stay as they are: "
                     << llvm::join(nameless, ", ")
                     << "; export with mgq-export to train them";
  return owner;
}

//===----------------------------------------------------------------------===//
// What the file may hold
//===----------------------------------------------------------------------===//

const ::onnx::FunctionProto *
GraphImporter::functionOf(const NodeProto &node) const {
  for (const auto &function : model.functions())
    if (function.name() == node.op_type() &&
        function.domain() == node.domain() &&
        function.overload() == node.overload())
      return &function;
  return nullptr;
}

/// Names of nodes by operator, in order.
using UnknownOperators =
    std::vector<std::pair<std::string, std::vector<std::string>>>;

/// Adds operators without import function, also in inner graphs.
template <typename Nodes, typename IsFunction>
static void collectUnknown(const Nodes &nodes, IsFunction isFunction,
                           UnknownOperators &unknown) {
  for (const NodeProto &node : nodes) {
    std::string key = operatorKey(node);
    if (!registry().contains(key) && !isFunction(node)) {
      auto known = llvm::find_if(
          unknown, [&](const auto &entry) { return entry.first == key; });
      if (known == unknown.end())
        known = unknown.insert(known, {key, {}});
      known->second.push_back(displayName(node));
    }
    for (const auto &attribute : node.attribute())
      if (attribute.has_g() && node.op_type() == "If")
        collectUnknown(attribute.g().node(), isFunction, unknown);
  }
}

LogicalResult GraphImporter::checkOperators() {
  UnknownOperators unknown;
  auto isFunction = [&](const NodeProto &node) { return functionOf(node); };
  collectUnknown(graph.node(), isFunction, unknown);
  for (const auto &function : model.functions())
    collectUnknown(function.node(), isFunction, unknown);
  if (unknown.empty()) {
    if (graph.sparse_initializer_size())
      return emitError(module.getLoc())
             << "not supported yet: sparse initializers";
    return success();
  }
  constexpr size_t maxNames = 5;
  SmallVector<std::string> texts;
  for (auto &[key, nodes] : unknown) {
    std::string text = key + " (node ";
    text += llvm::join(ArrayRef(nodes).take_front(maxNames), ", ");
    if (nodes.size() > maxNames)
      text += " and " + std::to_string(nodes.size() - maxNames) + " more";
    texts.push_back(text + ")");
  }
  return emitError(module.getLoc())
         << "not supported yet: " << llvm::join(texts, ", ");
}

/// Whether a made-up name hides a weight rather than a table: these are what
/// PyTorch's exporters call weights that they folded something into.
static bool hidesWeight(StringRef name) {
  return name.starts_with("onnx::") || name.starts_with("val_") ||
         name.starts_with("alias") || name.starts_with("expand");
}

LogicalResult GraphImporter::checkTrainable() {
  // The pass that marks parameters reports globs without a match. Here only
  // what it cannot see any more: integer tensors, which have become constants,
  // and names that the exporter threw away.
  std::vector<std::string> lost;
  for (const std::string &name : madeUp)
    if (hidesWeight(name))
      lost.push_back(name);
  for (size_t i = 0; i < trainable.size(); ++i) {
    const llvm::GlobPattern &glob = trainable[i];
    bool matches =
        llvm::any_of(module.getOps<nn::ParamOp>(), [&](nn::ParamOp param) {
          return glob.match(param.getSymName());
        });
    if (matches)
      continue;
    for (const TensorProto &tensor : graph.initializer()) {
      Type element = elementTypeOf(tensor.data_type(), context);
      if (glob.match(tensor.name()) && element && !isa<FloatType>(element))
        return emitError(module.getLoc())
               << "--trainable=" << options.trainable[i] << " names '"
               << tensor.name() << "' of element type " << element
               << "; only float parameters can be trained";
    }
    if (lost.empty())
      continue;
    InFlightDiagnostic diag = emitError(module.getLoc())
                              << "no parameter matches --trainable="
                              << options.trainable[i];
    diag.attachNote() << "the exporter dropped the names of " << lost.size()
                      << " parameters, the first is '" << lost.front()
                      << "'; export with mgq-export, or with torch.onnx.export"
                         "(dynamo=False, do_constant_folding=False, "
                         "keep_initializers_as_inputs=True)";
    return diag;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Initializers, inputs, outputs
//===----------------------------------------------------------------------===//

LogicalResult GraphImporter::readInitializers() {
  for (int64_t i = 0; i < graph.initializer_size(); ++i) {
    const TensorProto &tensor = graph.initializer(i);
    if (tensor.name().empty())
      return emitError(module.getLoc()) << "an initializer has no name";
    if (!initializers.try_emplace(tensor.name(), i).second)
      return emitError(module.getLoc())
             << "two initializers are named '" << tensor.name() << "'";
  }
  for (const NodeProto &node : graph.node())
    for (const std::string &output : node.output())
      if (!output.empty() && initializers.count(output))
        return emitError(locationOf(node))
               << "defines '" << output << "', which is an initializer";
  return success();
}

FailureOr<RankedTensorType>
GraphImporter::inputType(const ::onnx::ValueInfoProto &input) {
  Location loc = NameLoc::get(builder.getStringAttr(input.name()));
  if (!input.type().has_tensor_type())
    return emitError(loc) << "not supported yet: graph input '" << input.name()
                          << "', which is not a tensor";
  const auto &tensor = input.type().tensor_type();
  Type element = elementTypeOf(tensor.elem_type(), context);
  if (!element)
    return emitError(loc) << "not supported yet: the element type of graph "
                             "input '"
                          << input.name() << "'";
  if (!tensor.has_shape())
    return emitError(loc) << "graph input '" << input.name()
                          << "' has no shape";
  SmallVector<int64_t> shape;
  for (auto [index, dim] : llvm::enumerate(tensor.shape().dim())) {
    if (dim.has_dim_value() && dim.dim_value() >= 0) {
      shape.push_back(dim.dim_value());
      continue;
    }
    auto bound = options.dims.find(dim.dim_param());
    if (bound == options.dims.end()) {
      if (dim.dim_param().empty())
        return emitError(loc)
               << "dimension " << index << " of graph input '" << input.name()
               << "' has neither a size nor a name";
      return emitError(loc)
             << "dimension " << index << " of graph input '" << input.name()
             << "' is symbolic; bind it with --dim=" << dim.dim_param() << "=N";
    }
    shape.push_back(bound->second);
  }
  if (!isSaneShape(shape))
    return emitError(loc) << "graph input '" << input.name()
                          << "' is larger than any memory";
  return RankedTensorType::get(shape, element);
}

/// Refuses --dim=NAME of a name that no graph input has: a slip of the pen.
LogicalResult GraphImporter::checkDims() {
  std::set<std::string> known;
  for (const auto &input : graph.input())
    for (const auto &dim : input.type().tensor_type().shape().dim())
      if (!dim.dim_param().empty())
        known.insert(dim.dim_param());
  for (StringRef name : options.dims.keys()) {
    if (known.count(name.str()))
      continue;
    InFlightDiagnostic diag = emitError(module.getLoc())
                              << "no dimension of a graph input is named '"
                              << name << "', which --dim binds";
    if (!known.empty())
      diag << "; symbolic dimensions: " << llvm::join(known, ", ");
    return diag;
  }
  return success();
}

LogicalResult GraphImporter::importInputs() {
  if (failed(checkDims()))
    return failure();
  for (const auto &input : graph.input()) {
    // TorchScript can list parameters as inputs with a default value.
    if (initializers.count(input.name()))
      continue;
    auto type = inputType(input);
    if (failed(type))
      return failure();
    if (StringRef(input.name()).starts_with(nn::kRandomInput))
      return emitError(module.getLoc())
             << "graph input '" << input.name() << "': names that start with '"
             << nn::kRandomInput << "' are mgq's own";
    Location loc = NameLoc::get(builder.getStringAttr(input.name()));
    Value value;
    auto constant = options.constantInputs.find(input.name());
    if (constant != options.constantInputs.end()) {
      if (constant->second.getType() != *type)
        return emitError(loc)
               << "input '" << input.name() << "' has type "
               << constant->second.getType() << ", expected " << *type;
      value = nn::ConstantOp::create(builder, loc, constant->second);
    } else {
      unsigned index = function.getNumArguments();
      auto attrs = builder.getDictionaryAttr(builder.getNamedAttr(
          nn::kInputAttr, builder.getStringAttr(input.name())));
      if (failed(function.insertArgument(index, *type, attrs, loc)))
        return failure();
      value = function.getArgument(index);
    }
    if (!top.values.try_emplace(input.name(), value).second)
      return emitError(loc)
             << "two graph inputs are named '" << input.name() << "'";
  }
  return success();
}

LogicalResult GraphImporter::importOutputs() {
  SmallVector<Value> values;
  SmallVector<Type> types;
  SmallVector<Attribute> attrs;
  if (graph.output_size() == 0)
    return emitError(module.getLoc()) << "the graph has no output";
  for (const auto &output : graph.output()) {
    auto value = lookup(output.name(), nullptr, 0, top);
    if (failed(value))
      return failure();
    if (!typeOf(*value).hasStaticShape())
      return emitError(module.getLoc())
             << "not supported yet: graph output '" << output.name()
             << "', whose size depends on data (behind a NonZero)";
    values.push_back(*value);
    types.push_back(value->getType());
    attrs.push_back(builder.getDictionaryAttr(builder.getNamedAttr(
        nn::kOutputAttr, builder.getStringAttr(output.name()))));
  }
  func::ReturnOp::create(builder, module.getLoc(), values);
  function.setType(builder.getFunctionType(function.getArgumentTypes(), types));
  function.setAllResultAttrs(attrs);
  return success();
}

//===----------------------------------------------------------------------===//
// Clean up
//===----------------------------------------------------------------------===//

void GraphImporter::eraseDeadOps() {
  Block &body = function.front();
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (op.use_empty() && isPure(&op) && !op.hasTrait<OpTrait::IsTerminator>())
      op.erase();
  llvm::StringSet<> used;
  for (auto ref : function.getOps<nn::ParamRefOp>())
    used.insert(ref.getParam());
  for (auto param : llvm::make_early_inc_range(module.getOps<nn::ParamOp>()))
    if (!used.contains(param.getSymName()))
      param.erase();
}
