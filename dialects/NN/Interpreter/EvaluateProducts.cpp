//===- EvaluateProducts.cpp - Products, convolutions, pools ---------------===//

#include "dialects/NN/Interpreter/Evaluate.h"

#include <cmath>
#include <limits>

using namespace mlir;
using namespace mgq::nn;

//===----------------------------------------------------------------------===//
// matmul
//===----------------------------------------------------------------------===//

/// Element [batch..., row, column] of a matrix, transposed first if asked.
static Number matrixAt(const Tensor &x, Index batch, int64_t row,
                       int64_t column, bool transposed) {
  if (transposed)
    std::swap(row, column);
  SmallVector<int64_t> index(batch);
  index.append({row, column});
  SmallVector<int64_t> own(Index(index).take_back(x.rank()));
  for (int64_t i = 0; i < x.rank() - 2; ++i)
    if (x.shape()[i] == 1)
      own[i] = 0;
  return x.at(own);
}

Tensor mgq::nn::evaluate(MatmulOp op, const Frame &frame) {
  const Tensor &a = frame[op.getLhs()], &b = frame[op.getRhs()];
  Tensor y = likeValue(op.getResult());
  int64_t depth =
      op.getTransposeA() ? a.shape()[a.rank() - 2] : a.shape().back();
  forEachIndex(y.shape(), [&](Index index) {
    Index batch = index.drop_back(2);
    int64_t row = index[index.size() - 2], column = index.back();
    Number sum;
    for (int64_t k = 0; k < depth; ++k) {
      Number x = matrixAt(a, batch, row, k, op.getTransposeA());
      Number z = matrixAt(b, batch, k, column, op.getTransposeB());
      sum.real += x.real * z.real;
      sum.whole += x.whole * z.whole;
    }
    y.at(index) = sum;
  });
  return y;
}

//===----------------------------------------------------------------------===//
// Windows
//===----------------------------------------------------------------------===//

/// Calls `body(tap, position)` for the positions inside the image that a window
/// reads at one output position; both are spatial indices.
template <typename Op>
static void forEachTap(Op op, Index window, Index image, Index output,
                       llvm::function_ref<void(Index, Index)> body) {
  forEachIndex(window, [&](Index tap) {
    SmallVector<int64_t> position;
    for (size_t i = 0; i < tap.size(); ++i) {
      int64_t x = output[i] * op.getStrides()[i] - op.getPadsBefore()[i] +
                  tap[i] * op.getDilations()[i];
      if (x < 0 || x >= image[i])
        return;
      position.push_back(x);
    }
    body(tap, position);
  });
}

static SmallVector<int64_t> join(int64_t a, int64_t b, Index rest) {
  SmallVector<int64_t> index{a, b};
  llvm::append_range(index, rest);
  return index;
}

/// Calls `body(input index, weight index, output index)` for each product of a
/// convolution: y[output] += x[input] w[weight].
template <typename Op>
static void
forEachConvProduct(Op op, Index x, Index w, Index y,
                   llvm::function_ref<void(Index, Index, Index)> body) {
  int64_t groups = op.getGroups(), perGroup = w[0] / groups;
  forEachIndex(y, [&](Index output) {
    int64_t group = output[1] / perGroup;
    for (int64_t c = 0; c < w[1]; ++c)
      forEachTap(op, w.drop_front(2), x.drop_front(2), output.drop_front(2),
                 [&](Index tap, Index position) {
                   body(join(output[0], group * w[1] + c, position),
                        join(output[1], c, tap), output);
                 });
  });
}

Tensor mgq::nn::evaluate(ConvOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()], &w = frame[op.getWeight()];
  Tensor y = likeValue(op.getResult());
  forEachConvProduct(op, x.shape(), w.shape(), y.shape(),
                     [&](Index in, Index weight, Index out) {
                       y.real(out) += x.real(in) * w.real(weight);
                     });
  return y;
}

Tensor mgq::nn::evaluate(ConvGradInputOp op, const Frame &frame) {
  const Tensor &g = frame[op.getGrad()], &w = frame[op.getWeight()];
  Tensor x = likeValue(op.getResult());
  forEachConvProduct(op, x.shape(), w.shape(), g.shape(),
                     [&](Index in, Index weight, Index out) {
                       x.real(in) += g.real(out) * w.real(weight);
                     });
  return x;
}

Tensor mgq::nn::evaluate(ConvGradWeightOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()], &g = frame[op.getGrad()];
  Tensor w = likeValue(op.getResult());
  forEachConvProduct(op, x.shape(), w.shape(), g.shape(),
                     [&](Index in, Index weight, Index out) {
                       w.real(weight) += x.real(in) * g.real(out);
                     });
  return w;
}

/// What an average divides by at a window with `inside` elements of the tensor.
template <typename Op>
static double averageDivisor(Op op, int64_t inside) {
  if (!op.getCountPadding())
    return inside;
  int64_t size = 1;
  for (int64_t dim : op.getWindow())
    size *= dim;
  return size;
}

Tensor mgq::nn::evaluate(PoolOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  bool isMax = op.getKind() == PoolKind::Max;
  forEachIndex(y.shape(), [&](Index out) {
    double best = -std::numeric_limits<double>::infinity(), sum = 0;
    int64_t inside = 0;
    forEachTap(op, op.getWindow(), x.shape().drop_front(2), out.drop_front(2),
               [&](Index, Index position) {
                 double value = x.real(join(out[0], out[1], position));
                 best = std::isnan(value) ? value : std::max(best, value);
                 sum += value;
                 ++inside;
               });
    y.real(out) = isMax ? best : sum / averageDivisor(op, inside);
  });
  return y;
}

Tensor mgq::nn::evaluate(PoolGradOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()], &g = frame[op.getGrad()];
  Tensor dx = likeValue(op.getResult());
  bool isMax = op.getKind() == PoolKind::Max;
  forEachIndex(g.shape(), [&](Index out) {
    SmallVector<SmallVector<int64_t>> taps;
    size_t best = 0;
    forEachTap(op, op.getWindow(), x.shape().drop_front(2), out.drop_front(2),
               [&](Index, Index position) {
                 taps.push_back(join(out[0], out[1], position));
                 if (x.real(taps.back()) > x.real(taps[best]))
                   best = taps.size() - 1;
               });
    if (isMax && !taps.empty())
      dx.real(taps[best]) += g.real(out);
    if (!isMax)
      for (Index tap : taps)
        dx.real(tap) += g.real(out) / averageDivisor(op, taps.size());
  });
  return dx;
}
