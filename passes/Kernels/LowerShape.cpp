//===- LowerShape.cpp - Data movement to linalg and loops -----------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/IR/DialectResourceBlobManager.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

static Value same(ScalarBuilder &, ValueRange in) { return in[0]; }

LogicalResult kernels::lower(Lowering &l, nn::ConstantOp op) {
  ElementsAttr value = op.getValue();
  RankedTensorType type = tensorType(op.getResult());
  auto to = cast<RankedTensorType>(signless(type));
  if (to != type) {
    if (auto dense = dyn_cast<DenseElementsAttr>(value))
      value = dense.bitcast(to.getElementType());
    else if (auto resource = dyn_cast<DenseResourceElementsAttr>(value))
      value = DenseResourceElementsAttr::get(to, resource.getRawHandle());
    else
      return op.emitOpError("has an unsupported value");
  }
  l.set(op, arith::ConstantOp::create(l.builder, l.loc, to,
                                      cast<TypedAttr>(value)));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::ReshapeOp op) {
  l.set(op, l.reshape(l.get(op.getInput()), shapeOf(op.getResult())));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::TransposeOp op) {
  l.set(op, l.transpose(l.get(op.getInput()), op.getPermutation()));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::BroadcastOp op) {
  l.set(op, l.broadcast(l.get(op.getInput()), shapeOf(op.getResult())));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::SliceOp op) {
  OpBuilder &b = l.builder;
  auto shape = shapeOf(op.getResult());
  // Where strides are positive the slice is a view.
  if (llvm::all_of(op.getStrides(), [](int64_t s) { return s > 0; })) {
    auto indices = [&](ArrayRef<int64_t> values) {
      return getAsIndexOpFoldResult(b.getContext(), values);
    };
    l.set(op, tensor::ExtractSliceOp::create(
                  b, l.loc, l.get(op.getInput()), indices(op.getStarts()),
                  indices(shape), indices(op.getStrides())));
    return success();
  }
  SmallVector<AffineExpr> exprs;
  for (auto [i, start, stride] :
       llvm::enumerate(op.getStarts(), op.getStrides()))
    exprs.push_back(b.getAffineDimExpr(i) * stride + start);
  AffineMap map = AffineMap::get(shape.size(), 0, exprs, b.getContext());
  l.set(op, l.mapped(shape, elementOf(op.getResult()), l.get(op.getInput()),
                     map, same));
  return success();
}

/// Stores every element of `from` at its indices times `strides` plus
/// `offsets` of `to`; no conversion.
static void copyInto(LoopBuilder &b, Value from, Value to,
                     ArrayRef<int64_t> offsets, ArrayRef<int64_t> strides) {
  auto shape = cast<MemRefType>(from.getType()).getShape();
  // The last dimension is the inner loop.
  auto row = [&](ValueRange outer) {
    auto element = [&](ValueRange indices) {
      SmallVector<Value> target;
      for (auto [iv, offset, stride] :
           llvm::zip_equal(indices, offsets, strides))
        target.push_back(b.add(b.mul(iv, b.index(stride)), b.index(offset)));
      Value value = memref::LoadOp::create(b.builder, b.loc, from, indices);
      memref::StoreOp::create(b.builder, b.loc, value, to, target);
    };
    if (shape.empty())
      return element({});
    b.loop(shape.back(), [&](Value iv) {
      SmallVector<Value> indices(outer);
      indices.push_back(iv);
      element(indices);
    });
  };
  b.parallel(shape.empty() ? shape : shape.drop_back(), row);
}

/// Stores the one element of `scalar` everywhere.
static void fillWith(LoopBuilder &b, Value scalar, Value to,
                     ArrayRef<int64_t> shape) {
  Value value = memref::LoadOp::create(b.builder, b.loc, scalar);
  auto store = [&](ValueRange indices) {
    memref::StoreOp::create(b.builder, b.loc, value, to, indices);
  };
  if (shape.empty())
    return store({});
  b.parallel(shape.drop_back(), [&](ValueRange outer) {
    b.loop(shape.back(), [&](Value iv) {
      SmallVector<Value> indices(outer);
      indices.push_back(iv);
      store(indices);
    });
  });
}

LogicalResult kernels::lower(Lowering &l, nn::PadOp op) {
  RankedTensorType to =
      l.type(shapeOf(op.getResult()), elementOf(op.getResult()));
  if (isEmpty(op.getInput().getType())) {
    l.set(op, l.broadcast(l.get(op.getValue()), to.getShape()));
    return success();
  }
  SmallVector<int64_t> strides;
  for (int64_t interior : op.getInterior())
    strides.push_back(interior + 1);
  SmallVector<Value> operands{l.get(op.getInput()), l.get(op.getValue())};
  l.set(op, l.loops(operands, to,
                    [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                      fillWith(b, in[1], out[0], to.getShape());
                      copyInto(b, in[0], out[0], op.getBefore(), strides);
                    })[0]);
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::ConcatOp op) {
  RankedTensorType to =
      l.type(shapeOf(op.getResult()), elementOf(op.getResult()));
  SmallVector<Value> operands;
  for (Value input : op.getInputs())
    if (!isEmpty(input.getType()))
      operands.push_back(l.get(input));
  l.set(
      op,
      l.loops(operands, to, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        SmallVector<int64_t> offsets(to.getRank(), 0);
        SmallVector<int64_t> strides(to.getRank(), 1);
        for (Value part : in) {
          copyInto(b, part, out[0], offsets, strides);
          offsets[op.getAxis()] +=
              cast<MemRefType>(part.getType()).getDimSize(op.getAxis());
        }
      })[0]);
  return success();
}
