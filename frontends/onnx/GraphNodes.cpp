//===- GraphNodes.cpp - Imports nodes one by one --------------------------===//
//
// Looks inputs up, calls the operator's import function and defines outputs.
// Model-local functions and If with a constant condition are inlined.
//
//===----------------------------------------------------------------------===//

#include "frontends/onnx/Graph.h"
#include "frontends/onnx/Registry.h"

#include "mlir/IR/Matchers.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using ::onnx::NodeProto;

Location GraphImporter::locationOf(const NodeProto &node) const {
  std::string name = node.name();
  if (name.empty())
    name = node.op_type() + ":" + (node.output_size() ? node.output(0) : "");
  std::string scope = scopeOf(node);
  if (!enclosing.empty()) {
    name = enclosing + "/" + name;
    if (scope.empty())
      scope = enclosing;
  }
  auto attr = builder.getContext();
  StringAttr nameAttr = StringAttr::get(attr, name);
  if (scope.empty())
    return NameLoc::get(nameAttr);
  return NameLoc::get(nameAttr, NameLoc::get(StringAttr::get(attr, scope)));
}

FailureOr<Value> GraphImporter::lookup(StringRef name, const NodeProto *node,
                                       int index, Scope &scope) {
  const NodeProto *later = nullptr;
  for (const Scope *at = &scope; at; at = at->outer) {
    if (Value value = at->values.lookup(name))
      return value;
    if (!later)
      later = at->definitions.lookup(name);
    // Initializers belong to the outermost graph.
    if (at == &top)
      if (auto found = initializers.find(name); found != initializers.end())
        return initializer(found->second, node, index);
  }
  Location loc = node ? locationOf(*node) : module.getLoc();
  auto user = [&]() -> std::string {
    return node ? "uses '" : "the graph's output is '";
  };
  if (later && node) {
    InFlightDiagnostic diag = emitError(loc)
                              << "uses '" << name
                              << "' before the node that defines it: nodes are "
                                 "not in topological order";
    diag.attachNote(locationOf(*later)) << "defined here";
    return diag;
  }
  return emitError(loc) << user() << name << "', which nothing defines";
}

LogicalResult GraphImporter::define(const NodeProto &node, int output,
                                    Value value, Scope &scope) {
  const std::string &name = node.output(output);
  if (name.empty())
    return success();
  if (!value)
    return emitError(locationOf(node))
           << node.op_type() << ": not supported yet: output " << output
           << " ('" << name << "')";
  if (!scope.values.try_emplace(name, value).second)
    return emitError(locationOf(node))
           << "defines '" << name << "', which is defined already";
  return success();
}

LogicalResult GraphImporter::importNodes(
    const google::protobuf::RepeatedPtrField<NodeProto> &nodes, Scope &scope) {
  for (const NodeProto &node : nodes)
    for (const std::string &output : node.output())
      if (!output.empty())
        scope.definitions.try_emplace(output, &node);
  for (const NodeProto &node : nodes)
    if (failed(importNode(node, scope)))
      return failure();
  return success();
}

/// The value of a Constant node.
static FailureOr<DenseElementsAttr> constantValue(Location loc,
                                                  const NodeProto &node) {
  MLIRContext *context = loc.getContext();
  Type i64 = IntegerType::get(context, 64), f32 = Float32Type::get(context);
  for (const auto &attribute : node.attribute()) {
    if (attribute.has_t())
      return inlineValue(loc, attribute.t());
    int64_t ints = attribute.ints_size(), floats = attribute.floats_size();
    if (attribute.name() == "value_int")
      return DenseElementsAttr::get(RankedTensorType::get({}, i64),
                                    attribute.i());
    if (attribute.name() == "value_float")
      return DenseElementsAttr::get(RankedTensorType::get({}, f32),
                                    attribute.f());
    if (attribute.name() == "value_ints")
      return DenseElementsAttr::get(
          RankedTensorType::get({ints}, i64),
          ArrayRef<int64_t>(attribute.ints().data(), ints));
    if (attribute.name() == "value_floats")
      return DenseElementsAttr::get(
          RankedTensorType::get({floats}, f32),
          ArrayRef<float>(attribute.floats().data(), floats));
  }
  return emitError(loc) << "not supported yet: a Constant that is no dense "
                           "tensor of numbers";
}

