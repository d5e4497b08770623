//===- Lowering.h - Tools to lower nn ops to linalg and loops -------------===//
//
// ScalarBuilder makes scalar arithmetic for any element type, LoopBuilder adds
// loops on buffers, Lowering holds the values lowered so far and makes
// linalg.generic and kern.loops ops. The Lower*.cpp files use them, one
// overload of `lower` per nn op.
//
// f16 and bf16 values are f32 from load to store. Unsigned integers are
// signless here; ScalarBuilder ops that care take a flag.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_LOWERING_H
#define MGQ_PASSES_KERNELS_LOWERING_H

#include "dialects/Kern/Kern.h"
#include "dialects/NN/NN.h"
#include "passes/Kernels/Pipeline.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/AffineExpr.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringMap.h"

namespace mgq::kernels {

using mlir::ArrayRef;
using mlir::Location;
using mlir::LogicalResult;
using mlir::RankedTensorType;
using mlir::SmallVector;
using mlir::Type;
using mlir::Value;
using mlir::ValueRange;

/// Of a tensor or memref.
inline Type elementOf(Value value) {
  return mlir::cast<mlir::ShapedType>(value.getType()).getElementType();
}
/// The type values of a stored type are computed in: f32 for f16 and bf16.
Type computeType(Type stored);

/// `type` without sign: ui8 becomes i8; tensors by element.
Type signless(Type type);

/// Scalar code at the builder's position.
class ScalarBuilder {
public:
  ScalarBuilder(mlir::OpBuilder &builder, Location loc)
      : builder(builder), loc(loc) {}

  mlir::OpBuilder &builder;
  Location loc;

  /// A constant of any float, integer or index type.
  Value constant(Type type, double value);
  Value index(int64_t value);

  Value add(Value a, Value b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value fma(Value a, Value b, Value c);
  /// Integers: toward zero; a zero divisor gives zero instead of a trap.
  Value div(Value a, Value b, bool isUnsigned = false);
  Value rem(Value a, Value b, bool isUnsigned = false);
  /// NaN wins.
  Value max(Value a, Value b, bool isUnsigned = false);
  Value min(Value a, Value b, bool isUnsigned = false);
  Value neg(Value a);
  Value compare(nn::ComparePredicate predicate, Value a, Value b,
                bool isUnsigned = false);
  Value select(Value condition, Value a, Value b);
  Value land(Value a, Value b);
  Value lor(Value a, Value b);
  Value lnot(Value a);
  Value exp(Value a);
  Value log(Value a);
  Value tanh(Value a);
  Value sqrt(Value a);
  Value isNan(Value a);

  /// a + b as one step of a sum whose order is free: may become lanes of a
  /// vector, the same for every run of the same code.
  Value addAnyOrder(Value a, Value b);

  /// Conversion between element types, as nn.cast.
  Value cast(Value value, Type to, bool fromUnsigned, bool toUnsigned);
  /// f16, bf16 to f32, others as they are.
  Value widen(Value value);
  /// To a stored type from its compute type.
  Value narrow(Value value, Type stored);
  /// An integer as index (signed), and back.
  Value toIndex(Value value);
  Value fromIndex(Value value, Type type);
};

/// Loops on buffers (memrefs).
class LoopBuilder : public ScalarBuilder {
public:
  using ScalarBuilder::ScalarBuilder;
  using Body = llvm::function_ref<void(ValueRange)>;
  using Step =
      llvm::function_ref<SmallVector<Value>(Value iv, ValueRange carried)>;

  /// Runs `body` for each index tuple below `sizes`, in any order.
  void parallel(ArrayRef<int64_t> sizes, Body body);
  void loop(int64_t size, llvm::function_ref<void(Value)> body);
  /// Loop nest in row-major order.
  void loops(ArrayRef<int64_t> sizes, Body body);
  /// Loop with carried values; returns their last values.
  SmallVector<Value> carry(int64_t size, ValueRange init, Step step);
  /// Carries one value.
  Value fold(int64_t size, Value init,
             llvm::function_ref<Value(Value iv, Value carried)> step);
  void when(Value condition, llvm::function_ref<void()> body);
  /// One value of two, computed in branches.
  Value branch(Value condition, llvm::function_ref<Value()> yes,
               llvm::function_ref<Value()> no);

