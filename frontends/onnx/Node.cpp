//===- Node.cpp - One ONNX node while it is imported ----------------------===//

#include "frontends/onnx/Node.h"

#include "dialects/NN/NNElements.h"

#include "mlir/IR/Matchers.h"
#include "mlir/IR/Verifier.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mgq::nn;
using namespace mgq::onnx;

bool mgq::onnx::isSaneShape(ArrayRef<int64_t> shape) {
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (ShapedType::isDynamic(dim))
      continue;
    if (dim < 0 || llvm::MulOverflow(count, std::max<int64_t>(dim, 1), count) ||
        count > (int64_t(1) << 48))
      return false;
  }
  return true;
}

Type mgq::onnx::elementTypeOf(int onnxType, MLIRContext *context) {
  auto integer = [&](unsigned width, bool isUnsigned = false) {
    return IntegerType::get(context, width,
                            isUnsigned ? IntegerType::Unsigned
                                       : IntegerType::Signless);
  };
  using T = ::onnx::TensorProto;
  switch (onnxType) {
  case T::FLOAT:
    return Float32Type::get(context);
  case T::DOUBLE:
    return Float64Type::get(context);
  case T::FLOAT16:
    return Float16Type::get(context);
  case T::BFLOAT16:
    return BFloat16Type::get(context);
  case T::BOOL:
    return integer(1);
  case T::INT8:
    return integer(8);
  case T::INT16:
    return integer(16);
  case T::INT32:
    return integer(32);
  case T::INT64:
    return integer(64);
  case T::UINT8:
    return integer(8, true);
  case T::UINT16:
    return integer(16, true);
  case T::UINT32:
    return integer(32, true);
  case T::UINT64:
    return integer(64, true);
  default:
    return {};
  }
}

//===----------------------------------------------------------------------===//
// Errors, inputs, attributes
//===----------------------------------------------------------------------===//

Value Node::fail(const Twine &message) {
  if (!failed)
    emitError(loc) << proto.op_type() << ": " << message;
  failed = true;
  return {};
}

const ::onnx::AttributeProto *Node::attribute(StringRef name) const {
  for (const auto &attribute : proto.attribute())
    if (name == attribute.name())
      return &attribute;
  return nullptr;
}

int64_t Node::getInt(StringRef name, int64_t otherwise) const {
  auto *found = attribute(name);
  return found ? found->i() : otherwise;
}

double Node::getFloat(StringRef name, double otherwise) const {
  auto *found = attribute(name);
  return found ? static_cast<double>(found->f()) : otherwise;
}

std::string Node::getString(StringRef name, StringRef otherwise) const {
  auto *found = attribute(name);
  return found ? found->s() : otherwise.str();
}

MaybeInts Node::getInts(StringRef name) const {
  auto *found = attribute(name);
  if (!found)
    return std::nullopt;
  return SmallVector<int64_t>(found->ints().begin(), found->ints().end());
}

/// The attribute of the constant that defines `value`, else null.
static DenseElementsAttr constantOf(Value value) {
  DenseElementsAttr attr;
  if (value)
    matchPattern(value, m_Constant(&attr));
  return attr;
}

MaybeInts Node::constantInts(Value value) const {
  DenseElementsAttr attr = constantOf(value);
  if (!attr || !isa<IntegerType>(attr.getElementType()))
    return std::nullopt;
  auto elements = readElements(attr);
  if (!elements)
    return std::nullopt;
  SmallVector<int64_t> values;
  for (int64_t i = 0; i < attr.getNumElements(); ++i)
    values.push_back(static_cast<int64_t>(elements->word(i)));
  return values;
}

std::optional<double> Node::constantFloat(Value value) const {
  DenseElementsAttr attr = constantOf(value);
  if (!attr || attr.getNumElements() == 0)
    return std::nullopt;
  auto type = dyn_cast<FloatType>(attr.getElementType());
  auto elements = readElements(attr);
  if (!type || !elements || (!elements->splat && attr.getNumElements() != 1))
    return std::nullopt;
  return floatOfWord(elements->words.front(), type);
}

MaybeInts Node::needInts(unsigned index, StringRef what) {
  MaybeInts values = constantInts(input(index));
  if (!values && !failed) {
    std::string name =
        index < unsigned(proto.input_size()) ? proto.input(index) : "";
    fail("not supported yet: " + what + " '" + name +
         "' that is not known at compile time");
  }
  return values;
}

MaybeInts Node::intsOf(StringRef name, unsigned index) {
  if (input(index))
    return needInts(index, name);
  return getInts(name);
}

std::optional<int64_t> Node::axis(int64_t axis, int64_t rank) {
  if (axis >= -rank && axis < rank)
    return axis < 0 ? axis + rank : axis;
  fail("axis " + Twine(axis) + " is outside a tensor of rank " + Twine(rank));
  return std::nullopt;
}

bool Node::fitsTable(int64_t rows, int64_t columns) {
  constexpr int64_t maxElements = int64_t(1) << 26;
  int64_t count;
  if (rows >= 0 && columns >= 0 && !llvm::MulOverflow(rows, columns, count) &&
      count <= maxElements)
    return true;
  fail("not supported yet: a table of " + Twine(rows) + " x " + Twine(columns) +
       " elements");
  return false;
}

MaybeInts Node::axes(MaybeInts given, int64_t rank) {
  SmallVector<int64_t> result;
  if (!given || given->empty())
    return llvm::to_vector(llvm::seq<int64_t>(0, rank));
  for (int64_t one : *given) {
    auto positive = axis(one, rank);
    if (!positive)
      return std::nullopt;
    result.push_back(*positive);
  }
  llvm::sort(result);
  result.erase(llvm::unique(result), result.end());
  return result;
}