/// Slices of a tensor along an axis; they live as long as the importer runs.
LogicalResult GraphImporter::splitToSequence(const NodeProto &node,
                                             Scope &scope) {
  Node n(builder, locationOf(node), node, scope.opset);
  if (node.input_size() < 1 || node.output_size() != 1)
    return n.fail("needs an input and an output"), failure();
  for (int i = 0; i < node.input_size(); ++i) {
    if (i > 0 && node.input(i).empty())
      continue;
    auto value = lookup(node.input(i), &node, i, scope);
    if (failed(value))
      return failure();
    n.inputs.push_back(*value);
  }
  Value x = n.input(0);
  auto axis = n.axis(n.getInt("axis", 0), rankOf(x));
  if (!axis)
    return failure();
  int64_t dim = shapeOf(x)[*axis], part = 1;
  Shape sizes;
  if (n.input(1)) {
    MaybeInts given = n.needInts(1, "split");
    if (!given || given->empty())
      return n.fail("splits into no parts"), failure();
    if (rankOf(n.input(1)) == 1)
      sizes = *given;
    else
      part = given->front();
  }
  constexpr int64_t maxParts = 1 << 16;
  if (part < 1 || dim < 0 || (sizes.empty() && dim / part > maxParts))
    return n.fail("not supported yet: parts of " + Twine(part) + " of " +
                  Twine(dim) + " elements"),
           failure();
  bool isList = !sizes.empty();
  for (int64_t at = 0; !isList && at < dim; at += part)
    sizes.push_back(std::min(part, dim - at));
  bool dropsAxis = !n.input(1) && n.getInt("keepdims", 1) == 0;
  SmallVector<Value> parts;
  int64_t at = 0;
  for (int64_t size : sizes) {
    if (size < 0 || size > dim - at)
      return n.fail("splits " + Twine(dim) + " elements into more"), failure();
    Value slice = n.slice(x, *axis, at, at + size);
    if (slice && dropsAxis) {
      Shape shape(shapeOf(slice));
      shape.erase(shape.begin() + *axis);
      slice = n.reshape(slice, shape);
    }
    if (!slice)
      return failure();
    parts.push_back(slice);
    at += size;
  }
  scope.sequences[node.output(0)] = parts;
  return success();
}

LogicalResult GraphImporter::sequenceAt(const NodeProto &node, Scope &scope) {
  Node n(builder, locationOf(node), node, scope.opset);
  if (node.input_size() != 2 || node.output_size() != 1)
    return n.fail("needs two inputs and an output"), failure();
  auto sequence = scope.sequences.find(node.input(0));
  if (sequence == scope.sequences.end())
    return n.fail("not supported yet: a sequence that SplitToSequence did not "
                  "make in this graph"),
           failure();
  auto position = lookup(node.input(1), &node, 1, scope);
  if (failed(position))
    return failure();
  n.inputs = {Value(), *position};
  MaybeInts index = n.needInts(1, "position");
  if (!index || index->size() != 1)
    return failure();
  int64_t count = sequence->second.size();
  int64_t at = index->front() < 0 ? index->front() + count : index->front();
  if (at < 0 || at >= count)
    return n.fail("takes element " + Twine(index->front()) + " of " +
                  Twine(count)),
           failure();
  return define(node, 0, sequence->second[at], scope);
}

