//===- Resize.cpp - Interpolation along axes ------------------------------===//
//
// Each resized axis is a product with a constant matrix [output, input] of
// interpolation weights, or a gather where one element is taken.
//
//===----------------------------------------------------------------------===//

#include "frontends/onnx/Registry.h"

#include "dialects/NN/NNElements.h"

#include "mlir/IR/Matchers.h"
#include <cmath>

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;

/// The elements of a constant float tensor, else nothing.
static std::optional<SmallVector<double>> constantFloats(Value value) {
  DenseElementsAttr attr;
  if (!value || !matchPattern(value, m_Constant(&attr)))
    return std::nullopt;
  auto type = dyn_cast<FloatType>(attr.getElementType());
  auto elements = nn::readElements(attr);
  if (!type || !elements)
    return std::nullopt;
  SmallVector<double> values;
  for (int64_t i = 0; i < attr.getNumElements(); ++i)
    values.push_back(nn::floatOfWord(elements->word(i), type));
  return values;
}

namespace {
/// One resized axis.
struct Axis {
  int64_t input, output;
  double scale;
};

/// How a Resize maps and weighs positions.
struct Rules {
  std::string coordinates, nearest;
  /// Of the kernel: 1 linear, 2 cubic.
  int radius = 1;
  double cubic = -0.75;
  bool excludeOutside = false;
};
} // namespace

/// Position in the input of element `i` of the output.
static double position(const Axis &axis, const std::string &mode, int64_t i) {
  double length = axis.scale * axis.input;
  if (mode == "align_corners")
    return length <= 1 ? 0 : i * (axis.input - 1) / (length - 1);
  if (mode == "asymmetric")
    return i / axis.scale;
  if (mode == "pytorch_half_pixel" && length <= 1)
    return 0;
  double shift = 0;
  if (mode == "half_pixel_symmetric")
    shift = axis.input / 2. * (1 - axis.output / length);
  return shift + (i + 0.5) / axis.scale - 0.5;
}

static int64_t nearest(double x, const std::string &mode) {
  if (mode == "floor")
    return std::floor(x);
  if (mode == "ceil")
    return std::ceil(x);
  bool isHalf = x - std::floor(x) == 0.5;
  if (isHalf)
    return mode == "round_prefer_ceil" ? std::ceil(x) : std::floor(x);
  return std::round(x);
}

/// Weight of an element at distance `x`.
static double weigh(const Rules &rules, double x) {
  x = std::abs(x);
  if (rules.radius == 1)
    return std::max(0., 1 - x);
  double a = rules.cubic;
  if (x <= 1)
    return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? a * (((x - 5) * x + 8) * x - 4) : 0;
}

/// The weights of all input elements for element `i` of the output.
static void fillRow(const Axis &axis, const Rules &rules, int64_t i,
                    MutableArrayRef<double> row) {
  double x = position(axis, rules.coordinates, i);
  auto middle = static_cast<int64_t>(std::floor(x));
  double sum = 0;
  for (int64_t at = middle - rules.radius; at <= middle + rules.radius; ++at) {
    bool isOutside = at < 0 || at >= axis.input;
    if (isOutside && rules.excludeOutside)
      continue;
    double weight = weigh(rules, at - x);
    row[std::clamp<int64_t>(at, 0, axis.input - 1)] += weight;
    sum += weight;
  }
  for (double &weight : row)
    weight /= sum;
}

static Value resizeNearest(Node &n, Value x, int64_t at, const Axis &axis,
                           const Rules &rules) {
  Shape indices;
  for (int64_t i = 0; i < axis.output; ++i)
    indices.push_back(std::clamp<int64_t>(
        nearest(position(axis, rules.coordinates, i), rules.nearest), 0,
        axis.input - 1));
  return n.gather(x, n.ints(indices), at);
}

static Value resizeLinear(Node &n, Value x, int64_t at, const Axis &axis,
                          const Rules &rules) {
  if (!x || !n.fitsTable(axis.output, axis.input))
    return {};
  auto element = dyn_cast<FloatType>(elementOf(x));
  if (!element)
    return n.fail("not supported yet: interpolation of integers");
  nn::Elements table{
      RankedTensorType::get({axis.output, axis.input}, element), false, {}};
  SmallVector<double> row(axis.input);
  for (int64_t i = 0; i < axis.output; ++i) {
    llvm::fill(row, 0);
    fillRow(axis, rules, i, row);
    for (double weight : row)
      table.words.push_back(nn::wordOfFloat(weight, element));
  }
  // [..., input] x [input, output] with the axis moved last and back.
  Shape swap = llvm::to_vector(llvm::seq<int64_t>(0, rankOf(x)));
  std::swap(swap[at], swap.back());
  Value product =
      n.matmul(n.transpose(x, swap), n.constant(nn::writeElements(table)),
               /*transposeA=*/false, /*transposeB=*/true);
  return n.transpose(product, swap);
}

