//===- LayerActivity.h - Activity of calls of layer functions ---*- C++ -*-===//
#ifndef MGQ_PASSES_NN_LAYERACTIVITY_H
#define MGQ_PASSES_NN_LAYERACTIVITY_H

#include "dialects/NN/NN.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

namespace mgq::nn {

/// Whether differentiation follows an operand: it carries a gradient, or its op
/// cannot be differentiated yet. Dropping the gradient of such an op would
/// train the model wrong without a word.
bool followsGradient(mlir::OpOperand &operand);

/// Adds to `active` what depends on its values through operands that are
/// followed.
void spreadActivity(mlir::Block &block, llvm::DenseSet<mlir::Value> &active);

/// Which operands of a call need gradients, and which results get one.
struct CallActivity {
  llvm::BitVector operands, results;
};

/// The activity of each call of a model, in program order. Operands that need
/// gradients depend on a trainable parameter; results that get one depend on
/// such an operand and reach `loss`.
llvm::MapVector<mlir::Operation *, CallActivity>
computeActivity(mlir::func::FuncOp model, mlir::Value loss,
                mlir::SymbolTableCollection &symbols);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_LAYERACTIVITY_H
