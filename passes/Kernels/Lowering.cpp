//===- Lowering.cpp - linalg and kern ops for lowered nn ops --------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Utils/ReshapeOpsUtils.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

Value Lowering::getStored(Value value) const {
  auto cast = value.getDefiningOp<nn::CastOp>();
  if (!cast || !elementOf(cast.getResult()).isF32())
    return get(value);
  Type from = elementOf(cast.getInput());
  return get(from.isBF16() || from.isF16() ? cast.getInput() : value);
}

Value Lowering::empty(RankedTensorType type) {
  return tensor::EmptyOp::create(builder, loc, type.getShape(),
                                 type.getElementType());
}

Value Lowering::filled(ArrayRef<int64_t> shape, Type element, double value) {
  ScalarBuilder scalars(builder, loc);
  Value scalar = scalars.constant(signless(element), value);
  return linalg::FillOp::create(builder, loc, scalar, empty(shape, element))
      .getResult(0);
}

Value Lowering::reshape(Value value, ArrayRef<int64_t> shape) {
  RankedTensorType from = tensorType(value);
  RankedTensorType to = type(shape, from.getElementType());
  if (from == to)
    return value;
  if (isEmpty(from))
    return empty(to);
  if (auto groups = getReassociationIndicesForReshape(from, to)) {
    if (from.getRank() > to.getRank())
      return tensor::CollapseShapeOp::create(builder, loc, to, value, *groups);
    if (from.getRank() < to.getRank())
      return tensor::ExpandShapeOp::create(builder, loc, to, value, *groups);
  }
  // Both sides of a general reshape meet in one dimension.
  Value flat = reshape(value, {from.getNumElements()});
  return reshape(flat, shape);
}

Value Lowering::mapped(ArrayRef<int64_t> shape, Type element, ValueRange inputs,
                       ArrayRef<AffineMap> maps, ScalarBody body) {
  SmallVector<AffineMap> allMaps(maps);
  allMaps.push_back(builder.getMultiDimIdentityMap(shape.size()));
  SmallVector<utils::IteratorType> iterators(shape.size(),
                                             utils::IteratorType::parallel);
  Value init = empty(shape, element);
  // linalg infers its loops from shapes; it cannot from no elements.
  if (llvm::is_contained(shape, 0))
    return init;
  auto op = linalg::GenericOp::create(
      builder, loc, init.getType(), inputs, init, allMaps, iterators,
      [&](OpBuilder &nested, Location, ValueRange arguments) {
        ScalarBuilder scalars(nested, loc);
        SmallVector<Value> wide;
        for (Value argument : arguments.drop_back())
          wide.push_back(scalars.widen(argument));
        Value result = body(scalars, wide);
        result = scalars.narrow(result, elementOf(init));
        linalg::YieldOp::create(nested, loc, result);
      });
  return op.getResult(0);
}

/// Map of an operand of `shape` that broadcasts to `rank` dimensions.
static AffineMap broadcastMap(OpBuilder &builder, ArrayRef<int64_t> shape,
                              ArrayRef<int64_t> result) {
  SmallVector<AffineExpr> exprs;
  for (size_t i = 0; i < shape.size(); ++i) {
    size_t dim = result.size() - shape.size() + i;
    exprs.push_back(shape[i] == 1 && result[dim] != 1
                        ? builder.getAffineConstantExpr(0)
                        : builder.getAffineDimExpr(dim));
  }
  return AffineMap::get(result.size(), 0, exprs, builder.getContext());
}

Value Lowering::elementwise(ArrayRef<int64_t> shape, Type element,
                            ValueRange inputs, ScalarBody body) {
  SmallVector<AffineMap> maps;
  for (Value input : inputs)
    maps.push_back(broadcastMap(builder, shapeOf(input), shape));
  return mapped(shape, element, inputs, maps, body);
}

Value Lowering::transpose(Value value, ArrayRef<int64_t> permutation) {
  ArrayRef<int64_t> from = shapeOf(value);
  SmallVector<int64_t> shape;
  SmallVector<AffineExpr> exprs(from.size());
  for (auto [i, dim] : llvm::enumerate(permutation)) {
    shape.push_back(from[dim]);
    exprs[dim] = builder.getAffineDimExpr(i);
  }
  return mapped(shape, elementOf(value), value,
                AffineMap::get(from.size(), 0, exprs, builder.getContext()),
                [](ScalarBuilder &, ValueRange in) { return in[0]; });
}

Value Lowering::broadcast(Value value, ArrayRef<int64_t> shape) {
  if (shapeOf(value) == shape)
    return value;
  return elementwise(shape, elementOf(value), value,
                     [](ScalarBuilder &, ValueRange in) { return in[0]; });
}

Value Lowering::convert(Value value, Type element) {
  if (elementOf(value) == element)
    return value;
  return elementwise(shapeOf(value), element, value,
                     [&](ScalarBuilder &s, ValueRange in) {
                       return s.cast(in[0], element, false, false);
                     });
}

