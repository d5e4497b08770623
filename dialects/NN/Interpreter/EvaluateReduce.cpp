//===- EvaluateReduce.cpp - Reductions and normalisation ------------------===//

#include "dialects/NN/Interpreter/Evaluate.h"

#include <cmath>
#include <limits>

using namespace mlir;
using namespace mgq::nn;

//===----------------------------------------------------------------------===//
// reduce, arg_reduce, cumsum
//===----------------------------------------------------------------------===//

Number mgq::nn::combine(ReduceKind kind, bool isFloat, Number a, Number b) {
  bool isNan = isFloat && (std::isnan(a.real) || std::isnan(b.real));
  switch (kind) {
  case ReduceKind::Sum:
    return {a.real + b.real, int64_t(uint64_t(a.whole) + uint64_t(b.whole))};
  case ReduceKind::Prod:
    return {a.real * b.real, int64_t(uint64_t(a.whole) * uint64_t(b.whole))};
  case ReduceKind::Max:
    return {isNan ? NAN : std::max(a.real, b.real), std::max(a.whole, b.whole)};
  case ReduceKind::Min:
    return {isNan ? NAN : std::min(a.real, b.real), std::min(a.whole, b.whole)};
  }
  llvm_unreachable("covered");
}

/// What a reduction of nothing gives.
static Number neutral(ReduceKind kind, Type element) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  bool isFloat = isa<FloatType>(element);
  switch (kind) {
  case ReduceKind::Sum:
    return {};
  case ReduceKind::Prod:
    return isFloat ? Number{1.0, 0} : Number{0.0, 1};
  case ReduceKind::Max:
    return isFloat ? Number{-kInfinity, 0}
                   : Number{0.0, std::numeric_limits<int64_t>::min()};
  case ReduceKind::Min:
    return isFloat ? Number{kInfinity, 0}
                   : Number{0.0, std::numeric_limits<int64_t>::max()};
  }
  llvm_unreachable("covered");
}

/// Index of a reduction's result, without (or with 1 for) the reduced dims.
static SmallVector<int64_t> reducedIndex(Index index, ArrayRef<int64_t> axes,
                                         bool keepDims) {
  SmallVector<int64_t> result;
  for (auto [dim, i] : llvm::enumerate(index)) {
    if (!llvm::is_contained(axes, int64_t(dim)))
      result.push_back(i);
    else if (keepDims)
      result.push_back(0);
  }
  return result;
}

Tensor mgq::nn::evaluate(ReduceOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  for (Number &value : y.data)
    value = neutral(op.getKind(), y.type.getElementType());
  forEachIndex(x.shape(), [&](Index index) {
    Number &value = y.at(reducedIndex(index, op.getAxes(), op.getKeepDims()));
    value = combine(op.getKind(), x.isFloat(), value, x.at(index));
  });
  return y;
}

Tensor mgq::nn::evaluate(ArgReduceOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  int64_t axis = op.getAxis();
  bool isMax = op.getKind() == ReduceKind::Max;
  forEachIndex(x.shape(), [&](Index index) {
    int64_t &best = y.at(reducedIndex(index, {axis}, op.getKeepDims())).whole;
    if (index[axis] == 0)
      return;
    const Number &old = x.at(withAxis(index, axis, best));
    const Number &now = x.at(index);
    bool equal = old.real == now.real && old.whole == now.whole;
    bool less = x.isFloat() ? now.real < old.real : now.whole < old.whole;
    if (equal ? op.getSelectLast() : isMax ? !less : less)
      best = index[axis];
  });
  return y;
}

Tensor mgq::nn::evaluate(CumsumOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  int64_t axis = op.getAxis();
  forEachIndex(y.shape(), [&](Index index) {
    int64_t own = index[axis];
    for (int64_t i = 0; i < x.shape()[axis]; ++i) {
      bool before = op.getReverse() ? i > own : i < own;
      if (before || (i == own && !op.getExclusive()))
        y.at(index) = combine(ReduceKind::Sum, x.isFloat(), y.at(index),
                              x.at(withAxis(index, axis, i)));
    }
  });
  return y;
}

//===----------------------------------------------------------------------===//
// softmax
//===----------------------------------------------------------------------===//

/// Calls `body(row)` with the offsets of each line along `axis`.
static void forEachLine(Index shape, int64_t axis,
                        llvm::function_ref<void(ArrayRef<int64_t>)> body) {
  forEachIndex(withAxis(shape, axis, 1), [&](Index start) {
    SmallVector<int64_t> line;
    for (int64_t i = 0; i < shape[axis]; ++i)
      line.push_back(offsetOf(shape, withAxis(start, axis, i)));
    body(line);
  });
}

