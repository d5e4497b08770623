//===- NNGradientsProducts.cpp - Gradients of matmul and conv -------------===//

#include "dialects/NN/NNBuild.h"

using namespace mlir;
using namespace mgq::nn;

using Needed = llvm::BitVector;
using Gradients = MutableArrayRef<Value>;

/// x as one matrix: leading dimensions joined with the rows.
static Value joinRows(Build &b, Value x) {
  ArrayRef<int64_t> shape = tensorType(x).getShape();
  int64_t rows = 1;
  for (int64_t dim : shape.drop_back())
    rows *= dim;
  return b.reshape(x, {rows, shape.back()});
}

/// x with its last two dimensions swapped.
static Value swapLast(Build &b, Value x) {
  auto permutation =
      llvm::to_vector(llvm::seq<int64_t>(tensorType(x).getRank()));
  std::swap(permutation.back(), permutation[permutation.size() - 2]);
  return b.transpose(x, permutation);
}

/// Gradient of the left matrix A', C = A' B': G B'^T, or its transpose.
static Value lhsGradient(Build &b, MatmulOp op, Value g) {
  bool ta = op.getTransposeA(), tb = op.getTransposeB();
  if (ta)
    return b.matmul(op.getRhs(), g, tb, true);
  return b.matmul(g, op.getRhs(), false, !tb);
}

/// Gradient of the right matrix B', C = A' B': A'^T G, or its transpose.
static Value rhsGradient(Build &b, MatmulOp op, Value g) {
  bool ta = op.getTransposeA(), tb = op.getTransposeB();
  Value lhs = op.getLhs();
  // A weight sees all rows of the batch: one product, not a batch of products
  // and a sum.
  auto rhs = tensorType(op.getRhs());
  bool single = llvm::all_of(rhs.getShape().drop_back(2),
                             [](int64_t dim) { return dim == 1; });
  if (single && tensorType(lhs).getRank() > 2) {
    if (ta)
      lhs = swapLast(b, lhs);
    ta = false;
    lhs = joinRows(b, lhs);
    g = joinRows(b, g);
  }
  if (tb)
    return b.matmul(g, lhs, true, ta);
  return b.matmul(lhs, g, !ta, false);
}

LogicalResult MatmulOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                      const Needed &needed, Gradients out) {
  Build b(builder, getLoc());
  if (needed[0])
    out[0] = b.sumTo(lhsGradient(b, *this, grads[0]), tensorType(getLhs()));
  if (needed[1])
    out[1] = b.sumTo(rhsGradient(b, *this, grads[0]), tensorType(getRhs()));
  return success();
}

LogicalResult ConvOp::buildGradient(OpBuilder &builder, ValueRange grads,
                                    const Needed &needed, Gradients out) {
  Location loc = getLoc();
  if (needed[0])
    out[0] = ConvGradInputOp::create(
        builder, loc, getInput().getType(), grads[0], getWeight(), getStrides(),
        getDilations(), getPadsBefore(), getPadsAfter(), getGroups());
  if (needed[1])
    out[1] = ConvGradWeightOp::create(
        builder, loc, getWeight().getType(), getInput(), grads[0], getStrides(),
        getDilations(), getPadsBefore(), getPadsAfter(), getGroups());
  return success();
}

// The op is linear in both operands: it is the transpose of a convolution, so
// its gradient is that convolution.
LogicalResult ConvGradInputOp::buildGradient(OpBuilder &builder,
                                             ValueRange grads,
                                             const Needed &needed,
                                             Gradients out) {
  Location loc = getLoc();
  if (needed[0])
    out[0] = ConvOp::create(builder, loc, getGrad().getType(), grads[0],
                            getWeight(), getStrides(), getDilations(),
                            getPadsBefore(), getPadsAfter(), getGroups());
  if (needed[1])
    out[1] = ConvGradWeightOp::create(
        builder, loc, getWeight().getType(), grads[0], getGrad(), getStrides(),
        getDilations(), getPadsBefore(), getPadsAfter(), getGroups());
  return success();
}