/// The axes that are resized, each at most once, or failure with a report.
static std::optional<SmallVector<Axis>> readAxes(Node &n, const Shape &at) {
  Value x = n.input(0);
  bool old = n.opset < 11;
  auto scales = constantFloats(n.input(old ? 1 : 2));
  MaybeInts sizes = old ? std::nullopt : n.constantInts(n.input(3));
  auto isGiven = [&](const auto &list) { return list && !list->empty(); };
  size_t count = isGiven(sizes)    ? sizes->size()
                 : isGiven(scales) ? scales->size()
                                   : 0;
  if (count != at.size()) {
    n.fail("not supported yet: sizes or scales that are not known at compile "
           "time, one per axis");
    return std::nullopt;
  }
  // Far above any size; NaN is refused as well.
  constexpr double maxLength = 1e9;
  SmallVector<Axis> axes;
  for (size_t i = 0; i < count; ++i) {
    int64_t dim = shapeOf(x)[at[i]];
    double length = isGiven(sizes) ? (*sizes)[i] : dim * (*scales)[i];
    if (!(dim >= 1 && length >= 1 && length < maxLength)) {
      n.fail("not supported yet: from " + Twine(dim) + " elements to " +
             std::to_string(length));
      return std::nullopt;
    }
    if (isGiven(sizes))
      axes.push_back({dim, (*sizes)[i], double((*sizes)[i]) / dim});
    else
      axes.push_back(
          {dim, int64_t(std::floor(dim * (*scales)[i])), (*scales)[i]});
  }
  std::string policy = n.getString("keep_aspect_ratio_policy", "stretch");
  if (isGiven(sizes) && policy != "stretch") {
    double scale = axes.front().scale;
    for (const Axis &axis : axes)
      scale = policy == "not_larger" ? std::min(scale, axis.scale)
                                     : std::max(scale, axis.scale);
    for (Axis &axis : axes) {
      axis.scale = scale;
      axis.output = std::floor(axis.input * scale + 0.5);
    }
  }
  for (const Axis &axis : axes)
    if (axis.output < 1 || axis.output > maxLength) {
      n.fail("resizes " + Twine(axis.input) + " to " + Twine(axis.output) +
             " elements");
      return std::nullopt;
    }
  return axes;
}

static Value importResize(Node &n) {
  Value x = n.input(0);
  MaybeInts at = n.getInts("axes");
  if (!at)
    at = llvm::to_vector(llvm::seq<int64_t>(0, rankOf(x)));
  for (int64_t &one : *at) {
    auto axis = n.axis(one, rankOf(x));
    if (!axis)
      return {};
    one = *axis;
  }
  std::string mode = n.getString("mode", "nearest");
  Rules rules;
  rules.coordinates =
      n.opset < 11
          ? "asymmetric"
          : n.getString("coordinate_transformation_mode", "half_pixel");
  rules.nearest = n.opset < 11
                      ? "floor"
                      : n.getString("nearest_mode", "round_prefer_floor");
  rules.radius = mode == "cubic" ? 2 : 1;
  rules.cubic = n.getFloat("cubic_coeff_a", -0.75);
  rules.excludeOutside = n.getInt("exclude_outside", 0) != 0;
  if (n.getInt("antialias", 0) != 0)
    return n.fail("not supported yet: antialias");
  if (rules.coordinates == "tf_crop_and_resize")
    return n.fail("not supported yet: tf_crop_and_resize");
  auto axes = readAxes(n, *at);
  if (!axes)
    return {};
  for (auto [index, axis] : llvm::zip_equal(*at, *axes)) {
    if (axis.input == axis.output && axis.scale == 1)
      continue;
    x = mode == "nearest" ? resizeNearest(n, x, index, axis, rules)
                          : resizeLinear(n, x, index, axis, rules);
  }
  return x;
}

void mgq::onnx::registerResize(Registry &r) { r["Resize"] = importResize; }
