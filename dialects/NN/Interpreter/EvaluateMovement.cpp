//===- EvaluateMovement.cpp - Shape and data movement ---------------------===//

#include "dialects/NN/Interpreter/Evaluate.h"

using namespace mlir;
using namespace mgq::nn;

Tensor mgq::nn::evaluate(ReshapeOp op, const Frame &frame) {
  Tensor y = likeValue(op.getResult());
  y.data = frame[op.getInput()].data;
  return y;
}

Tensor mgq::nn::evaluate(TransposeOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachIndex(y.shape(), [&](Index index) {
    SmallVector<int64_t> from(index.size());
    for (auto [i, dim] : llvm::enumerate(op.getPermutation()))
      from[dim] = index[i];
    y.at(index) = x.at(from);
  });
  return y;
}

Tensor mgq::nn::evaluate(BroadcastOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachIndex(y.shape(),
               [&](Index index) { y.at(index) = x.broadcastAt(index); });
  return y;
}

Tensor mgq::nn::evaluate(SliceOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachIndex(y.shape(), [&](Index index) {
    SmallVector<int64_t> from;
    for (auto [i, start, stride] :
         llvm::zip_equal(index, op.getStarts(), op.getStrides()))
      from.push_back(start + i * stride);
    y.at(index) = x.at(from);
  });
  return y;
}

Tensor mgq::nn::evaluate(PadOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  for (Number &value : y.data)
    value = frame[op.getValue()].data[0];
  forEachIndex(x.shape(), [&](Index index) {
    SmallVector<int64_t> to;
    for (auto [i, before, interior] :
         llvm::zip_equal(index, op.getBefore(), op.getInterior()))
      to.push_back(before + i * (interior + 1));
    y.at(to) = x.at(index);
  });
  return y;
}

Tensor mgq::nn::evaluate(ConcatOp op, const Frame &frame) {
  Tensor y = likeValue(op.getResult());
  int64_t axis = op.getAxis(), start = 0;
  for (Value input : op.getInputs()) {
    const Tensor &x = frame[input];
    forEachIndex(x.shape(), [&](Index index) {
      y.at(withAxis(index, axis, start + index[axis])) = x.at(index);
    });
    start += x.shape()[axis];
  }
  return y;
}

Tensor mgq::nn::evaluate(ShapeOp op, const Frame &frame) {
  Tensor y = likeValue(op.getResult());
  for (auto [to, dim] : llvm::zip_equal(y.data, frame[op.getInput()].shape()))
    to.whole = dim;
  return y;
}

//===----------------------------------------------------------------------===//
// gather, scatter
//===----------------------------------------------------------------------===//

/// Adds or moves between a tensor and its slices along `axis`: calls `body`
/// with the index of the tensor and the index of the gathered elements.
static void forEachGathered(Index input, const Tensor &indices, int64_t axis,
                            Index result,
                            llvm::function_ref<void(Index, Index)> body) {
  forEachIndex(result, [&](Index index) {
    int64_t position = indices.at(index.slice(axis, indices.rank())).whole;
    SmallVector<int64_t> from(index.take_front(axis));
    from.push_back(position < 0 ? position + input[axis] : position);
    llvm::append_range(from, index.drop_front(axis + indices.rank()));
    body(from, index);
  });
}

Tensor mgq::nn::evaluate(GatherOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachGathered(x.shape(), frame[op.getIndices()], op.getAxis(), y.shape(),
                  [&](Index from, Index to) { y.at(to) = x.at(from); });
  return y;
}

Tensor mgq::nn::evaluate(GatherGradOp op, const Frame &frame) {
  const Tensor &g = frame[op.getGrad()];
  Tensor x = likeValue(op.getResult());
  forEachGathered(x.shape(), frame[op.getIndices()], op.getAxis(), g.shape(),
                  [&](Index to, Index from) { x.real(to) += g.real(from); });
  return x;
}

Tensor mgq::nn::evaluate(GatherElementsOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()], &indices = frame[op.getIndices()];
  Tensor y = likeValue(op.getResult());
  int64_t axis = op.getAxis(), extent = x.shape()[axis];
  forEachIndex(y.shape(), [&](Index index) {
    int64_t position = indices.at(index).whole;
    y.at(index) = x.at(
        withAxis(index, axis, position < 0 ? position + extent : position));
  });
  return y;
}

