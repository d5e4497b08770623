//===- DifferentiateLayer.h - Forward and backward of a layer ---*- C++ -*-===//
#ifndef MGQ_PASSES_NN_DIFFERENTIATELAYER_H
#define MGQ_PASSES_NN_DIFFERENTIATELAYER_H

#include "passes/NN/LayerActivity.h"
#include "passes/NN/Passes.h"

namespace mgq::nn {

/// How a layer function is called, as far as its gradient depends on it.
struct LayerUse {
  CallActivity activity;
  /// Operands that are parameters: they stay in memory anyway.
  llvm::BitVector params;

  bool operator==(const LayerUse &other) const {
    return activity.operands == other.activity.operands &&
           activity.results == other.activity.results && params == other.params;
  }
};

/// A value that backward takes from the forward call.
struct Residual {
  /// An operand of the forward call, else a result of it.
  bool isOperand;
  unsigned index;
};

/// A layer's two functions. Backward takes the gradients of the results that
/// get one, then the residuals; it gives the operand gradients that are needed.
struct DifferentiatedLayer {
  /// The layer itself where backward needs no extra result of it.
  mlir::func::FuncOp forward;
  mlir::func::FuncOp backward;
  llvm::SmallVector<Residual> residuals;
};

/// Builds the functions, named @layer.forward and @layer.backward plus
/// `suffix`, and puts them after the op `after`.
mlir::FailureOr<DifferentiatedLayer>
differentiateLayer(mlir::func::FuncOp layer, const LayerUse &use,
                   Recompute recompute, llvm::StringRef suffix,
                   mlir::Operation *after);

/// Values of a layer's joint graph that backward takes from forward: the
/// cheapest set from which the rest is recomputed. `results` are forward's, all
/// values of `isBackward` depend on a result's gradient, and backward gives
/// `gradients`. In order of appearance.
llvm::SmallVector<mlir::Value>
chooseResiduals(mlir::Block &joint, mlir::ValueRange results,
                mlir::ValueRange gradients,
                const llvm::DenseSet<mlir::Value> &isBackward,
                const llvm::BitVector &params, Recompute recompute);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_DIFFERENTIATELAYER_H
