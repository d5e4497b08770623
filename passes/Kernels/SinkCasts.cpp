//===- SinkCasts.cpp - Weights are moved as they are stored ---------------===//
//
// In: layer functions of nn ops, where a weight stored as bf16 or f16 has a
// cast to f32 right behind it. After: what moves its elements moves narrow
// ones.
//
//   %f = nn.cast %table                      %g = nn.gather %table, %ids
//   %r = nn.gather %f, %ids axis 0    ->     %r = nn.cast %g
//
// Products then read the narrow weight itself (Lowering::getStored), and fused
// loops widen each element they read: no wide copy of a weight is made.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

#include "dialects/NN/NN.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_SINKCASTSPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;

/// The operands whose elements a result has, all of them; none for other ops.
static OperandRange movedOperands(Operation *op) {
  if (isa<nn::ConcatOp>(op))
    return op->getOperands();
  if (isa<nn::ReshapeOp, nn::TransposeOp, nn::BroadcastOp, nn::SliceOp,
          nn::GatherOp, nn::GatherElementsOp, nn::GatherNDOp>(op))
    return op->getOperands().take_front();
  return op->getOperands().take_front(0);
}

/// The op that widens floats and defines `value`, or null.
static nn::CastOp wideningCast(Value value) {
  auto cast = value.getDefiningOp<nn::CastOp>();
  if (!cast)
    return nullptr;
  auto from = dyn_cast<FloatType>(getElementTypeOrSelf(cast.getInput()));
  auto to = dyn_cast<FloatType>(getElementTypeOrSelf(cast.getResult()));
  return from && to && from.getWidth() < to.getWidth() ? cast : nullptr;
}

/// Makes `op` move narrow elements if all that it moves is widened from one
/// type.
static void sinkInto(Operation *op) {
  OperandRange moved = movedOperands(op);
  if (moved.empty() || !wideningCast(moved.front()))
    return;
  Type narrow = getElementTypeOrSelf(wideningCast(moved.front()).getInput());
  for (Value operand : moved)
    if (auto cast = wideningCast(operand);
        !cast || getElementTypeOrSelf(cast.getInput()) != narrow)
      return;
  Value result = op->getResult(0);
  auto wide = cast<RankedTensorType>(result.getType());
  for (unsigned i = 0, e = moved.size(); i < e; ++i)
    op->setOperand(i, wideningCast(op->getOperand(i)).getInput());
  result.setType(wide.clone(narrow));
  OpBuilder builder(op->getContext());
  builder.setInsertionPointAfter(op);
  auto cast = nn::CastOp::create(builder, op->getLoc(), wide, result);
  result.replaceAllUsesExcept(cast, cast);
}

namespace {
struct SinkCastsPass : mgq::kernels::impl::SinkCastsPassBase<SinkCastsPass> {
  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (!function->hasAttr(nn::kLayerAttr) || function.isExternal())
        continue;
      Block &block = function.getBody().front();
      SmallVector<Operation *> ops;
      for (Operation &op : block.without_terminator())
        ops.push_back(&op);
      llvm::for_each(ops, sinkInto);
      for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
        if (isOpTriviallyDead(&op))
          op.erase();
    }
  }
};
} // namespace