//===----------------------------------------------------------------------===//
// Building
//===----------------------------------------------------------------------===//

Type Node::placeholder() {
  return RankedTensorType::get({}, builder.getF32Type());
}

Value Node::drop(Operation *op) {
  op->erase();
  failed = true; // reported by type inference
  return {};
}

/// Ops that may see the dynamic dimension of a non_zero.
static bool copesWithDynamic(Operation *op) {
  return isa<NonZeroOp, TransposeOp, ShapeOp, GatherOp, ReshapeOp,
             DynamicSliceOp, ScatterNDOp, CastOp>(op);
}

Value Node::finish(Operation *op) {
  auto isDynamic = [](Type type) {
    return !llvm::cast<RankedTensorType>(type).hasStaticShape();
  };
  if (!copesWithDynamic(op) && llvm::any_of(op->getOperandTypes(), isDynamic)) {
    op->erase();
    return fail("not supported yet: an operand whose size depends on data "
                "(behind a NonZero)");
  }
  for (Type type : op->getResultTypes())
    if (ArrayRef shape = llvm::cast<RankedTensorType>(type).getShape();
        !isSaneShape(shape)) {
      std::string text = llvm::join(
          llvm::map_range(shape, [](int64_t dim) { return Twine(dim).str(); }),
          "x");
      op->erase();
      return fail("its result has the shape " + text + ", which is too large");
    }
  if (mlir::failed(verify(op, /*verifyRecursively=*/false)))
    return drop(op);
  SmallVector<Value, 1> folded;
  if (succeeded(builder.tryFold(op, folded)) && !folded.empty()) {
    op->erase();
    return folded.front();
  }
  return op->getResult(0);
}

Value Node::constant(DenseElementsAttr value) {
  return ConstantOp::create(builder, loc, value);
}

Value Node::splat(double value, ArrayRef<int64_t> shape, Type element) {
  auto type = RankedTensorType::get(shape, element);
  uint64_t word;
  if (auto floating = dyn_cast<FloatType>(element))
    word = wordOfFloat(value, floating);
  else
    word =
        wrapWord(static_cast<int64_t>(value), llvm::cast<IntegerType>(element));
  return constant(writeElements({type, true, {word}}));
}

Value Node::scalar(double value, Type element) {
  return splat(value, {}, element);
}

Value Node::ints(ArrayRef<int64_t> values) {
  auto type = RankedTensorType::get({static_cast<int64_t>(values.size())},
                                    builder.getI64Type());
  return constant(DenseElementsAttr::get(type, values));
}

Value Node::unary(UnaryKind kind, Value x) {
  return make<UnaryOp>(UnaryKindAttr::get(builder.getContext(), kind), x);
}

Value Node::binary(BinaryKind kind, Value a, Value b) {
  return make<BinaryOp>(BinaryKindAttr::get(builder.getContext(), kind), a, b);
}

Value Node::compare(ComparePredicate predicate, Value a, Value b) {
  return make<CompareOp>(
      ComparePredicateAttr::get(builder.getContext(), predicate), a, b);
}

Value Node::select(Value condition, Value a, Value b) {
  return make<SelectOp>(condition, a, b);
}

Value Node::cast(Value x, Type element) {
  if (!x || elementOf(x) == element)
    return x;
  return makeTyped<CastOp>(typeOf(x).clone(element), x);
}

Value Node::reshape(Value x, ArrayRef<int64_t> shape) {
  if (!x)
    return {};
  return makeTyped<ReshapeOp>(typeOf(x).clone(shape), x);
}

Value Node::broadcast(Value x, ArrayRef<int64_t> shape) {
  if (!x)
    return {};
  return makeTyped<BroadcastOp>(typeOf(x).clone(shape), x);
}

Value Node::transpose(Value x, ArrayRef<int64_t> permutation) {
  return make<TransposeOp>(x, permutation);
}

Value Node::matmul(Value a, Value b, bool transposeA, bool transposeB) {
  return make<MatmulOp>(a, b, transposeA, transposeB);
}

Value Node::slice(Value x, int64_t axis, int64_t start, int64_t limit) {
  SmallVector<int64_t> starts(rankOf(x), 0), limits(shapeOf(x)),
      strides(rankOf(x), 1);
  if (!x)
    return {};
  starts[axis] = start;
  limits[axis] = limit;
  return make<SliceOp>(x, starts, limits, strides);
}

Value Node::concat(ArrayRef<Value> values, int64_t axis) {
  if (llvm::is_contained(values, Value()))
    return {};
  return make<ConcatOp>(ValueRange(values), axis);
}

Value Node::reduce(ReduceKind kind, Value x, ArrayRef<int64_t> axes,
                   bool keepDims) {
  return make<ReduceOp>(ReduceKindAttr::get(builder.getContext(), kind), x,
                        builder.getDenseI64ArrayAttr(axes),
                        keepDims ? builder.getUnitAttr() : UnitAttr());
}

Value Node::mean(Value x, ArrayRef<int64_t> axes, bool keepDims) {
  Value sum = reduce(ReduceKind::Sum, x, axes, keepDims);
  if (!sum) // Sizes may not be known.
    return {};
  int64_t count = 1;
  for (int64_t axis : axes)
    count *= shapeOf(x)[axis];
  if (!isFloat(x))
    return div(sum, scalarLike(static_cast<double>(count), x));
  return mul(sum, scalarLike(1.0 / static_cast<double>(count), x));
}

Value Node::gather(Value x, Value indices, int64_t axis) {
  return make<GatherOp>(x, indices, axis);
}