/// An element after an update met it.
static Number meet(ScatterKind kind, bool isFloat, Number old, Number update) {
  switch (kind) {
  case ScatterKind::Replace:
    return update;
  case ScatterKind::Add:
    return combine(ReduceKind::Sum, isFloat, old, update);
  case ScatterKind::Mul:
    return combine(ReduceKind::Prod, isFloat, old, update);
  case ScatterKind::Max:
    return combine(ReduceKind::Max, isFloat, old, update);
  case ScatterKind::Min:
    return combine(ReduceKind::Min, isFloat, old, update);
  }
  llvm_unreachable("covered");
}

Tensor mgq::nn::evaluate(ScatterElementsOp op, const Frame &frame) {
  const Tensor &indices = frame[op.getIndices()];
  const Tensor &updates = frame[op.getUpdates()];
  Tensor y = frame[op.getInput()];
  int64_t axis = op.getAxis(), extent = y.shape()[axis];
  forEachIndex(indices.shape(), [&](Index index) {
    int64_t position = indices.at(index).whole;
    Number &element = y.at(
        withAxis(index, axis, position < 0 ? position + extent : position));
    element = meet(op.getKind(), y.isFloat(), element, updates.at(index));
  });
  return y;
}

/// Calls `body(input index, slices index)` for each element that index tuples
/// name. The index into the slices is that of gather_nd's result.
static void forEachNamed(Index input, const Tensor &indices, int64_t batchDims,
                         Index slices,
                         llvm::function_ref<void(Index, Index)> body) {
  int64_t length = indices.shape().back();
  forEachIndex(slices, [&](Index index) {
    SmallVector<int64_t> tuple(index.take_front(indices.rank() - 1));
    SmallVector<int64_t> from(index.take_front(batchDims));
    tuple.push_back(0);
    for (int64_t i = 0; i < length; ++i) {
      tuple.back() = i;
      int64_t position = indices.at(tuple).whole;
      int64_t extent = input[batchDims + i];
      from.push_back(position < 0 ? position + extent : position);
    }
    llvm::append_range(from, index.drop_front(indices.rank() - 1));
    body(from, index);
  });
}

Tensor mgq::nn::evaluate(GatherNDOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachNamed(x.shape(), frame[op.getIndices()], op.getBatchDims(), y.shape(),
               [&](Index from, Index to) { y.at(to) = x.at(from); });
  return y;
}

Tensor mgq::nn::evaluate(ScatterNDOp op, const Frame &frame) {
  const Tensor &updates = frame[op.getUpdates()];
  Tensor y = frame[op.getInput()];
  forEachNamed(y.shape(), frame[op.getIndices()], op.getBatchDims(),
               updates.shape(), [&](Index to, Index from) {
                 y.at(to) = meet(op.getKind(), y.isFloat(), y.at(to),
                                 updates.at(from));
               });
  return y;
}

//===----------------------------------------------------------------------===//
// masked_scatter, masked_gather
//===----------------------------------------------------------------------===//

/// Calls `body(dense index, packed index)` for each element of the rows where
/// the mask is true and for which there is room among the packed rows.
static void forEachMasked(const Tensor &mask, Index packed,
                          llvm::function_ref<void(Index, Index)> body) {
  int64_t row = 0;
  forEachIndex(mask.shape(), [&](Index where) {
    if (!mask.at(where).whole || row >= packed[0])
      return;
    forEachIndex(packed.drop_front(), [&](Index rest) {
      SmallVector<int64_t> dense(where), from{row};
      llvm::append_range(dense, rest);
      llvm::append_range(from, rest);
      body(dense, from);
    });
    ++row;
  });
}

Tensor mgq::nn::evaluate(MaskedScatterOp op, const Frame &frame) {
  const Tensor &source = frame[op.getSource()];
  Tensor y = frame[op.getInput()];
  forEachMasked(frame[op.getMask()], source.shape(),
                [&](Index to, Index from) { y.at(to) = source.at(from); });
  return y;
}

Tensor mgq::nn::evaluate(MaskedGatherOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachMasked(frame[op.getMask()], y.shape(),
                [&](Index from, Index to) { y.at(to) = x.at(from); });
  return y;
}