  Value load(Value buffer, ValueRange indices);              ///< widened
  void store(Value value, Value buffer, ValueRange indices); ///< narrowed
  /// Copies one element as it is.
  void move(Value from, ValueRange fromIndices, Value to, ValueRange toIndices);
  Value loadIndex(Value buffer, ValueRange indices); ///< integer, as index
  /// Indices of an operand of shape `shape` that broadcasts to the dimensions
  /// `indices` run over.
  SmallVector<Value> broadcastIndices(ArrayRef<int64_t> shape,
                                      ValueRange indices);
  /// Reports `index` unless it lies in [0, size); returns it clamped. Negative
  /// ones count from the end when `wrap` is set.
  Value checkedIndex(Value index, int64_t size, bool wrap, Value what);
};

/// State of the lowering of one function.
class Lowering {
public:
  Lowering(mlir::ModuleOp module, AttentionForm attention)
      : module(module), attention(attention), builder(module.getContext()) {}

  mlir::ModuleOp module;
  const AttentionForm attention;
  mlir::OpBuilder builder;
  /// Of the op being lowered.
  Location loc = builder.getUnknownLoc();

  /// What stands for an operand of an nn op; null for null.
  Value get(Value value) const {
    return value ? values.lookup(value) : Value();
  }
  /// What a product may read for an f32 operand: where that is a narrower float
  /// widened, the narrow one, so that no wide copy is made.
  Value getStored(Value value) const;
  void set(Value value, Value lowered) { values[value] = lowered; }
  llvm::DenseMap<Value, Value> values;
  RankedTensorType type(ArrayRef<int64_t> shape, Type element) {
    return RankedTensorType::get(shape, signless(element));
  }
  Value empty(RankedTensorType type);
  Value empty(ArrayRef<int64_t> shape, Type element) {
    return empty(type(shape, element));
  }
  Value filled(ArrayRef<int64_t> shape, Type element, double value);
  /// Row-major reshape by collapse and expand; of no elements, a new tensor.
  Value reshape(Value value, ArrayRef<int64_t> shape);
  Value transpose(Value value, ArrayRef<int64_t> permutation);
  Value broadcast(Value value, ArrayRef<int64_t> shape);
  /// Elements converted to another float type.
  Value convert(Value value, Type element);

  using ScalarBody = llvm::function_ref<Value(ScalarBuilder &, ValueRange)>;
  /// A value per element of `shape` from inputs that broadcast to it; the body
  /// sees widened scalars; `element` is the stored type of the result.
  Value elementwise(ArrayRef<int64_t> shape, Type element, ValueRange inputs,
                    ScalarBody body);
  /// The same with one indexing map per input (in the result's dimensions).
  Value mapped(ArrayRef<int64_t> shape, Type element, ValueRange inputs,
               ArrayRef<mlir::AffineMap> maps, ScalarBody body);
  /// Combines elements of `axes` into an array with these dimensions gone; the
  /// result has the compute type. No elements give `init`.
  Value reduce(Value input, ArrayRef<int64_t> axes, Value init,
               llvm::function_ref<Value(ScalarBuilder &, Value, Value)> body);

