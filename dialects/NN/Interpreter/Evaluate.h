//===- Evaluate.h - One function per op of the interpreter ------*- C++ -*-===//
#ifndef MGQ_DIALECTS_NN_INTERPRETER_EVALUATE_H
#define MGQ_DIALECTS_NN_INTERPRETER_EVALUATE_H

#include "dialects/NN/Interpreter/Interpreter.h"

namespace mgq::nn {

/// Values of one run of a function.
class Frame {
public:
  const Tensor &operator[](mlir::Value value) const {
    auto found = values.find(value);
    assert(found != values.end());
    return *found->second;
  }
  /// The value of an optional operand, or null.
  const Tensor *find(mlir::Value value) const {
    return value ? &(*this)[value] : nullptr;
  }
  void set(mlir::Value value, Tensor tensor) {
    tensor.round();
    values[value] = std::make_shared<Tensor>(std::move(tensor));
  }

private:
  llvm::DenseMap<mlir::Value, std::shared_ptr<Tensor>> values;
};

/// A tensor of zeros of a value's type.
inline Tensor likeValue(mlir::Value value) {
  return Tensor(mlir::cast<mlir::RankedTensorType>(value.getType()));
}

// Elementwise
Tensor evaluate(UnaryOp op, const Frame &frame);
Tensor evaluate(BinaryOp op, const Frame &frame);
Tensor evaluate(CompareOp op, const Frame &frame);
Tensor evaluate(SelectOp op, const Frame &frame);
Tensor evaluate(CastOp op, const Frame &frame);
Tensor evaluate(DropoutOp op, const Frame &frame);
// Products and windows
Tensor evaluate(MatmulOp op, const Frame &frame);
Tensor evaluate(ConvOp op, const Frame &frame);
Tensor evaluate(ConvGradInputOp op, const Frame &frame);
Tensor evaluate(ConvGradWeightOp op, const Frame &frame);
Tensor evaluate(PoolOp op, const Frame &frame);
Tensor evaluate(PoolGradOp op, const Frame &frame);
// Movement
Tensor evaluate(ReshapeOp op, const Frame &frame);
Tensor evaluate(TransposeOp op, const Frame &frame);
Tensor evaluate(BroadcastOp op, const Frame &frame);
Tensor evaluate(SliceOp op, const Frame &frame);
Tensor evaluate(PadOp op, const Frame &frame);
Tensor evaluate(ConcatOp op, const Frame &frame);
Tensor evaluate(GatherOp op, const Frame &frame);
Tensor evaluate(GatherGradOp op, const Frame &frame);
Tensor evaluate(GatherElementsOp op, const Frame &frame);
Tensor evaluate(ScatterElementsOp op, const Frame &frame);
Tensor evaluate(GatherNDOp op, const Frame &frame);
Tensor evaluate(ScatterNDOp op, const Frame &frame);
Tensor evaluate(MaskedScatterOp op, const Frame &frame);
Tensor evaluate(MaskedGatherOp op, const Frame &frame);
Tensor evaluate(ShapeOp op, const Frame &frame);
// Reductions and norms
Tensor evaluate(ReduceOp op, const Frame &frame);
Tensor evaluate(ArgReduceOp op, const Frame &frame);
Tensor evaluate(CumsumOp op, const Frame &frame);
Tensor evaluate(SoftmaxOp op, const Frame &frame);
Tensor evaluate(LogSoftmaxOp op, const Frame &frame);
Tensor evaluate(LayerNormOp op, const Frame &frame);
Tensor evaluate(LayerNormGradOp op, const Frame &frame);
Tensor evaluate(RMSNormOp op, const Frame &frame);
Tensor evaluate(RMSNormGradOp op, const Frame &frame);
// Transformers and loss
Tensor evaluate(AttentionOp op, const Frame &frame);
/// Gradients of q, k and v.
llvm::SmallVector<Tensor> evaluateAll(AttentionGradOp op, const Frame &frame);
Tensor evaluate(RopeOp op, const Frame &frame);
Tensor evaluate(CrossEntropyOp op, const Frame &frame);
Tensor evaluate(CrossEntropyGradOp op, const Frame &frame);
Tensor evaluate(LabelWeightsOp op, const Frame &frame);
// Optimizer
/// New parameter, momentum and variance.
llvm::SmallVector<Tensor> evaluateAll(AdamWOp op, const Frame &frame);
Tensor evaluate(SqNormOp op, const Frame &frame);

/// Combines two elements of a reduction or a scatter.
Number combine(ReduceKind kind, bool isFloat, Number a, Number b);

} // namespace mgq::nn

#endif // MGQ_DIALECTS_NN_INTERPRETER_EVALUATE_H