/// How many first inputs an operator needs in every version of it. What imports
/// it may take them for granted.
static unsigned requiredInputs(StringRef op) {
  return llvm::StringSwitch<unsigned>(op)
      .Cases({"Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr"}, 2)
      .Cases({"BitwiseXor", "CastLike", "Conv", "ConvTranspose", "CumSum"}, 2)
      .Cases({"Div", "Equal", "Expand", "Gather", "GatherElements"}, 2)
      .Cases({"GatherND", "Gemm", "Greater", "GreaterOrEqual"}, 2)
      .Cases({"LayerNormalization", "Less", "LessOrEqual", "MatMul"}, 2)
      .Cases({"Mod", "Mul", "NegativeLogLikelihoodLoss", "Or", "PRelu"}, 2)
      .Cases({"Pow", "RMSNormalization", "SoftmaxCrossEntropyLoss"}, 2)
      .Cases({"Sub", "Tile", "Xor"}, 2)
      .Cases({"Attention", "GroupNormalization", "InstanceNormalization"}, 3)
      .Cases({"OneHot", "Range", "RotaryEmbedding", "Scatter"}, 3)
      .Cases({"ScatterElements", "ScatterND", "Where"}, 3)
      .Case("BatchNormalization", 5)
      .Default(1);
}

int64_t GraphImporter::samples() {
  auto types = function.getArgumentTypes();
  auto first = types.empty() ? RankedTensorType()
                             : dyn_cast<RankedTensorType>(types.front());
  return first && first.getRank() ? first.getDimSize(0) : 1;
}

Value GraphImporter::randomKey(Location loc) {
  std::string name = nn::kRandomInput.str() + std::to_string(randomKeys++);
  auto attrs = builder.getDictionaryAttr(
      builder.getNamedAttr(nn::kInputAttr, builder.getStringAttr(name)));
  unsigned index = function.getNumArguments();
  auto type = RankedTensorType::get({4}, builder.getI64Type());
  (void)function.insertArgument(index, type, attrs, loc);
  return function.getArgument(index);
}

LogicalResult GraphImporter::importNode(const NodeProto &node, Scope &scope) {
  if (const auto *body = functionOf(node))
    return inlineFunction(node, *body, scope);
  StringRef domain = node.domain();
  bool isDefault = domain.empty() || domain == "ai.onnx";
  Location loc = locationOf(node);
  if (isDefault && node.op_type() == "Constant") {
    auto value = constantValue(loc, node);
    if (failed(value))
      return failure();
    if (node.output_size() != 1)
      return emitError(loc) << "Constant: has " << node.output_size()
                            << " outputs, expected 1";
    return define(node, 0, nn::ConstantOp::create(builder, loc, *value), scope);
  }
  if (isDefault && node.op_type() == "If")
    return inlineIf(node, scope);
  if (isDefault && node.op_type() == "SplitToSequence")
    return splitToSequence(node, scope);
  if (isDefault && node.op_type() == "SequenceAt")
    return sequenceAt(node, scope);
  Node state(builder, loc, node, scope.opset);
  state.samples = samples();
  if (options.training)
    state.makeRandomKey = [&] { return randomKey(loc); };
  for (int i = 0; i < node.input_size(); ++i) {
    if (node.input(i).empty()) {
      state.inputs.push_back({});
      continue;
    }
    auto value = lookup(node.input(i), &node, i, scope);
    if (failed(value))
      return failure();
    state.inputs.push_back(*value);
  }
  unsigned required = isDefault ? requiredInputs(node.op_type()) : 0;
  for (unsigned i = 0; i < required; ++i)
    if (!state.input(i)) {
      state.fail("input " + Twine(i) + " is missing; it needs " +
                 Twine(required));
      return failure();
    }
  std::string key = (isDefault ? "" : node.domain() + ":") + node.op_type();
  ImportFunction import = registry().lookup(key);
  Value first = import(state);
  if (!first || state.hasFailed()) {
    state.fail("cannot be imported"); // reports if nothing else has
    return failure();
  }
  state.set(0, first);
  for (int i = 0; i < node.output_size(); ++i) {
    Value value = i < int(state.results.size()) ? state.results[i] : Value();
    if (failed(define(node, i, value, scope)))
      return failure();
  }
  return success();
}

