//===- NNOps.cpp - Verifiers and accessors of nn ops ----------------------===//

#include "dialects/NN/NN.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mgq::nn;

//===----------------------------------------------------------------------===//
// param, param_ref
//===----------------------------------------------------------------------===//

RankedTensorType ParamOp::getTensorType() {
  return cast<RankedTensorType>(getType());
}

bool ParamOp::isTrainable() {
  return getTrainability() == Trainability::Trainable;
}

RankedTensorType ParamOp::getValueType() {
  RankedTensorType type = getTensorType();
  Type element = type.getElementType();
  if (!isTrainable() || !(element.isBF16() || element.isF16()))
    return type;
  return type.clone(Float32Type::get(getContext()));
}

/// Bytes of one element in a file: booleans take one.
static int64_t elementBytes(Type type) {
  return std::max<int64_t>(type.getIntOrFloatBitWidth(), 8) / 8;
}

LogicalResult ParamOp::verify() {
  RankedTensorType type = getTensorType();
  if (!type.hasStaticShape())
    return emitOpError("has type ") << type << ", expected a static shape";
  int64_t expected =
      type.getNumElements() * elementBytes(type.getElementType());
  if (static_cast<int64_t>(getLength()) != expected)
    return emitOpError("has length ")
           << getLength() << ", expected " << expected << " bytes for " << type;
  if (static_cast<int64_t>(getOffset()) < 0)
    return emitOpError("has negative offset ")
           << static_cast<int64_t>(getOffset());
  if (auto permutation = getCanonicalPermutation())
    if (permutation->size() != static_cast<size_t>(type.getRank()))
      return emitOpError("has a canonical permutation of ")
             << permutation->size() << " dimensions, expected "
             << type.getRank();
  return success();
}

static ParseResult parseTrainability(OpAsmParser &parser,
                                     TrainabilityAttr &attr) {
  StringRef keyword;
  if (failed(parser.parseOptionalKeyword(&keyword, {"frozen", "trainable"})))
    return success();
  attr = TrainabilityAttr::get(parser.getContext(),
                               *symbolizeTrainability(keyword));
  return success();
}

static void printTrainability(OpAsmPrinter &printer, ParamOp,
                              TrainabilityAttr attr) {
  if (attr)
    printer << stringifyTrainability(attr.getValue());
}

LogicalResult ParamRefOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto param = symbols.lookupNearestSymbolFrom<ParamOp>(*this, getParamAttr());
  if (!param)
    return emitOpError("refers to ")
           << getParamAttr() << ", which is not an nn.param";
  auto type = cast<RankedTensorType>(getResult().getType());
  RankedTensorType value = param.getValueType();
  Type element = value.getElementType();
  bool mayBeRounded =
      !param.isTrainable() && (element.isF32() || element.isF16());
  bool isRounded = mayBeRounded && type.getElementType().isBF16() &&
                   type.getShape() == value.getShape();
  if (value != type && !isRounded) {
    InFlightDiagnostic diag = emitOpError("has type ")
                              << getResult().getType() << ", expected "
                              << param.getValueType();
    diag.attachNote(param.getLoc()) << "parameter declared here";
    return diag;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Elementwise, shape
//===----------------------------------------------------------------------===//

LogicalResult BinaryOp::verify() {
  Type lhs = getElementTypeOrSelf(getLhs()),
       rhs = getElementTypeOrSelf(getRhs());
  if (lhs != rhs && getKind() != BinaryKind::Pow)
    return emitOpError("has operands of ")
           << lhs << " and " << rhs << ", expected equal element types";
  return success();
}

LogicalResult DropoutOp::verify() {
  auto type = cast<RankedTensorType>(getInput().getType());
  auto key = cast<RankedTensorType>(getKey().getType());
  double ratio = getRatio().convertToDouble();
  if (!(ratio > 0 && ratio <= 1))
    return emitOpError("has ratio ")
           << ratio << ", expected more than 0 and at most 1";
  if (key.getShape() != ArrayRef<int64_t>{4})
    return emitOpError("has a key of type ") << key << ", expected [4]";
  int64_t rows = type.getRank() ? type.getDimSize(0) : 1;
  if (getSamples() < 1 || (!ShapedType::isDynamic(rows) && rows % getSamples()))
    return emitOpError("of ")
           << type << ": the leading dimension does not hold " << getSamples()
           << " samples";
  return success();
}

LogicalResult ReshapeOp::verify() {
  auto from = cast<RankedTensorType>(getInput().getType());
  auto to = cast<RankedTensorType>(getResult().getType());
  if (from.getElementType() != to.getElementType())
    return emitOpError("changes the element type from ")
           << from.getElementType() << " to " << to.getElementType();
  if (from.hasStaticShape() && to.hasStaticShape() &&
      from.getNumElements() != to.getNumElements())
    return emitOpError("changes the number of elements from ")
           << from.getNumElements() << " to " << to.getNumElements();
  return success();
}

LogicalResult BroadcastOp::verify() {
  auto from = cast<RankedTensorType>(getInput().getType());
  auto to = cast<RankedTensorType>(getResult().getType());
  auto joined = broadcastShapes(from.getShape(), to.getShape());
  if (from.getElementType() != to.getElementType() || failed(joined) ||
      ArrayRef<int64_t>(*joined) != to.getShape())
    return emitOpError("cannot expand ") << from << " to " << to;
  return success();
}

#define GET_OP_CLASSES
#include "dialects/NN/NNOps.cpp.inc"
