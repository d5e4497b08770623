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

/// Where a call finds a value: an operand of an earlier call, or its result.
struct Residual {
  bool isOperand;
  unsigned index;
};

/// A layer's functions. The whole backward takes the gradients of the results
/// that get one, then the residuals; it gives the operand gradients that are
/// needed. SplitBackward.h cuts it into a backward and a weight function.
struct DifferentiatedLayer {
  LayerUse use;
  /// The layer itself where backward needs no extra result of it.
  mlir::func::FuncOp forward;
  /// Null where all of it became the weight function.
  mlir::func::FuncOp backward;
  /// Null where backward is whole.
  mlir::func::FuncOp weight;
  /// The name that the weight function would have.
  std::string weightName;
  /// What the whole backward takes from the forward call.
  llvm::SmallVector<Residual> residuals;
  /// Operands of the whole backward call that the backward call takes.
  llvm::SmallVector<unsigned> backwardInputs;
  /// What the weight call takes: operands of the whole backward call, results
  /// of the backward call.
  llvm::SmallVector<Residual> weightInputs;
  /// Operands of the forward call whose gradients are backward's first results,
  /// and weight's results.
  llvm::SmallVector<unsigned> backwardGradients, weightGradients;
};

/// Builds forward and the whole backward, named @layer.forward and
/// @layer.backward plus `suffix`, and puts them after the op `after`.
mlir::FailureOr<DifferentiatedLayer>
differentiateLayer(mlir::func::FuncOp layer, const LayerUse &use,
                   Recompute recompute, llvm::StringRef suffix,
                   mlir::Operation *after);

/// A graph whose later part takes values from its earlier part.
struct ResidualProblem {
  mlir::Block &graph;
  /// What the earlier part gives anyway, and what the later one gives.
  mlir::ValueRange results, gradients;
  /// What must be computed in the later part; closed under uses.
  const llvm::DenseSet<mlir::Value> &isBackward;
  /// Arguments that are parameters, and those that no neighbour keeps too.
  llvm::BitVector params, unshared;
  Recompute recompute;
};

/// The cheapest set of values from which the later part computes the rest. In
/// order of appearance.
llvm::SmallVector<mlir::Value> chooseResiduals(const ResidualProblem &problem);

/// Where the call of the earlier part has each residual; values that it does
/// not have yet are added to `outputs`, its results.
llvm::SmallVector<Residual>
placeResiduals(llvm::ArrayRef<mlir::Value> residuals,
               llvm::SmallVector<mlir::Value> &outputs);

/// Whether an op is cheap enough to run again with --recompute=cheap.
bool isCheap(mlir::Operation *op);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_DIFFERENTIATELAYER_H
