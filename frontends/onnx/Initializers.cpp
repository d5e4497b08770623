//===- Initializers.cpp - Imports stored tensors --------------------------===//
//
// Which initializer is a parameter, which a constant, and which a copy of a
// parameter.
//
//===----------------------------------------------------------------------===//

#include "frontends/onnx/Graph.h"

#include "dialects/NN/NNBuild.h"
#include "dialects/NN/NNElements.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using ::onnx::NodeProto;
using ::onnx::TensorProto;

FailureOr<Value> GraphImporter::constantOf(Location loc,
                                           const TensorProto &tensor) {
  auto attr = files.value(loc, tensor);
  if (failed(attr))
    return failure();
  return Value(nn::ConstantOp::create(builder, loc, *attr));
}

Value GraphImporter::paramRef(const TensorProto &tensor, const Home &home,
                              const ParamName &wanted, bool isTable) {
  // Two tensors may claim one name; the second keeps the file's.
  std::string name = wanted.name;
  bool transposed = wanted.transposed;
  auto isTaken = [&](StringRef candidate) {
    return paramHomes.count(candidate) ||
           SymbolTable::lookupSymbolIn(module, candidate);
  };
  if (isTaken(name)) {
    name = tensor.name();
    transposed = false;
    for (int i = 1; isTaken(name); ++i)
      name = tensor.name() + "." + std::to_string(i);
  }
  Location loc = NameLoc::get(builder.getStringAttr(tensor.name()));
  auto type = *tensorType(loc, tensor);
  DenseI64ArrayAttr permutation;
  if (transposed && type.getRank() == 2)
    permutation = builder.getDenseI64ArrayAttr({1, 0});
  auto stored = type;
  if (wanted.expanded && type.getRank() > 1 &&
      llvm::is_contained(type.getShape(), type.getNumElements()))
    type = type.clone({type.getNumElements()});
  nn::TrainabilityAttr trainability;
  if (isTable)
    trainability = nn::TrainabilityAttr::get(context, nn::Trainability::Frozen);
  {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPoint(function);
    nn::ParamOp::create(builder, loc, builder.getStringAttr(name),
                        TypeAttr::get(type), trainability,
                        builder.getStringAttr(home.file),
                        builder.getI64IntegerAttr(home.offset),
                        builder.getI64IntegerAttr(home.length), permutation);
  }
  paramHomes[name] = home;
  Value value = nn::ParamRefOp::create(builder, loc, type,
                                       FlatSymbolRefAttr::get(context, name));
  if (type != stored)
    value = nn::ReshapeOp::create(builder, loc, stored, value);
  return value;
}

/// Whether `tensor` holds the transpose of `other`.
static FailureOr<bool> isTransposeOf(Location loc, const ModelFiles &files,
                                     const TensorProto &tensor,
                                     const TensorProto &other) {
  if (tensor.dims_size() != 2 || other.dims_size() != 2 ||
      tensor.dims(0) != other.dims(1) || tensor.dims(1) != other.dims(0) ||
      tensor.data_type() != other.data_type())
    return false;
  auto value = files.value(loc, tensor);
  auto otherValue = failed(value) ? value : files.value(loc, other);
  if (failed(otherValue))
    return failure();
  if (value->isSplat() || otherValue->isSplat())
    return value->isSplat() && otherValue->isSplat() &&
           nn::readElements(*value)->words ==
               nn::readElements(*otherValue)->words;
  auto a = nn::readElements(*value), b = nn::readElements(*otherValue);
  int64_t rows = tensor.dims(0), columns = tensor.dims(1);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      if (a->words[i * columns + j] != b->words[j * rows + i])
        return false;
  return true;
}

