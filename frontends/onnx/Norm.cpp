//===- Norm.cpp - Normalisation and softmax -------------------------------===//

#include "frontends/onnx/Registry.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::BinaryKind;
using mgq::nn::ComparePredicate;
using mgq::nn::ReduceKind;
using mgq::nn::UnaryKind;

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

/// Calls `build(x, axis)`. Before operator set 13 the input counts as a matrix
/// with all dimensions from `axis` as its columns.
template <typename Build>
static Value alongAxis(Node &n, Build build) {
  Value x = n.input(0);
  bool old = n.opset < 13;
  auto axis = n.axis(n.getInt("axis", old ? 1 : -1), rankOf(x));
  if (!axis)
    return {};
  if (!old || *axis == rankOf(x) - 1)
    return build(x, *axis);
  int64_t rows = 1, columns = 1;
  for (auto [index, dim] : llvm::enumerate(shapeOf(x)))
    (int64_t(index) < *axis ? rows : columns) *= dim;
  return n.reshape(build(n.reshape(x, {rows, columns}), int64_t(1)),
                   shapeOf(x));
}

static Value importSoftmax(Node &n) {
  return alongAxis(
      n, [&](Value x, int64_t axis) { return n.make<nn::SoftmaxOp>(x, axis); });
}

static Value importLogSoftmax(Node &n) {
  return alongAxis(n, [&](Value x, int64_t axis) {
    return n.make<nn::LogSoftmaxOp>(x, axis);
  });
}

static Value importHardmax(Node &n) {
  return alongAxis(n, [&](Value x, int64_t axis) -> Value {
    if (!x)
      return {};
    auto *context = n.builder.getContext();
    Value best = n.make<nn::ArgReduceOp>(
        nn::ReduceKindAttr::get(context, ReduceKind::Max), x,
        n.builder.getI64IntegerAttr(axis), n.builder.getUnitAttr(), UnitAttr());
    Shape line(rankOf(x), 1);
    int64_t size = line[axis] = shapeOf(x)[axis];
    Value numbers =
        n.reshape(n.ints(llvm::to_vector(llvm::seq<int64_t>(0, size))), line);
    return n.cast(n.compare(ComparePredicate::Eq, numbers, best), elementOf(x));
  });
}

//===----------------------------------------------------------------------===//
// Normalisation over the last dimensions
//===----------------------------------------------------------------------===//

static Value layerNorm(Node &n, Value x, Value scale, Value bias, int64_t axis,
                       double epsilon) {
  return n.make<nn::LayerNormOp>(x, Node::Maybe{scale}, Node::Maybe{bias},
                                 n.builder.getI64IntegerAttr(axis),
                                 n.builder.getF64FloatAttr(epsilon));
}

/// Sets the outputs mean and 1 / deviation, in the type of the statistics.
static void setStatistics(Node &n, Value x, int64_t axis, double epsilon) {
  Type stash = elementTypeOf(n.getInt("stash_type", 1), n.builder.getContext());
  if (!stash)
    stash = n.builder.getF32Type();
  x = n.cast(x, stash);
  auto axes = llvm::to_vector(llvm::seq<int64_t>(axis, rankOf(x)));
  Value mean = n.mean(x, axes, true), centered = n.sub(x, mean);
  Value variance = n.mean(n.mul(centered, centered), axes, true);
  n.set(1, mean);
  n.set(2, n.unary(UnaryKind::Reciprocal,
                   n.unary(UnaryKind::Sqrt,
                           n.add(variance, n.scalarLike(epsilon, x)))));
}

static Value importLayerNormalization(Node &n) {
  Value x = n.input(0);
  auto axis = n.axis(n.getInt("axis", -1), rankOf(x));
  if (!axis)
    return {};
  double epsilon = n.getFloat("epsilon", 1e-5f);
  if (n.wantsOutput(1) || n.wantsOutput(2))
    setStatistics(n, x, *axis, epsilon);
  return layerNorm(n, x, n.input(1), n.input(2), *axis, epsilon);
}

