//===- Node.h - One ONNX node while it is imported ------------------------===//
//
// An operator's import function (Registry.h) reads inputs and attributes from a
// Node and builds nn ops with it. Values that are null stand for "failed, and
// reported": every builder passes them on, so a function need not check after
// each step. Ops are folded as they are built; shape arithmetic never stays.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_FRONTENDS_ONNX_NODE_H
#define MGQ_FRONTENDS_ONNX_NODE_H

#include "dialects/NN/NN.h"

#include "mlir/IR/Builders.h"
#include "onnx-ml.pb.h"
#include "llvm/ADT/Twine.h"
#include <functional>

namespace mgq::onnx {

using Shape = llvm::SmallVector<int64_t>;
using MaybeInts = std::optional<llvm::SmallVector<int64_t>>;

/// Null-safe views of a value's type.
inline mlir::RankedTensorType typeOf(mlir::Value value) {
  return value ? llvm::cast<mlir::RankedTensorType>(value.getType())
               : mlir::RankedTensorType();
}
inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return value ? typeOf(value).getShape() : llvm::ArrayRef<int64_t>();
}
inline int64_t rankOf(mlir::Value value) { return shapeOf(value).size(); }
inline mlir::Type elementOf(mlir::Value value) {
  return value ? typeOf(value).getElementType() : mlir::Type();
}
inline bool isFloat(mlir::Value value) {
  return value && llvm::isa<mlir::FloatType>(elementOf(value));
}

/// Whether a tensor of this shape may exist: at most 2^48 elements, where
/// dimensions of 0 count as 1, so that no product of sizes overflows.
bool isSaneShape(llvm::ArrayRef<int64_t> shape);

/// The nn type of an ONNX element type; null where there is none.
mlir::Type elementTypeOf(int onnxType, mlir::MLIRContext *context);

class Node {
public:
  Node(mlir::OpBuilder &builder, mlir::Location loc,
       const ::onnx::NodeProto &proto, int64_t opset)
      : builder(builder), loc(loc), proto(proto), opset(opset) {}

  mlir::OpBuilder &builder;
  mlir::Location loc;
  const ::onnx::NodeProto &proto;
  /// Version of the operator set that the node belongs to.
  int64_t opset;
  /// One value per input; null where the input is left out.
  llvm::SmallVector<mlir::Value> inputs;
  /// Makes a key of random numbers, an input of the graph of its own; null
  /// where nothing is to be random (mgq-run).
  std::function<mlir::Value()> makeRandomKey;
  /// Samples of a micro-batch.
  int64_t samples = 1;
  /// One value per output, filled by the import function.
  llvm::SmallVector<mlir::Value> results;

  //===--- Errors ---------------------------------------------------------===//

  /// Reports a fault of this node, once, and gives a null value.
  mlir::Value fail(const llvm::Twine &message);
  bool hasFailed() const { return failed; }

  //===--- Inputs and attributes ------------------------------------------===//

  mlir::Value input(unsigned index) const {
    return index < inputs.size() ? inputs[index] : mlir::Value();
  }
  bool wantsOutput(int index) const {
    return index < proto.output_size() && !proto.output(index).empty();
  }
  void set(unsigned index, mlir::Value value) {
    if (index >= results.size())
      results.resize(index + 1);
    results[index] = value;
  }

  const ::onnx::AttributeProto *attribute(llvm::StringRef name) const;
  int64_t getInt(llvm::StringRef name, int64_t otherwise) const;
  double getFloat(llvm::StringRef name, double otherwise) const;
  std::string getString(llvm::StringRef name, llvm::StringRef otherwise) const;
  MaybeInts getInts(llvm::StringRef name) const;

  /// The elements of a constant integer tensor, else nothing.
  MaybeInts constantInts(mlir::Value value) const;
  /// Elements of input `index`, or failure with a report: the compiler needs
  /// them. `what` says what they are: "shape".
  MaybeInts needInts(unsigned index, llvm::StringRef what);
  /// An attribute in old versions of an op, an input in new ones. Nothing when
  /// left out; check hasFailed.
  MaybeInts intsOf(llvm::StringRef name, unsigned index);
  /// The one float of a constant tensor, else nothing.
  std::optional<double> constantFloat(mlir::Value value) const;

  /// Counts a negative axis from the end; reports one out of range.
  std::optional<int64_t> axis(int64_t axis, int64_t rank);
  /// Whether the importer may compute a table of so many elements; reports if
  /// not.
  bool fitsTable(int64_t rows, int64_t columns = 1);
  /// Sorted, positive axes; all of them for none.
  MaybeInts axes(MaybeInts axes, int64_t rank);

