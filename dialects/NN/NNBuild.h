//===- NNBuild.h - Short calls that build nn ops ----------------*- C++ -*-===//
#ifndef MGQ_DIALECTS_NN_NNBUILD_H
#define MGQ_DIALECTS_NN_NNBUILD_H

#include "dialects/NN/NN.h"

#include "mlir/IR/Builders.h"

namespace mgq::nn {

/// The type of a value of an nn op.
inline mlir::RankedTensorType tensorType(mlir::Value value) {
  return mlir::cast<mlir::RankedTensorType>(value.getType());
}

/// Whether a value holds floating-point elements.
inline bool isFloat(mlir::Value value) {
  return mlir::isa<mlir::FloatType>(tensorType(value).getElementType());
}

/// Builds nn ops at one location. Operands of elementwise calls broadcast as
/// in NumPy; a `double` operand is a scalar of the other operand's type.
class Build {
public:
  Build(mlir::OpBuilder &builder, mlir::Location loc)
      : builder(builder), loc(loc) {}

  /// A constant of rank 0.
  mlir::Value scalar(mlir::Type element, double value);
  /// A tensor filled with one value, without bytes in the IR.
  mlir::Value filled(mlir::RankedTensorType type, double value);
  mlir::Value zeros(mlir::RankedTensorType type) { return filled(type, 0.0); }

  mlir::Value unary(UnaryKind kind, mlir::Value x);
  mlir::Value binary(BinaryKind kind, mlir::Value a, mlir::Value b);
  mlir::Value binary(BinaryKind kind, mlir::Value a, double b);
  mlir::Value add(mlir::Value a, mlir::Value b) {
    return binary(BinaryKind::Add, a, b);
  }
  mlir::Value sub(mlir::Value a, mlir::Value b) {
    return binary(BinaryKind::Sub, a, b);
  }
  mlir::Value mul(mlir::Value a, mlir::Value b) {
    return binary(BinaryKind::Mul, a, b);
  }
  mlir::Value div(mlir::Value a, mlir::Value b) {
    return binary(BinaryKind::Div, a, b);
  }
  mlir::Value add(mlir::Value a, double b) {
    return binary(BinaryKind::Add, a, b);
  }
  mlir::Value mul(mlir::Value a, double b) {
    return binary(BinaryKind::Mul, a, b);
  }
  mlir::Value neg(mlir::Value x) { return unary(UnaryKind::Neg, x); }
  /// c - x.
  mlir::Value from(double c, mlir::Value x);

  mlir::Value compare(ComparePredicate predicate, mlir::Value a, mlir::Value b);
  mlir::Value compare(ComparePredicate predicate, mlir::Value a, double b);
  mlir::Value select(mlir::Value condition, mlir::Value onTrue,
                     mlir::Value onFalse);
  /// `x` where the condition holds, else zero.
  mlir::Value keepWhere(mlir::Value condition, mlir::Value x);
  /// `x` where the condition does not hold, else zero.
  mlir::Value dropWhere(mlir::Value condition, mlir::Value x);
  mlir::Value cast(mlir::Value x, mlir::Type element);

  mlir::Value matmul(mlir::Value a, mlir::Value b, bool transposeA,
                     bool transposeB);
  mlir::Value reshape(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value broadcast(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value transpose(mlir::Value x, llvm::ArrayRef<int64_t> permutation);
  mlir::Value reduce(ReduceKind kind, mlir::Value x,
                     llvm::ArrayRef<int64_t> axes, bool keepDims);
  /// Adds up what broadcasting a tensor of `type` to x's shape had spread.
  mlir::Value sumTo(mlir::Value x, mlir::RankedTensorType type);

  mlir::OpBuilder &builder;
  mlir::Location loc;
};

} // namespace mgq::nn

#endif // MGQ_DIALECTS_NN_NNBUILD_H