static Value importRMSNormalization(Node &n) {
  Value x = n.input(0);
  auto axis = n.axis(n.getInt("axis", -1), rankOf(x));
  if (!axis)
    return {};
  // The scale may have a wider type than the input: then so has the product.
  Value scale = n.input(1);
  bool mixed = scale && elementOf(scale) != elementOf(x);
  Value y = n.make<nn::RMSNormOp>(
      x, Node::Maybe{mixed ? Value() : scale},
      n.builder.getI64IntegerAttr(*axis),
      n.builder.getF64FloatAttr(n.getFloat("epsilon", 1e-5f)));
  return mixed ? n.mul(n.cast(y, elementOf(scale)), scale) : y;
}

//===----------------------------------------------------------------------===//
// Normalisation of channels
//===----------------------------------------------------------------------===//

/// A value per channel, to broadcast over [batch, channels, spatial...].
static Value perChannel(Node &n, Value value, Value x) {
  Shape shape(std::max<int64_t>(rankOf(x) - 1, 1), 1);
  shape[0] = rankOf(value) == 1 ? shapeOf(value)[0] : 1;
  return n.reshape(value, shape);
}

/// Sets the outputs of BatchNormalization in training mode, the new running
/// statistics, and gives the batch's own.
static std::pair<Value, Value> batchStatistics(Node &n, Value x) {
  Shape axes{0};
  for (int64_t i = 2; i < rankOf(x); ++i)
    axes.push_back(i);
  Value mean = n.mean(x, axes, true), centered = n.sub(x, mean);
  Value variance = n.mean(n.mul(centered, centered), axes, true);
  double momentum = n.getFloat("momentum", 0.9f);
  auto running = [&](unsigned index, Value now) {
    Value old = n.input(index);
    Value share = n.mul(old, n.scalarLike(momentum, old));
    now = n.cast(n.reshape(now, shapeOf(old)), elementOf(old));
    return n.add(share, n.mul(now, n.scalarLike(1 - momentum, old)));
  };
  if (n.wantsOutput(1))
    n.set(1, running(3, mean));
  if (n.wantsOutput(2))
    n.set(2, running(4, variance));
  auto flat = [&](Value value) {
    Shape shape(shapeOf(value));
    return shape.empty() ? value
                         : n.reshape(value, ArrayRef(shape).drop_front());
  };
  return {flat(mean), flat(variance)};
}

static Value importBatchNormalization(Node &n) {
  Value x = n.input(0);
  if (!x || rankOf(x) < 2)
    return n.fail("has an input of rank " + Twine(rankOf(x)) +
                  ", expected 2 or more");
  // Statistics may have a wider type than the input.
  Type wide = elementOf(n.input(3));
  auto channel = [&](unsigned index) {
    return perChannel(n, n.cast(n.input(index), wide), x);
  };
  Value y = n.cast(x, wide), mean, variance;
  bool training = n.getInt("training_mode", 0) != 0;
  if (training && n.makeRandomKey) // Nobody would keep the statistics.
    return n.fail("not supported yet: training mode; export the model with "
                  "its BatchNorm modules in evaluation mode");
  if (training)
    std::tie(mean, variance) = batchStatistics(n, y);
  else
    std::tie(mean, variance) = std::pair(channel(3), channel(4));
  Value deviation = n.unary(
      UnaryKind::Sqrt,
      n.add(variance, n.scalarLike(n.getFloat("epsilon", 1e-5f), variance)));
  y = n.mul(n.sub(y, mean), n.div(channel(1), deviation));
  return n.cast(n.add(y, channel(2)), elementOf(x));
}

static Value importInstanceNormalization(Node &n) {
  Value x = n.input(0);
  if (rankOf(x) < 3)
    return n.fail("has an input of rank " + Twine(rankOf(x)) +
                  ", expected 3 or more");
  return layerNorm(n, x, perChannel(n, n.input(1), x),
                   perChannel(n, n.input(2), x), 2,
                   n.getFloat("epsilon", 1e-5f));
}

