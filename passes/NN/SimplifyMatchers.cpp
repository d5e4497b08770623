//===- SimplifyMatchers.cpp - Matchers that idioms share
//--------------------===//

#include "passes/NN/Simplify.h"

#include "mlir/IR/Matchers.h"
#include <cmath>

using namespace mlir;
using namespace mgq::nn;

/// The elements of a constant, seen through reshapes.
static ElementsAttr constantElements(Value value) {
  while (auto reshape = value.getDefiningOp<ReshapeOp>())
    value = reshape.getInput();
  auto constant = value.getDefiningOp<ConstantOp>();
  return constant ? constant.getValue() : nullptr;
}

/// The one element of a constant, or null.
static Attribute splatElement(Value value) {
  auto elements = dyn_cast_or_null<DenseElementsAttr>(constantElements(value));
  if (!elements || !elements.isSplat())
    return nullptr;
  return elements.getSplatValue<Attribute>();
}

std::optional<double> mgq::nn::splatConstant(Value value) {
  if (auto element = dyn_cast_or_null<FloatAttr>(splatElement(value)))
    return element.getValueAsDouble();
  return std::nullopt;
}

std::optional<int64_t> mgq::nn::splatInteger(Value value) {
  if (auto element = dyn_cast_or_null<IntegerAttr>(splatElement(value)))
    return element.getValue().getBitWidth() == 1
               ? int64_t(element.getValue().getZExtValue())
               : element.getValue().getSExtValue();
  return std::nullopt;
}

std::optional<SmallVector<int64_t>> mgq::nn::integerConstant(Value value) {
  auto elements =
      dyn_cast_or_null<DenseIntElementsAttr>(constantElements(value));
  if (!elements)
    return std::nullopt;
  SmallVector<int64_t> values;
  for (APInt element : elements)
    values.push_back(element.getSExtValue());
  return values;
}

bool mgq::nn::isNear(double a, double b) {
  return a == b || std::fabs(a - b) <= 1e-6 * std::fabs(b);
}

BinaryOp mgq::nn::definedBy(Value value, BinaryKind kind) {
  auto op = value.getDefiningOp<BinaryOp>();
  return op && op.getKind() == kind ? op : nullptr;
}

UnaryOp mgq::nn::definedBy(Value value, UnaryKind kind) {
  auto op = value.getDefiningOp<UnaryOp>();
  return op && op.getKind() == kind ? op : nullptr;
}

std::optional<Scaled> mgq::nn::matchScaled(Value value) {
  auto op = value.getDefiningOp<BinaryOp>();
  if (!op)
    return std::nullopt;
  Value lhs = op.getLhs(), rhs = op.getRhs();
  if (op.getKind() == BinaryKind::Mul && splatConstant(lhs))
    std::swap(lhs, rhs);
  auto factor = splatConstant(rhs);
  if (!factor || lhs.getType() != value.getType())
    return std::nullopt;
  if (op.getKind() == BinaryKind::Mul)
    return Scaled{lhs, *factor};
  if (op.getKind() == BinaryKind::Div && *factor != 0)
    return Scaled{lhs, 1 / *factor};
  return std::nullopt;
}

std::optional<Scaled> mgq::nn::matchOffset(Value value) {
  BinaryOp op = definedBy(value, BinaryKind::Add);
  if (!op)
    return std::nullopt;
  Value lhs = op.getLhs(), rhs = op.getRhs();
  if (splatConstant(lhs))
    std::swap(lhs, rhs);
  auto offset = splatConstant(rhs);
  if (!offset || lhs.getType() != value.getType())
    return std::nullopt;
  return Scaled{lhs, *offset};
}

std::optional<Mean> mgq::nn::matchMean(Value value) {
  auto scaled = matchScaled(value);
  if (!scaled)
    return std::nullopt;
  auto sum = scaled->input.getDefiningOp<ReduceOp>();
  if (!sum || sum.getKind() != ReduceKind::Sum || !sum.getKeepDims() ||
      sum.getAxes().empty())
    return std::nullopt;
  ArrayRef<int64_t> shape = shapeOf(sum.getInput());
  int64_t axis = sum.getAxes().front(), count = 1;
  // The last dimensions, all of them.
  if (axis + int64_t(sum.getAxes().size()) != int64_t(shape.size()))
    return std::nullopt;
  for (int64_t dim : shape.drop_front(axis))
    count *= dim;
  if (!isNear(scaled->factor * double(count), 1))
    return std::nullopt;
  return Mean{sum.getInput(), axis};
}

bool mgq::nn::dependsOnParam(Value value) {
  DenseSet<Operation *> seen;
  SmallVector<Operation *> worklist;
  auto push = [&](Value operand) {
    if (Operation *op = operand.getDefiningOp(); op && seen.insert(op).second)
      worklist.push_back(op);
  };
  push(value);
  while (!worklist.empty()) {
    Operation *op = worklist.pop_back_val();
    if (isa<ParamRefOp>(op))
      return true;
    llvm::for_each(op->getOperands(), push);
  }
  return false;
}

Value mgq::nn::stripCasts(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (auto cast = dyn_cast<CastOp>(op)) {
      if (!isa<FloatType>(typeOf(cast.getInput()).getElementType()))
        break;
      value = cast.getInput();
    } else if (auto reshape = dyn_cast<ReshapeOp>(op)) {
      value = reshape.getInput();
    } else {
      break;
    }
  }
  return value;
}

Value mgq::nn::reshapeTo(OpBuilder &builder, Location loc, Value value,
                         ArrayRef<int64_t> shape) {
  if (shapeOf(value) == shape)
    return value;
  return ReshapeOp::create(builder, loc, typeOf(value).clone(shape), value);
}