  using BufferBody =
      llvm::function_ref<void(LoopBuilder &, ValueRange ins, ValueRange outs)>;
  /// kern.loops with fresh destinations.
  SmallVector<Value> loops(ValueRange inputs,
                           ArrayRef<RankedTensorType> results, BufferBody body);
  /// kern.loops whose destinations start as `inits`.
  SmallVector<Value> loopsInto(ValueRange inputs, ValueRange inits,
                               BufferBody body);
  Value product(Value a, Value b, bool transposeA, bool transposeB);
  /// Name of the private string with the current op's ONNX node name.
  std::string nodeName();
  /// Loads that string's address, inside a kern.loops body.
  Value nodeNameAddress(ScalarBuilder &scalars, mlir::StringRef symbol);

private:
  llvm::StringMap<std::string> strings;
  int nextString = 0;
};

/// x Phi(x) by its tanh approximation.
Value geluTanh(ScalarBuilder &s, Value x);

/// What AdamW keeps of an element.
struct AdamWState {
  Value parameter, momentum, variance;
};
/// The update of an element by nn.adamw, which has the formula; `scalars` are
/// in its order, then epsilon.
AdamWState updateAdamW(ScalarBuilder &s, ValueRange scalars,
                       const AdamWState &now, Value gradient);

/// outer x axis x inner view of a shape around `axis`.
struct AxisView {
  int64_t outer = 1, size, inner = 1;
  AxisView(ArrayRef<int64_t> shape, int64_t axis) : size(shape[axis]) {
    for (int64_t dim : shape.take_front(axis))
      outer *= dim;
    for (int64_t dim : shape.drop_front(axis + 1))
      inner *= dim;
  }
  SmallVector<int64_t> shape() const { return {outer, size, inner}; }
};

inline RankedTensorType tensorType(Value value) {
  return mlir::cast<RankedTensorType>(value.getType());
}
inline ArrayRef<int64_t> shapeOf(Value value) {
  return tensorType(value).getShape();
}
/// Whether a tensor has no elements. linalg infers loop bounds from shapes and
/// cannot from those, and descriptors of such memrefs do not always lower; so
/// no op that computes reads or makes one.
inline bool isEmpty(Type type) {
  return mlir::cast<RankedTensorType>(type).getNumElements() == 0;
}
/// Whether a tensor or scalar type is unsigned before `signless`.
inline bool isUnsigned(Type type) {
  return mlir::getElementTypeOrSelf(type).isUnsignedInteger();
}

// Elementwise (LowerElementwise.cpp)
LogicalResult lower(Lowering &, nn::UnaryOp);
LogicalResult lower(Lowering &, nn::BinaryOp);
LogicalResult lower(Lowering &, nn::CompareOp);
LogicalResult lower(Lowering &, nn::SelectOp);
LogicalResult lower(Lowering &, nn::CastOp);
// Dropout (LowerDropout.cpp)
LogicalResult lower(Lowering &, nn::DropoutOp);
// Shape (LowerShape.cpp)
LogicalResult lower(Lowering &, nn::ConstantOp);
LogicalResult lower(Lowering &, nn::ReshapeOp);
LogicalResult lower(Lowering &, nn::TransposeOp);
LogicalResult lower(Lowering &, nn::BroadcastOp);
LogicalResult lower(Lowering &, nn::SliceOp);
LogicalResult lower(Lowering &, nn::PadOp);
LogicalResult lower(Lowering &, nn::ConcatOp);
// Indexing (LowerIndexing.cpp)
LogicalResult lower(Lowering &, nn::GatherOp);
LogicalResult lower(Lowering &, nn::GatherGradOp);
LogicalResult lower(Lowering &, nn::GatherElementsOp);
LogicalResult lower(Lowering &, nn::ScatterElementsOp);
LogicalResult lower(Lowering &, nn::GatherNDOp);
LogicalResult lower(Lowering &, nn::ScatterNDOp);
LogicalResult lower(Lowering &, nn::MaskedScatterOp);
LogicalResult lower(Lowering &, nn::MaskedGatherOp);
// Reductions (LowerReduce.cpp)
LogicalResult lower(Lowering &, nn::ReduceOp);
LogicalResult lower(Lowering &, nn::ArgReduceOp);
LogicalResult lower(Lowering &, nn::CumsumOp);
LogicalResult lower(Lowering &, nn::PoolOp);
LogicalResult lower(Lowering &, nn::PoolGradOp);
// Rows (LowerRows.cpp)
LogicalResult lower(Lowering &, nn::SoftmaxOp);
LogicalResult lower(Lowering &, nn::LogSoftmaxOp);
LogicalResult lower(Lowering &, nn::LayerNormOp);
LogicalResult lower(Lowering &, nn::LayerNormGradOp);
LogicalResult lower(Lowering &, nn::RMSNormOp);
LogicalResult lower(Lowering &, nn::RMSNormGradOp);
LogicalResult lower(Lowering &, nn::RopeOp);
LogicalResult lower(Lowering &, nn::CrossEntropyOp);
LogicalResult lower(Lowering &, nn::CrossEntropyGradOp);
LogicalResult lower(Lowering &, nn::LabelWeightsOp);
// Products (LowerLinear.cpp)
LogicalResult lower(Lowering &, nn::MatmulOp);
LogicalResult lower(Lowering &, nn::ConvOp);
LogicalResult lower(Lowering &, nn::ConvGradInputOp);
LogicalResult lower(Lowering &, nn::ConvGradWeightOp);
// Attention (LowerAttention.cpp)
LogicalResult lower(Lowering &, nn::AttentionOp);
LogicalResult lower(Lowering &, nn::AttentionGradOp);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_LOWERING_H
