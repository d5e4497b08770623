//===- Activity.h - What training makes of each value
//-----------------------===//
#ifndef MGQ_PASSES_NN_ACTIVITY_H
#define MGQ_PASSES_NN_ACTIVITY_H

#include "dialects/NN/NN.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

namespace mgq::nn {

/// Whether a gradient may flow from a result of `op` back to `operand`: both
/// are floats and the op is differentiable there (calls: taken to be).
bool carriesGradient(mlir::OpOperand &operand);

/// Activity of the values of a function with one block: does a value depend on
/// something trainable, and does it reach the loss. One walk each way.
class Activity {
public:
  /// `isTrainable` says which values are trainable by themselves (results of
  /// nn.param_ref, arguments of a layer); `losses` are what gradients start at.
  Activity(mlir::func::FuncOp function,
           llvm::function_ref<bool(mlir::Value)> isTrainable,
           mlir::ValueRange losses);

  bool dependsOnTrainable(mlir::Value value) const {
    return trained.contains(value);
  }
  bool reachesLoss(mlir::Value value) const { return used.contains(value); }

  /// The value has a gradient that some trainable parameter needs.
  bool isActive(mlir::Value value) const {
    return dependsOnTrainable(value) && reachesLoss(value);
  }

private:
  llvm::DenseSet<mlir::Value> trained, used;
};

/// Whether `value` is the result of an nn.param_ref of a trainable parameter.
bool isTrainableParam(mlir::Value value, mlir::SymbolTable &symbols);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_ACTIVITY_H
