//===- Activity.cpp - What training makes of each value
//---------------------===//

#include "passes/NN/Activity.h"

#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mgq::nn;

static bool isFloat(Value value) {
  return isa<FloatType>(getElementTypeOrSelf(value));
}

/// Whether a function is piecewise constant: its gradient is zero.
static bool isPiecewiseConstant(UnaryKind kind) {
  switch (kind) {
  case UnaryKind::Sign:
  case UnaryKind::Ceil:
  case UnaryKind::Floor:
  case UnaryKind::Round:
  case UnaryKind::Not:
  case UnaryKind::IsNan:
  case UnaryKind::IsInf:
    return true;
  default:
    return false;
  }
}

bool mgq::nn::carriesGradient(OpOperand &operand) {
  Operation *op = operand.getOwner();
  if (!isFloat(operand.get()))
    return false;
  if (isa<func::CallOp, func::ReturnOp>(op))
    return true;
  if (auto unary = dyn_cast<UnaryOp>(op))
    return !isPiecewiseConstant(unary.getKind());
  return isa<DifferentiableOpInterface>(op);
}

Activity::Activity(func::FuncOp function,
                   llvm::function_ref<bool(Value)> isTrainable,
                   ValueRange losses) {
  Block &block = function.getBody().front();
  for (Value argument : block.getArguments())
    if (isTrainable(argument))
      trained.insert(argument);
  for (Operation &op : block) {
    bool depends = llvm::any_of(op.getOpOperands(), [&](OpOperand &operand) {
      return trained.contains(operand.get()) && carriesGradient(operand);
    });
    for (Value result : op.getResults())
      if (isFloat(result) && (depends || isTrainable(result)))
        trained.insert(result);
  }

  used.insert(losses.begin(), losses.end());
  for (Operation &op : llvm::reverse(block)) {
    if (!llvm::any_of(op.getResults(),
                      [&](Value result) { return used.contains(result); }))
      continue;
    for (OpOperand &operand : op.getOpOperands())
      if (carriesGradient(operand))
        used.insert(operand.get());
  }
}

bool mgq::nn::isTrainableParam(Value value, SymbolTable &symbols) {
  auto ref = value.getDefiningOp<ParamRefOp>();
  if (!ref)
    return false;
  auto param = symbols.lookup<ParamOp>(ref.getParamAttr().getAttr());
  return param && param.isTrainable();
}
