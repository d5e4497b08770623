//===- Tensor.h - Values of the reference interpreter -----------*- C++ -*-===//
#ifndef MGQ_DIALECTS_NN_INTERPRETER_TENSOR_H
#define MGQ_DIALECTS_NN_INTERPRETER_TENSOR_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"

#include <vector>

namespace mgq::nn {

using Index = llvm::ArrayRef<int64_t>;

/// An element: `real` of floating-point tensors, `whole` of integer and boolean
/// ones. The other field is 0.
struct Number {
  double real = 0.0;
  int64_t whole = 0;
};

/// Calls `body` with every index of a shape, in row-major order.
void forEachIndex(Index shape, llvm::function_ref<void(Index)> body);

/// Row-major offset of an index.
int64_t offsetOf(Index shape, Index index);

/// A tensor in row-major order. Reals are f64 and are rounded to the element
/// type by `round`.
class Tensor {
public:
  Tensor() = default;
  /// Filled with zeros.
  explicit Tensor(mlir::RankedTensorType type)
      : type(type), data(type.getNumElements()) {}
  /// The elements of a constant.
  explicit Tensor(mlir::DenseElementsAttr attr);

  mlir::DenseElementsAttr toAttr() const;

  mlir::RankedTensorType type;
  std::vector<Number> data;

  Index shape() const { return type.getShape(); }
  int64_t rank() const { return type.getRank(); }
  int64_t size() const { return data.size(); }
  bool isFloat() const {
    return mlir::isa<mlir::FloatType>(type.getElementType());
  }

  Number &at(Index index) { return data[offsetOf(shape(), index)]; }
  const Number &at(Index index) const { return data[offsetOf(shape(), index)]; }
  /// The element that broadcasting puts at an index of a larger shape.
  const Number &broadcastAt(Index index) const;

  double &real(Index index) { return at(index).real; }
  double real(Index index) const { return at(index).real; }

  /// Rounds reals and wraps integers to the element type.
  void round();
};

/// A value as an element type holds it.
Number roundTo(mlir::Type element, Number value);

/// An index with another coordinate along one axis.
llvm::SmallVector<int64_t> withAxis(Index index, int64_t axis, int64_t value);

} // namespace mgq::nn

#endif // MGQ_DIALECTS_NN_INTERPRETER_TENSOR_H
