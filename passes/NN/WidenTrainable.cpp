//===- WidenTrainable.cpp - Narrow parameters that train are f32 ----------===//
//
//   %w = nn.param_ref @w : tensor<4x4xbf16>    %w = nn.param_ref @w : ...xf32
//   %f = nn.cast %w : ... -> tensor<4x4xf32>
//   %y = nn.matmul %x, %f                  ->  %y = nn.matmul %x, %w
//
// The value widens as far as ops only move it (views, rows picked from a
// table); what computes in the narrow type gets it rounded, by a cast that
// stands after these.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/WidenTrainable.h"

#include "dialects/NN/NN.h"
#include "dialects/NN/NNBuild.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace mgq::nn;

/// Whether the result has elements of `operand` as they are, and of nothing
/// else.
static bool movesElements(OpOperand &operand) {
  return operand.getOperandNumber() == 0 &&
         isa<ReshapeOp, TransposeOp, BroadcastOp, SliceOp, GatherOp,
             GatherElementsOp, GatherNDOp>(operand.getOwner());
}

/// Makes a value f32 that was of type `stored`, and what only moves it.
static void widen(Value value, Type stored) {
  Type f32 = Float32Type::get(value.getContext());
  value.setType(tensorType(value).clone(f32));
  Value rounded;
  for (OpOperand &use : llvm::make_early_inc_range(value.getUses())) {
    Operation *user = use.getOwner();
    if (isa<CastOp>(user)) {
      if (user->getResult(0).getType() != value.getType())
        continue;
      user->getResult(0).replaceAllUsesWith(value);
      user->erase();
    } else if (movesElements(use)) {
      widen(user->getResult(0), stored);
    } else {
      if (!rounded) {
        OpBuilder builder(value.getContext());
        builder.setInsertionPointAfterValue(value);
        rounded = Build(builder, value.getLoc()).cast(value, stored);
      }
      use.set(rounded);
    }
  }
}

void mgq::nn::widenTrainable(func::FuncOp function) {
  SymbolTable symbols(function->getParentOfType<ModuleOp>());
  for (auto ref : llvm::to_vector(function.getOps<ParamRefOp>())) {
    auto param = symbols.lookup<ParamOp>(ref.getParam());
    if (param && param.getValueType() != ref.getType())
      widen(ref.getResult(), param.getTensorType().getElementType());
  }
}