Value Lowering::reduce(
    Value input, ArrayRef<int64_t> axes, Value init,
    llvm::function_ref<Value(ScalarBuilder &, Value, Value)> body) {
  ArrayRef<int64_t> from = shapeOf(input);
  SmallVector<utils::IteratorType> iterators(from.size(),
                                             utils::IteratorType::parallel);
  for (int64_t axis : axes)
    iterators[axis] = utils::IteratorType::reduction;
  SmallVector<AffineExpr> exprs;
  SmallVector<int64_t> shape;
  for (size_t i = 0; i < from.size(); ++i) {
    if (iterators[i] == utils::IteratorType::reduction)
      continue;
    exprs.push_back(builder.getAffineDimExpr(i));
    shape.push_back(from[i]);
  }
  Value start =
      linalg::FillOp::create(builder, loc, init, empty(shape, init.getType()))
          .getResult(0);
  if (isEmpty(input.getType()))
    return start;
  SmallVector<AffineMap> maps{
      builder.getMultiDimIdentityMap(from.size()),
      AffineMap::get(from.size(), 0, exprs, builder.getContext())};
  auto op = linalg::GenericOp::create(
      builder, loc, start.getType(), input, start, maps, iterators,
      [&](OpBuilder &nested, Location, ValueRange arguments) {
        ScalarBuilder scalars(nested, loc);
        Value result = body(scalars, arguments[1], scalars.widen(arguments[0]));
        linalg::YieldOp::create(nested, loc, result);
      });
  return op.getResult(0);
}

SmallVector<Value> Lowering::loopsInto(ValueRange inputs, ValueRange inits,
                                       BufferBody body) {
  auto op =
      kern::LoopsOp::create(builder, loc, inits.getTypes(), inputs, inits);
  Block &block = op.getBody().emplaceBlock();
  auto addBuffer = [&](Value value) {
    RankedTensorType type = tensorType(value);
    block.addArgument(MemRefType::get(type.getShape(), type.getElementType()),
                      loc);
  };
  llvm::for_each(inputs, addBuffer);
  llvm::for_each(inits, addBuffer);
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToEnd(&block);
  LoopBuilder loops(builder, loc);
  ValueRange buffers(block.getArguments());
  body(loops, buffers.take_front(inputs.size()),
       buffers.drop_front(inputs.size()));
  return SmallVector<Value>(op.getResults());
}

SmallVector<Value> Lowering::loops(ValueRange inputs,
                                   ArrayRef<RankedTensorType> results,
                                   BufferBody body) {
  SmallVector<Value> inits;
  for (RankedTensorType result : results)
    inits.push_back(empty(result));
  return loopsInto(inputs, inits, body);
}

Value Lowering::product(Value a, Value b, bool transposeA, bool transposeB) {
  ArrayRef<int64_t> sa = shapeOf(a), sb = shapeOf(b);
  SmallVector<int64_t> shape;
  if (sa.size() == 3 || sb.size() == 3)
    shape.push_back(sa.size() == 3 ? sa[0] : sb[0]);
  shape.push_back(sa[sa.size() - (transposeA ? 1 : 2)]);
  shape.push_back(sb[sb.size() - (transposeB ? 2 : 1)]);
  RankedTensorType to = type(shape, computeType(elementOf(a)));
  if (isEmpty(to))
    return empty(to);
  if (isEmpty(a.getType()))
    return filled(shape, to.getElementType(), 0);
  Value init = empty(to);
  return kern::MatmulOp::create(builder, loc, init.getType(), a, b, init,
                                transposeA, transposeB)
      .getResult(0);
}

//===----------------------------------------------------------------------===//
// Names in run-time errors
//===----------------------------------------------------------------------===//

/// The ONNX node name a location carries.
static std::string nameOf(Location loc) {
  if (auto name = dyn_cast<NameLoc>(loc))
    return name.getName().str();
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      if (std::string name = nameOf(part); !name.empty())
        return name;
  if (auto call = dyn_cast<CallSiteLoc>(loc))
    return nameOf(call.getCallee());
  return "";
}

std::string Lowering::nodeName() {
  std::string text = nameOf(loc);
  if (text.empty())
    text = "an operation without a name";
  std::string &symbol = strings[text];
  if (!symbol.empty())
    return symbol;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(module.getBody());
  do {
    symbol = "node_name." + std::to_string(nextString++);
  } while (module.lookupSymbol(symbol));
  std::string bytes = text + '\0';
  auto arrayType = LLVM::LLVMArrayType::get(builder.getI8Type(), bytes.size());
  LLVM::GlobalOp::create(builder, loc, arrayType, /*isConstant=*/true,
                         LLVM::Linkage::Private, symbol,
                         builder.getStringAttr(bytes));
  return symbol;
}

Value Lowering::nodeNameAddress(ScalarBuilder &scalars, StringRef symbol) {
  return LLVM::AddressOfOp::create(
      scalars.builder, loc, LLVM::LLVMPointerType::get(builder.getContext()),
      symbol);
}