  //===--- Building -------------------------------------------------------===//

  /// Creates an op with one inferred result from operands and attributes.
  template <typename OpTy, typename... Args>
  mlir::Value make(Args &&...args) {
    if (failed || !given(args...))
      return {};
    auto op =
        OpTy::create(builder, loc, placeholder(), std::forward<Args>(args)...);
    llvm::SmallVector<mlir::Type> types;
    if (mlir::failed(
            OpTy::inferReturnTypes(builder.getContext(), loc, op->getOperands(),
                                   op->getDiscardableAttrDictionary(),
                                   op->getPropertiesStorage(), {}, types)))
      return drop(op);
    op->getResult(0).setType(types.front());
    return finish(op);
  }
  /// Creates an op with a given result type.
  template <typename OpTy, typename... Args>
  mlir::Value makeTyped(mlir::Type type, Args &&...args) {
    if (failed || !given(args...) || !type)
      return {};
    return finish(
        OpTy::create(builder, loc, type, std::forward<Args>(args)...));
  }

  mlir::Value constant(mlir::DenseElementsAttr value);
  /// A scalar constant, of rank 0.
  mlir::Value scalar(double value, mlir::Type element);
  /// A scalar constant of the element type of `like`.
  mlir::Value scalarLike(double value, mlir::Value like) {
    return like ? scalar(value, elementOf(like)) : mlir::Value();
  }
  mlir::Value splat(double value, llvm::ArrayRef<int64_t> shape,
                    mlir::Type element);
  mlir::Value ints(llvm::ArrayRef<int64_t> values);

  mlir::Value unary(nn::UnaryKind kind, mlir::Value x);
  mlir::Value binary(nn::BinaryKind kind, mlir::Value a, mlir::Value b);
  mlir::Value compare(nn::ComparePredicate predicate, mlir::Value a,
                      mlir::Value b);
  mlir::Value select(mlir::Value condition, mlir::Value a, mlir::Value b);
  mlir::Value add(mlir::Value a, mlir::Value b) {
    return binary(nn::BinaryKind::Add, a, b);
  }
  mlir::Value sub(mlir::Value a, mlir::Value b) {
    return binary(nn::BinaryKind::Sub, a, b);
  }
  mlir::Value mul(mlir::Value a, mlir::Value b) {
    return binary(nn::BinaryKind::Mul, a, b);
  }
  mlir::Value div(mlir::Value a, mlir::Value b) {
    return binary(nn::BinaryKind::Div, a, b);
  }
  mlir::Value cast(mlir::Value x, mlir::Type element);
  mlir::Value reshape(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value broadcast(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value transpose(mlir::Value x, llvm::ArrayRef<int64_t> permutation);
  mlir::Value matmul(mlir::Value a, mlir::Value b, bool transposeA = false,
                     bool transposeB = false);
  /// Elements start to limit along one axis.
  mlir::Value slice(mlir::Value x, int64_t axis, int64_t start, int64_t limit);
  mlir::Value concat(llvm::ArrayRef<mlir::Value> values, int64_t axis);
  mlir::Value reduce(nn::ReduceKind kind, mlir::Value x,
                     llvm::ArrayRef<int64_t> axes, bool keepDims);
  mlir::Value mean(mlir::Value x, llvm::ArrayRef<int64_t> axes, bool keepDims);
  mlir::Value gather(mlir::Value x, mlir::Value indices, int64_t axis);

private:
  bool failed = false;

  // A null operand means an earlier failure; an operand that may be left out is
  // passed as Maybe.
  template <typename T>
  bool givenOne(const T &arg) const {
    if constexpr (std::is_same_v<T, mlir::Value>)
      return static_cast<bool>(arg);
    else
      return true;
  }
  template <typename... Args>
  bool given(const Args &...args) const {
    return (givenOne(args) && ...);
  }
  mlir::Type placeholder();
  mlir::Value drop(mlir::Operation *op);
  mlir::Value finish(mlir::Operation *op);

public:
  /// An optional operand for make: may be null.
  struct Maybe {
    mlir::Value value;
    operator mlir::Value() const { return value; }
  };
};

/// Builds nn ops for one node; gives its first result, null on failure.
using ImportFunction = mlir::Value (*)(Node &);

} // namespace mgq::onnx

#endif // MGQ_FRONTENDS_ONNX_NODE_H
