//===- LayerPrecision.h - Precision inside a layer function -----*- C++ -*-===//
#ifndef MGQ_PASSES_NN_LAYERPRECISION_H
#define MGQ_PASSES_NN_LAYERPRECISION_H

#include "passes/NN/Precision.h"

#include "llvm/ADT/DenseSet.h"

namespace mgq::nn {

/// What a layer function's products take, and what follows for its operands.
class LayerPrecision {
public:
  LayerPrecision(mlir::func::FuncOp layer, const CallPrecision &precision);

  /// Whether an operand may be bf16 in memory. Products of f32 hold it back
  /// unless their forward run reads it as bf16 too (`isStream`), and so does
  /// what needs its statistics in f32: the loss and softmax; norms, but for the
  /// stream.
  bool mayBeNarrow(unsigned operand, bool isStream) const;
  /// Whether only products of bf16 read an operand.
  bool readsNarrow(unsigned operand) const;
  /// Whether an operand is a frozen weight of which that holds; or, with
  /// `tables`, a table in a layer of bf16 whose rows are looked up.
  bool isNarrowWeight(unsigned operand, bool tables) const;
  Precision rest() const { return precision.rest; }
  /// Whether any product takes bf16.
  bool takesNarrow() const { return !narrowProducts.empty(); }

  /// Puts casts around products of bf16, and makes these operands and results
  /// of the function bf16. Each value is rounded once.
  void insertCasts(const llvm::BitVector &operands,
                   const llvm::BitVector &results);

  /// Makes these operands of a function bf16, widened by a cast behind them.
  static void narrowOperands(mlir::func::FuncOp layer,
                             const llvm::BitVector &operands);

private:
  mlir::Value narrow(mlir::Value value);

  mlir::func::FuncOp layer;
  CallPrecision precision;
  /// Products that take bf16.
  llvm::SetVector<mlir::Operation *> narrowProducts;
  /// Rounded values by what they are rounded from.
  llvm::DenseMap<mlir::Value, mlir::Value> rounded;
};

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_LAYERPRECISION_H