/// log(sum(exp(x))) along a line.
static double logSum(const Tensor &x, ArrayRef<int64_t> line) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i : line)
    top = std::max(top, x.data[i].real);
  for (int64_t i : line)
    sum += std::exp(x.data[i].real - top);
  return top + std::log(sum);
}

Tensor mgq::nn::evaluate(SoftmaxOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachLine(x.shape(), op.getAxis(), [&](ArrayRef<int64_t> line) {
    double total = logSum(x, line);
    for (int64_t i : line)
      y.data[i].real = std::exp(x.data[i].real - total);
  });
  return y;
}

Tensor mgq::nn::evaluate(LogSoftmaxOp op, const Frame &frame) {
  const Tensor &x = frame[op.getInput()];
  Tensor y = likeValue(op.getResult());
  forEachLine(x.shape(), op.getAxis(), [&](ArrayRef<int64_t> line) {
    double total = logSum(x, line);
    for (int64_t i : line)
      y.data[i].real = x.data[i].real - total;
  });
  return y;
}

//===----------------------------------------------------------------------===//
// layer_norm, rms_norm
//===----------------------------------------------------------------------===//

/// Elements per row of a norm over dimensions from `axis`.
static int64_t rowLength(Index shape, int64_t axis) {
  int64_t length = 1;
  for (int64_t dim : shape.drop_front(axis))
    length *= dim;
  return length;
}

/// Mean and 1 / sqrt(variance + epsilon) of a row; an rms_norm has mean 0.
static std::pair<double, double> statistics(const Tensor &x, int64_t start,
                                            int64_t length, bool centered,
                                            double epsilon) {
  double mean = 0, variance = 0;
  for (int64_t i = start; centered && i < start + length; ++i)
    mean += x.data[i].real / length;
  for (int64_t i = start; i < start + length; ++i)
    variance += (x.data[i].real - mean) * (x.data[i].real - mean) / length;
  return {mean, 1.0 / std::sqrt(variance + epsilon)};
}

static Tensor norm(const Tensor &x, int64_t axis, bool centered, double epsilon,
                   const Tensor *scale, const Tensor *bias) {
  Tensor y(x.type);
  int64_t length = rowLength(x.shape(), axis);
  for (int64_t start = 0; start < x.size(); start += length) {
    auto [mean, factor] = statistics(x, start, length, centered, epsilon);
    for (int64_t i = start; i < start + length; ++i)
      y.data[i].real = (x.data[i].real - mean) * factor;
  }
  forEachIndex(y.shape(), [&](Index index) {
    if (scale)
      y.real(index) *= scale->broadcastAt(index).real;
    if (bias)
      y.real(index) += bias->broadcastAt(index).real;
  });
  return y;
}

/// factor (g - mean(g) - xhat mean(g xhat)); an rms_norm has no mean(g).
static Tensor normGradient(const Tensor &x, const Tensor &g, int64_t axis,
                           bool centered, double epsilon) {
  Tensor dx(x.type);
  int64_t length = rowLength(x.shape(), axis);
  for (int64_t start = 0; start < x.size(); start += length) {
    auto [mean, factor] = statistics(x, start, length, centered, epsilon);
    double average = 0, dot = 0;
    for (int64_t i = start; i < start + length; ++i) {
      average += centered ? g.data[i].real / length : 0;
      dot += g.data[i].real * (x.data[i].real - mean) * factor / length;
    }
    for (int64_t i = start; i < start + length; ++i) {
      double normed = (x.data[i].real - mean) * factor;
      dx.data[i].real = factor * (g.data[i].real - average - normed * dot);
    }
  }
  return dx;
}

Tensor mgq::nn::evaluate(LayerNormOp op, const Frame &frame) {
  return norm(frame[op.getInput()], op.getAxis(), true,
              op.getEpsilon().convertToDouble(), frame.find(op.getScale()),
              frame.find(op.getBias()));
}

Tensor mgq::nn::evaluate(LayerNormGradOp op, const Frame &frame) {
  return normGradient(frame[op.getInput()], frame[op.getGrad()], op.getAxis(),
                      true, op.getEpsilon().convertToDouble());
}

Tensor mgq::nn::evaluate(RMSNormOp op, const Frame &frame) {
  return norm(frame[op.getInput()], op.getAxis(), false,
              op.getEpsilon().convertToDouble(), frame.find(op.getScale()),
              nullptr);
}

Tensor mgq::nn::evaluate(RMSNormGradOp op, const Frame &frame) {
  return normGradient(frame[op.getInput()], frame[op.getGrad()], op.getAxis(),
                      false, op.getEpsilon().convertToDouble());
}
