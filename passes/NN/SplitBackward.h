//===- SplitBackward.h - Weight gradients apart -----------------*- C++ -*-===//
#ifndef MGQ_PASSES_NN_SPLITBACKWARD_H
#define MGQ_PASSES_NN_SPLITBACKWARD_H

#include "passes/NN/DifferentiateLayer.h"

namespace mgq::nn {

/// Where a whole backward function is to be cut in two.
struct WeightCut {
  /// Its results that the backward part gives, and those of the weight part.
  llvm::SmallVector<unsigned> early, late;
  /// Values of it that the weight part takes.
  llvm::SmallVector<mlir::Value> kept;
  /// Work of the weight part, in FLOPs.
  int64_t flops = 0;
};

/// Finds the cut of a layer's whole backward function: `late` is empty where
/// there is nothing to part, `early` where all gradients are of parameters.
WeightCut findWeightCut(const DifferentiatedLayer &layer, Recompute recompute);

/// Replaces a layer's whole backward function by the parts of a cut.
void splitBackward(DifferentiatedLayer &layer, const WeightCut &cut);

/// Work of a layer function, in FLOPs.
int64_t countFlops(mlir::func::FuncOp layer);

/// Whether `auto` splits a model whose backward calls do `backward` FLOPs in
/// all, `weight` of them in weight parts.
bool isWorthSplitting(int64_t weight, int64_t backward);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_SPLITBACKWARD_H
