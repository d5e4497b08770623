//===- NNGradientsShape.cpp - Gradients of data movement ------------------===//

#include "dialects/NN/NNBuild.h"

using namespace mlir;
using namespace mgq::nn;

using Needed = llvm::BitVector;
using Gradients = MutableArrayRef<Value>;

//===----------------------------------------------------------------------===//
// reshape, transpose, broadcast, slice, pad, concat
//===----------------------------------------------------------------------===//

LogicalResult ReshapeOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                       const Needed &needed, Gradients out) {
  if (needed[0])
    out[0] = Build(builder, getLoc())
                 .reshape(grads[0], tensorType(getInput()).getShape());
  return success();
}

LogicalResult TransposeOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                         const Needed &needed, Gradients out) {
  SmallVector<int64_t> inverse(getPermutation().size());
  for (auto [i, dim] : llvm::enumerate(getPermutation()))
    inverse[dim] = i;
  if (needed[0])
    out[0] = Build(builder, getLoc()).transpose(grads[0], inverse);
  return success();
}

LogicalResult BroadcastOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                         const Needed &needed, Gradients out) {
  if (needed[0])
    out[0] = Build(builder, getLoc()).sumTo(grads[0], tensorType(getInput()));
  return success();
}

/// Puts g back where a slice of a tensor of `type` took it, zeros around.
static Value unslice(Build &b, SliceOp op, Value g) {
  ArrayRef<int64_t> from = tensorType(op.getInput()).getShape();
  ArrayRef<int64_t> to = tensorType(g).getShape();
  SmallVector<int64_t> starts(to.size(), 0), limits(to), steps(to.size(), 1);
  SmallVector<int64_t> before, after, interior;
  bool reversed = false;
  for (size_t i = 0; i < to.size(); ++i) {
    int64_t stride = op.getStrides()[i], first = op.getStarts()[i];
    if (stride < 0) {
      // Turn the dimension round; then its last element comes first.
      reversed = true;
      starts[i] = to[i] - 1;
      limits[i] = -1;
      steps[i] = -1;
      first += (to[i] - 1) * stride;
      stride = -stride;
    }
    before.push_back(first);
    after.push_back(from[i] - (first + (to[i] - 1) * stride + 1));
    interior.push_back(stride - 1);
  }
  if (reversed)
    g = SliceOp::create(b.builder, b.loc, g, starts, limits, steps);
  Value zero = b.scalar(tensorType(g).getElementType(), 0.0);
  return PadOp::create(b.builder, b.loc, g, zero, before, after, interior);
}

LogicalResult SliceOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                     const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  // A slice without elements has a gradient of zero.
  if (needed[0] && tensorType(grads[0]).getNumElements() != 0)
    out[0] = unslice(b, *this, grads[0]);
  return success();
}

LogicalResult PadOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                   const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  auto type = tensorType(getInput());
  SmallVector<int64_t> limits, strides;
  for (auto [dim, before, interior] :
       llvm::zip_equal(type.getShape(), getBefore(), getInterior())) {
    strides.push_back(interior + 1);
    limits.push_back(dim == 0 ? before
                              : before + (dim - 1) * (interior + 1) + 1);
  }
  Value inside = SliceOp::create(builder, getLoc(), grads[0], getBefore(),
                                 limits, strides);
  if (needed[0])
    out[0] = inside;
  // The scalar is what is not inside.
  if (needed[1]) {
    auto scalar = tensorType(getValue());
    out[1] = b.sub(b.sumTo(grads[0], scalar), b.sumTo(inside, scalar));
  }
  return success();
}

LogicalResult ConcatOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                      const Needed &needed, Gradients out) {
  auto type = tensorType(grads[0]);
  SmallVector<int64_t> starts(type.getRank(), 0), limits(type.getShape());
  SmallVector<int64_t> strides(type.getRank(), 1);
  int64_t axis = getAxis();
  limits[axis] = 0;
  for (auto [i, input] : llvm::enumerate(getInputs())) {
    starts[axis] = limits[axis];
    limits[axis] += tensorType(input).getDimSize(axis);
    if (needed[i])
      out[i] =
          SliceOp::create(builder, getLoc(), grads[0], starts, limits, strides);
  }
  return success();
}

//===----------------------------------------------------------------------===//
// gather
//===----------------------------------------------------------------------===//

LogicalResult GatherOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                      const Needed &needed, Gradients out) {
  if (needed[0])
    out[0] = GatherGradOp::create(builder, getLoc(), getInput().getType(),
                                  grads[0], getIndices(), getAxis());
  return success();
}

LogicalResult GatherElementsOp::buildGradient(OpBuilder &builder,
                                              ValueRange grads,
                                              const Needed &needed,
                                              Gradients out) {
  Build b(builder, getLoc());
  if (needed[0])
    out[0] = ScatterElementsOp::create(builder, getLoc(), ScatterKind::Add,
                                       b.zeros(tensorType(getInput())),
                                       getIndices(), grads[0], getAxis());
  return success();
}

LogicalResult GatherNDOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                        const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  if (needed[0])
    out[0] = ScatterNDOp::create(builder, getLoc(), ScatterKind::Add,
                                 b.zeros(tensorType(getInput())), getIndices(),
                                 grads[0], getBatchDims());
  return success();
}

//===----------------------------------------------------------------------===//
// scatter
//===----------------------------------------------------------------------===//

namespace {
/// A scatter and the gather that reads where it writes.
struct Scatter {
  Build b;
  llvm::function_ref<Value(ScatterKind, Value input, Value updates)> scatter;
  llvm::function_ref<Value(Value)> gather;
  Value input, updates, result;