static Value importGroupNormalization(Node &n) {
  Value x = n.input(0);
  int64_t groups = n.getInt("num_groups", 1);
  if (rankOf(x) < 2 || groups < 1 || shapeOf(x)[1] % groups != 0)
    return n.fail("has channels that " + Twine(groups) +
                  " groups do not divide");
  Shape shape(shapeOf(x)), grouped(shape);
  grouped[1] = shape[1] / groups;
  grouped.insert(grouped.begin() + 1, groups);
  Type stash = elementTypeOf(n.getInt("stash_type", 1), n.builder.getContext());
  Value wide = n.opset >= 21 && stash ? n.cast(x, stash) : x;
  Value y = layerNorm(n, n.reshape(wide, grouped), {}, {}, 2,
                      n.getFloat("epsilon", 1e-5f));
  y = n.cast(y, elementOf(x));
  // One scale per group before operator set 21, one per channel since.
  bool perGroup = shapeOf(n.input(1)) == ArrayRef<int64_t>{groups} &&
                  groups != shape[1] && n.opset < 21;
  if (!perGroup)
    y = n.reshape(y, shape);
  y = n.mul(y, perChannel(n, n.input(1), y));
  y = n.add(y, perChannel(n, n.input(2), y));
  return n.reshape(y, shape);
}

static Value importMeanVarianceNormalization(Node &n) {
  Value x = n.input(0);
  MaybeInts given = n.getInts("axes");
  if (!given)
    given = Shape{0, 2, 3};
  MaybeInts axes = n.axes(given, rankOf(x));
  if (!axes)
    return {};
  Value mean = n.mean(x, *axes, true);
  // The operator's definition: E[x^2] - E[x]^2, and 1e-9 beside the deviation.
  Value variance = n.sub(n.mean(n.mul(x, x), *axes, true), n.mul(mean, mean));
  Value deviation =
      n.add(n.unary(UnaryKind::Sqrt, variance), n.scalarLike(1e-9, x));
  return n.div(n.sub(x, mean), deviation);
}

static Value importLpNormalization(Node &n) {
  Value x = n.input(0);
  auto axis = n.axis(n.getInt("axis", -1), rankOf(x));
  int64_t p = n.getInt("p", 2);
  if (!axis)
    return {};
  if (p != 1 && p != 2)
    return n.fail("has p of " + Twine(p) + ", expected 1 or 2");
  Value size = p == 1 ? n.unary(UnaryKind::Abs, x) : n.mul(x, x);
  Value norm = n.reduce(ReduceKind::Sum, size, {*axis}, true);
  if (p == 2)
    norm = n.unary(UnaryKind::Sqrt, norm);
  // A vector of zeros stays zero.
  Value isZero = n.compare(ComparePredicate::Eq, norm, n.scalarLike(0, norm));
  return n.div(x, n.select(isZero, n.scalarLike(1, norm), norm));
}

static Value importLRN(Node &n) {
  Value x = n.input(0);
  int64_t size = n.getInt("size", 1),
          channels = rankOf(x) > 1 ? shapeOf(x)[1] : 0;
  if (channels == 0 || size < 1 || size > 4096)
    return n.fail("has a window of " + Twine(size) + " over " +
                  Twine(channels) + " channels");
  Shape before(rankOf(x), 0), after(rankOf(x), 0), interior(rankOf(x), 0);
  before[1] = (size - 1) / 2;
  after[1] = size - 1 - before[1];
  Value squares = n.make<nn::PadOp>(n.mul(x, x), n.scalarLike(0, x), before,
                                    after, interior);
  Value sum;
  for (int64_t i = 0; i < size; ++i) {
    Value part = n.slice(squares, 1, i, i + channels);
    sum = sum ? n.add(sum, part) : part;
  }
  Value base =
      n.add(n.scalarLike(n.getFloat("bias", 1), x),
            n.mul(n.scalarLike(n.getFloat("alpha", 1e-4f) / size, x), sum));
  return n.div(x, n.binary(BinaryKind::Pow, base,
                           n.scalarLike(n.getFloat("beta", 0.75), x)));
}

void mgq::onnx::registerNorm(Registry &r) {
  r["BatchNormalization"] = importBatchNormalization;
  r["GroupNormalization"] = importGroupNormalization;
  r["Hardmax"] = importHardmax;
  r["InstanceNormalization"] = importInstanceNormalization;
  r["LRN"] = importLRN;
  r["LayerNormalization"] = importLayerNormalization;
  r["LogSoftmax"] = importLogSoftmax;
  r["LpNormalization"] = importLpNormalization;
  r["MeanVarianceNormalization"] = importMeanVarianceNormalization;
  r["RMSNormalization"] = importRMSNormalization;
  r["Softmax"] = importSoftmax;
}
