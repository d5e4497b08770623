//===- Pool.cpp - Pooling -------------------------------------------------===//

#include "frontends/onnx/Registry.h"
#include "frontends/onnx/Window.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::BinaryKind;
using mgq::nn::PoolKind;
using mgq::nn::ReduceKind;
using mgq::nn::UnaryKind;

/// A pool of `x`; with ceil_mode the last window may reach past the padding.
static Value pool(Node &n, PoolKind kind, Value x, bool countPadding) {
  MaybeInts kernel = n.getInts("kernel_shape");
  if (!x || !kernel)
    return n.fail("has no kernel_shape");
  auto window = windowOf(n, x, *kernel);
  if (!window)
    return {};
  const Window declared = *window;
  bool ceil = n.getInt("ceil_mode", 0) != 0;
  Shape shape(shapeOf(x).take_front(2));
  bool reachesOut = false;
  for (size_t i = 0; i < kernel->size(); ++i) {
    int64_t size = shapeOf(x)[2 + i], stride = window->strides[i];
    int64_t before = window->before[i];
    int64_t extent = ((*kernel)[i] - 1) * window->dilations[i] + 1;
    int64_t room = size + before + window->after[i] - extent;
    if (room < 0)
      return n.fail("has a window larger than its padded input");
    int64_t count = (ceil ? (room + stride - 1) / stride : room / stride) + 1;
    // A window must not start in the padding behind the input.
    if (ceil && (count - 1) * stride >= size + before)
      --count;
    int64_t missing = (count - 1) * stride - room;
    if (missing > 0) {
      window->after[i] += missing;
      reachesOut = true;
    }
    shape.push_back(count);
  }
  if (reachesOut && countPadding && kind == PoolKind::Average) {
    // Declared pads count, what ceil_mode adds does not: make pads elements.
    Shape before{0, 0}, after{0, 0}, none(rankOf(x), 0);
    before.append(declared.before);
    after.append(declared.after);
    x = n.make<nn::PadOp>(x, n.scalarLike(0, x), before, after, none);
    for (size_t i = 0; i < kernel->size(); ++i) {
      window->before[i] = 0;
      window->after[i] -= declared.after[i];
    }
    countPadding = false;
  }
  if (!x)
    return {};
  return n.makeTyped<nn::PoolOp>(
      typeOf(x).clone(shape),
      nn::PoolKindAttr::get(n.builder.getContext(), kind), x,
      n.builder.getDenseI64ArrayAttr(*kernel),
      n.builder.getDenseI64ArrayAttr(window->strides),
      n.builder.getDenseI64ArrayAttr(window->dilations),
      n.builder.getDenseI64ArrayAttr(window->before),
      n.builder.getDenseI64ArrayAttr(window->after),
      n.builder.getI64IntegerAttr(1),
      countPadding ? n.builder.getUnitAttr() : UnitAttr());
}

static Value importMaxPool(Node &n) {
  if (n.wantsOutput(1))
    return n.fail("not supported yet: the output of indices");
  return pool(n, PoolKind::Max, n.input(0), false);
}

static Value importAveragePool(Node &n) {
  return pool(n, PoolKind::Average, n.input(0),
              n.getInt("count_include_pad", 0) != 0);
}

/// (sum of |x|^p over windows)^(1/p): an average times the window's size.
static Value importLpPool(Node &n) {
  MaybeInts kernel = n.getInts("kernel_shape");
  Value x = n.input(0);
  if (!kernel || !x)
    return n.fail("has no kernel_shape");
  double p = n.getInt("p", 2), size = 1;
  for (int64_t dim : *kernel)
    size *= dim;
  Value power =
      n.binary(BinaryKind::Pow, n.unary(UnaryKind::Abs, x), n.scalarLike(p, x));
  Value sum =
      n.mul(pool(n, PoolKind::Average, power, true), n.scalarLike(size, x));
  return n.binary(BinaryKind::Pow, sum, n.scalarLike(1 / p, x));
}

static Shape spatialAxes(Value x) {
  return llvm::to_vector(
      llvm::seq<int64_t>(2, std::max<int64_t>(rankOf(x), 2)));
}

static Value importGlobalAveragePool(Node &n) {
  return n.mean(n.input(0), spatialAxes(n.input(0)), true);
}

static Value importGlobalMaxPool(Node &n) {
  return n.reduce(ReduceKind::Max, n.input(0), spatialAxes(n.input(0)), true);
}

static Value importGlobalLpPool(Node &n) {
  Value x = n.input(0);
  double p = n.getInt("p", 2);
  Value power =
      n.binary(BinaryKind::Pow, n.unary(UnaryKind::Abs, x), n.scalarLike(p, x));
  return n.binary(BinaryKind::Pow,
                  n.reduce(ReduceKind::Sum, power, spatialAxes(x), true),
                  n.scalarLike(1 / p, x));
}

void mgq::onnx::registerPool(Registry &r) {
  r["AveragePool"] = importAveragePool;
  r["GlobalAveragePool"] = importGlobalAveragePool;
  r["GlobalLpPool"] = importGlobalLpPool;
  r["GlobalMaxPool"] = importGlobalMaxPool;
  r["LpPool"] = importLpPool;
  r["MaxPool"] = importMaxPool;
}