  void replace(Value g, const Needed &needed, Gradients out);
  void add(Value g, const Needed &needed, Gradients out);
  void multiply(Value g, const Needed &needed, Gradients out);
  void extremum(Value g, const Needed &needed, Gradients out);
};
} // namespace

// Operands are input, indices, updates.

// Of several updates of one element each gets its gradient, as in PyTorch,
// though only the last one counts.
void Scatter::replace(Value g, const Needed &needed, Gradients out) {
  if (needed[0])
    out[0] = scatter(ScatterKind::Replace, g, b.zeros(tensorType(updates)));
  if (needed[2])
    out[2] = gather(g);
}

void Scatter::add(Value g, const Needed &needed, Gradients out) {
  if (needed[0])
    out[0] = g;
  if (needed[2])
    out[2] = gather(g);
}

// An update's factor is the product of the input and the other updates: the
// product of all that are not zero, divided by the update, unless another
// update is zero.
void Scatter::multiply(Value g, const Needed &needed, Gradients out) {
  if (needed[0])
    out[0] = scatter(ScatterKind::Mul, g, updates);
  if (!needed[2])
    return;
  Type element = tensorType(updates).getElementType();
  Value isZero = b.compare(ComparePredicate::Eq, updates, 0.0);
  Value nonZero = b.select(isZero, b.scalar(element, 1.0), updates);
  Value zero = b.cast(isZero, element);
  Value product = gather(scatter(ScatterKind::Mul, input, nonZero));
  Value zeros =
      gather(scatter(ScatterKind::Add, b.zeros(tensorType(input)), zero));
  Value alone = b.compare(ComparePredicate::Eq, zeros, zero);
  out[2] = b.mul(gather(g), b.keepWhere(alone, b.div(product, nonZero)));
}

// Equal elements share the gradient.
void Scatter::extremum(Value g, const Needed &needed, Gradients out) {
  Type element = tensorType(updates).getElementType();
  Value inputHit = b.compare(ComparePredicate::Eq, input, result);
  Value updateHit = b.compare(ComparePredicate::Eq, updates, gather(result));
  Value count = scatter(ScatterKind::Add, b.cast(inputHit, element),
                        b.cast(updateHit, element));
  Value share = b.div(g, count);
  if (needed[0])
    out[0] = b.keepWhere(inputHit, share);
  if (needed[2])
    out[2] = b.keepWhere(updateHit, gather(share));
}

/// Dispatches on the kind of a scatter.
static void scatterGradient(Scatter &s, ScatterKind kind, Value g,
                            const Needed &needed, Gradients out) {
  switch (kind) {
  case ScatterKind::Replace:
    return s.replace(g, needed, out);
  case ScatterKind::Add:
    return s.add(g, needed, out);
  case ScatterKind::Mul:
    return s.multiply(g, needed, out);
  case ScatterKind::Max:
  case ScatterKind::Min:
    return s.extremum(g, needed, out);
  }
}

LogicalResult ScatterElementsOp::buildGradient(OpBuilder &builder,
                                               ValueRange grads,
                                               const Needed &needed,
                                               Gradients out) {
  auto scatter = [&](ScatterKind kind, Value input, Value updates) -> Value {
    return ScatterElementsOp::create(builder, getLoc(), kind, input,
                                     getIndices(), updates, getAxis());
  };
  auto gather = [&](Value input) -> Value {
    return GatherElementsOp::create(builder, getLoc(), input, getIndices(),
                                    getAxis());
  };
  Scatter s{Build(builder, getLoc()),
            scatter,
            gather,
            getInput(),
            getUpdates(),
            getResult()};
  scatterGradient(s, getKind(), grads[0], needed, out);
  return success();
}

LogicalResult ScatterNDOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                         const Needed &needed, Gradients out) {
  auto scatter = [&](ScatterKind kind, Value input, Value updates) -> Value {
    return ScatterNDOp::create(builder, getLoc(), kind, input, getIndices(),
                               updates, getBatchDims());
  };
  auto gather = [&](Value input) -> Value {
    return GatherNDOp::create(builder, getLoc(), input, getIndices(),
                              getBatchDims());
  };
  Scatter s{Build(builder, getLoc()),
            scatter,
            gather,
            getInput(),
            getUpdates(),
            getResult()};
  scatterGradient(s, getKind(), grads[0], needed, out);
  return success();
}

//===----------------------------------------------------------------------===//
// masked_scatter, masked_gather
//===----------------------------------------------------------------------===//

/// The mask of rows, with dimensions of 1 for the elements of a row.
static Value rowMask(Build &b, Value mask, int64_t rank) {
  SmallVector<int64_t> shape(tensorType(mask).getShape());
  shape.resize(rank, 1);
  return b.reshape(mask, shape);
}

LogicalResult MaskedScatterOp::buildGradient(OpBuilder &builder,
                                             ValueRange grads,
                                             const Needed &needed,
                                             Gradients out) {
  Build b(builder, getLoc());
  if (needed[0])
    out[0] = b.dropWhere(
        rowMask(b, getMask(), tensorType(getInput()).getRank()), grads[0]);
  if (needed[2])
    out[2] = MaskedGatherOp::create(builder, getLoc(), getSource().getType(),
                                    grads[0], getMask());
  return success();
}

LogicalResult MaskedGatherOp::buildGradient(OpBuilder &builder,
                                            ValueRange grads,
                                            const Needed &needed,
                                            Gradients out) {
  Build b(builder, getLoc());
  if (needed[0])
    out[0] = MaskedScatterOp::create(builder, getLoc(),
                                     b.zeros(tensorType(getInput())), getMask(),
                                     grads[0]);
  return success();
}