/// Where the exporter stored both a weight and, for another use, its transpose:
/// the latter as a transposition of the former, so that both train as one.
FailureOr<Value> GraphImporter::tiedTo(int64_t index, const ParamName &name) {
  const TensorProto &tensor = graph.initializer(index);
  bool isCopy =
      isMadeUp(tensor.name()) || !names.sourcesOf(tensor.name()).empty();
  if (!isCopy || tensor.dims_size() != 2)
    return Value();
  // In practice only embeddings are tied.
  SetVector<int64_t> candidates;
  auto add = [&](StringRef source) {
    if (auto found = initializers.find(source);
        found != initializers.end() && found->second != index)
      candidates.insert(found->second);
  };
  add(name.name);
  for (const NodeProto &node : graph.node())
    if (node.op_type() == "Gather" && node.input_size() == 2)
      add(node.input(0));
  Location loc = NameLoc::get(builder.getStringAttr(tensor.name()));
  for (int64_t candidate : candidates) {
    auto isTied =
        isTransposeOf(loc, files, tensor, graph.initializer(candidate));
    if (failed(isTied))
      return failure();
    if (!*isTied)
      continue;
    auto value = initializer(candidate, nullptr, 0);
    if (failed(value))
      return failure();
    return Value(
        nn::TransposeOp::create(builder, loc, *value, ArrayRef<int64_t>{1, 0}));
  }
  return Value();
}

/// Warns of parameters that --trainable names but the exporter folded away.
void GraphImporter::reportLeftOut() {
  std::vector<std::string> lost;
  for (const std::string &name : names.leftOut())
    if (names.trains(name))
      lost.push_back(name);
  if (!lost.empty())
    emitWarning(module.getLoc())
        << "the exporter left parameters out of the graph, or folded them into "
           "others: "
        << llvm::join(lost, ", ")
        << "; they do not train. Export with mgq-export to keep them";
}

FailureOr<Value> GraphImporter::initializer(int64_t index,
                                            const NodeProto *node, int use) {
  const TensorProto &tensor = graph.initializer(index);
  ParamName name = names.at(tensor.name(), node, use);
  std::string key = tensor.name() + "\n" + name.name;
  if (Value known = initializerValues.lookup(key))
    return known;
  Location loc = NameLoc::get(builder.getStringAttr(tensor.name()));
  auto type = tensorType(loc, tensor);
  if (failed(type))
    return failure();
  bool isFloat = isa<FloatType>(type->getElementType());
  bool isExternal = tensor.data_location() == TensorProto::EXTERNAL;
  // Scalars and small tables that an exporter computed are constants: later
  // phases look into them (masks, scales).
  bool hasMadeUpName = isMadeUp(name.name);
  bool isSmallTable = !isExternal && hasMadeUpName && nn::isFoldableSize(*type);
  bool isTable =
      isSmallTable || (names.isTable(name.name) &&
                       (!hasMadeUpName || !names.sourcesOf(name.name).empty()));
  if (isFloat && type->getNumElements() > 1 && hasMadeUpName)
    madeUp.push_back(name.name);
  // `*` means weights, not the exporter's tables; those must be asked for.
  bool isNamed = llvm::is_contained(options.trainable, name.name);
  bool trains = isFloat && (isNamed || (names.trains(name.name) && !isTable));
  if (isFloat && !trains && isTable && type->getNumElements() > 1 &&
      names.trains(name.name) && !names.isBuffer(name.name))
    nameless.push_back(name.name);
  bool isParam = isFloat && !options.inlineWeights &&
                 type->getNumElements() > 0 &&
                 (trains || (type->getNumElements() > 1 && !isSmallTable));
  // A tied weight: the transpose of one that the graph holds as well.
  if (trains) {
    auto tied = tiedTo(index, name);
    if (failed(tied))
      return failure();
    if (*tied)
      return initializerValues[key] = *tied;
  }
  std::optional<Home> home;
  if (isParam) {
    auto found = files.home(loc, tensor, index);
    if (failed(found))
      return failure();
    home = *found;
    if (!home && trains)
      return emitError(loc) << "parameter '" << name.name
                            << "' trains, but its values are not stored as raw "
                               "bytes; save the model with raw_data";
  }
  FailureOr<Value> value =
      home
          ? FailureOr<Value>(paramRef(tensor, *home, name, isTable && !isNamed))
          : constantOf(loc, tensor);
  if (succeeded(value))
    initializerValues[key] = *value;
  return value;
}