LogicalResult GraphImporter::inlineIf(const NodeProto &node, Scope &scope) {
  Location loc = locationOf(node);
  if (node.input_size() != 1)
    return emitError(loc) << "If: has " << node.input_size()
                          << " inputs, expected 1";
  auto condition = lookup(node.input(0), &node, 0, scope);
  if (failed(condition))
    return failure();
  DenseElementsAttr attr;
  if (!matchPattern(*condition, m_Constant(&attr)) ||
      !attr.getElementType().isInteger(1) || attr.getNumElements() != 1)
    return emitError(loc) << "not supported yet: If whose condition '"
                          << node.input(0) << "' is not known at compile time";
  StringRef name =
      *attr.getValues<bool>().begin() ? "then_branch" : "else_branch";
  for (const auto &attribute : node.attribute()) {
    if (name != attribute.name())
      continue;
    const auto &body = attribute.g();
    Scope inner;
    inner.outer = &scope;
    inner.opset = scope.opset;
    for (const auto &tensor : body.initializer()) {
      auto value = constantOf(loc, tensor);
      if (failed(value))
        return failure();
      inner.values[tensor.name()] = *value;
    }
    if (failed(importNodes(body.node(), inner)))
      return failure();
    for (int i = 0; i < node.output_size(); ++i) {
      if (i >= body.output_size())
        return emitError(loc) << "If: a branch has too few outputs";
      auto value = lookup(body.output(i).name(), nullptr, 0, inner);
      if (failed(value) || failed(define(node, i, *value, scope)))
        return failure();
    }
    return success();
  }
  return emitError(loc) << "If: has no " << name;
}

/// The node with references to the function's attributes replaced.
static NodeProto bindAttributes(const NodeProto &node, const NodeProto &call,
                                const ::onnx::FunctionProto &function) {
  NodeProto bound = node;
  bound.clear_attribute();
  for (const auto &attribute : node.attribute()) {
    if (attribute.ref_attr_name().empty()) {
      *bound.add_attribute() = attribute;
      continue;
    }
    auto take = [&](const auto &candidates) {
      for (const auto &candidate : candidates)
        if (candidate.name() == attribute.ref_attr_name()) {
          auto *added = bound.add_attribute();
          *added = candidate;
          added->set_name(attribute.name());
          return true;
        }
      return false;
    };
    if (!take(call.attribute()))
      take(function.attribute_proto());
  }
  return bound;
}

LogicalResult
GraphImporter::inlineFunction(const NodeProto &node,
                              const ::onnx::FunctionProto &function,
                              Scope &scope) {
  Location loc = locationOf(node);
  constexpr int maxDepth = 64;
  if (inlineDepth >= maxDepth)
    return emitError(loc) << "function '" << function.name()
                          << "' calls itself";
  if (node.input_size() > function.input_size() ||
      node.output_size() > function.output_size())
    return emitError(loc) << "call of function '" << function.name() << "' has "
                          << node.input_size() << " inputs and "
                          << node.output_size() << " outputs, expected at most "
                          << function.input_size() << " and "
                          << function.output_size();
  llvm::SaveAndRestore<int> depth(inlineDepth, inlineDepth + 1);
  llvm::SaveAndRestore<std::string> path(
      enclosing,
      enclosing.empty() ? node.name() : enclosing + "/" + node.name());
  Scope inner;
  inner.opset = scope.opset;
  for (const auto &entry : function.opset_import())
    if (entry.domain().empty() || entry.domain() == "ai.onnx")
      inner.opset = entry.version();
  for (int i = 0; i < node.input_size(); ++i) {
    if (node.input(i).empty())
      continue;
    auto value = lookup(node.input(i), &node, i, scope);
    if (failed(value))
      return failure();
    inner.values[function.input(i)] = *value;
  }
  // Parameters that are left out stay undefined; mark them as left out by name.
  google::protobuf::RepeatedPtrField<NodeProto> nodes;
  for (const NodeProto &original : function.node()) {
    NodeProto bound = bindAttributes(original, node, function);
    for (std::string &input : *bound.mutable_input())
      for (int i = 0; i < function.input_size(); ++i)
        if (input == function.input(i) && !inner.values.count(input))
          input.clear();
    *nodes.Add() = std::move(bound);
  }
  if (failed(importNodes(nodes, inner)))
    return failure();
  for (int i = 0; i < node.output_size(); ++i) {
    auto value = lookup(function.output(i), nullptr, 0, inner);
    if (failed(value) || failed(define(node, i, *value, scope)))
      return failure();
  }
  return success();
}
