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

namespace {
/// Where the windows of a pooling node lie.
struct PoolWindow {
  Shape kernel;
  Window declared;         ///< as the node says
  Window window;           ///< pads grown for what ceil_mode adds
  Shape counts;            ///< windows per spatial dimension
  bool reachesOut = false; ///< whether the last one ends behind the padding
};
} // namespace

/// With ceil_mode the last window may reach past the padding.
static std::optional<PoolWindow> poolWindow(Node &n, Value x) {
  MaybeInts kernel = n.getInts("kernel_shape");
  if (!x || !kernel) {
    n.fail("has no kernel_shape");
    return std::nullopt;
  }
  auto declared = windowOf(n, x, *kernel);
  if (!declared)
    return std::nullopt;
  PoolWindow result{*kernel, *declared, *declared, {}};
  Window &window = result.window;
  bool ceil = n.getInt("ceil_mode", 0) != 0;
  for (size_t i = 0; i < kernel->size(); ++i) {
    int64_t size = shapeOf(x)[2 + i], stride = window.strides[i];
    int64_t before = window.before[i];
    int64_t extent = ((*kernel)[i] - 1) * window.dilations[i] + 1;
    int64_t room = size + before + window.after[i] - extent;
    if (room < 0) {
      n.fail("has a window larger than its padded input");
      return std::nullopt;
    }
    int64_t count = (ceil ? (room + stride - 1) / stride : room / stride) + 1;
    // A window must not start in the padding behind the input.
    if (ceil && (count - 1) * stride >= size + before)
      --count;
    int64_t missing = (count - 1) * stride - room;
    if (missing > 0) {
      window.after[i] += missing;
      result.reachesOut = true;
    }
    result.counts.push_back(count);
  }
  return result;
}

/// A pool of `x`.
static Value pool(Node &n, PoolKind kind, Value x, bool countPadding) {
  auto where = poolWindow(n, x);
  if (!where)
    return {};
  Window window = where->window;
  if (where->reachesOut && countPadding && kind == PoolKind::Average) {
    // Declared pads count, what ceil_mode adds does not: make pads elements.
    const Window &declared = where->declared;
    Shape before{0, 0}, after{0, 0}, none(rankOf(x), 0);
    before.append(declared.before);
    after.append(declared.after);
    x = n.make<nn::PadOp>(x, n.scalarLike(0, x), before, after, none);
    for (size_t i = 0; i < where->kernel.size(); ++i) {
      window.before[i] = 0;
      window.after[i] -= declared.after[i];
    }
    countPadding = false;
  }
  if (!x)
    return {};
  Shape shape(shapeOf(x).take_front(2));
  shape.append(where->counts);
  return n.makeTyped<nn::PoolOp>(
      typeOf(x).clone(shape),
      nn::PoolKindAttr::get(n.builder.getContext(), kind), x,
      n.builder.getDenseI64ArrayAttr(where->kernel),
      n.builder.getDenseI64ArrayAttr(window.strides),
      n.builder.getDenseI64ArrayAttr(window.dilations),
      n.builder.getDenseI64ArrayAttr(window.before),
      n.builder.getDenseI64ArrayAttr(window.after),
      n.builder.getI64IntegerAttr(1),
      countPadding ? n.builder.getUnitAttr() : UnitAttr());
}

/// Counts up the indices of `shape` in row-major order; false after the last.
static bool advance(Shape &index, ArrayRef<int64_t> shape) {
  for (size_t i = shape.size(); i-- > 0;) {
    if (++index[i] < shape[i])
      return true;
    index[i] = 0;
  }
  return false;
}

namespace {
/// [windows x elements of one] -> index in the spatial dimensions, row-major
/// and in the order the node asks for. Elements in the padding are replaced by
/// the first one inside, so that they never win alone.
struct WindowTable {
  SmallVector<int64_t> from, places;
};
} // namespace

static WindowTable windowTable(const PoolWindow &where,
                               ArrayRef<int64_t> spatial, bool columnMajor) {
  WindowTable table;
  Shape at(spatial.size(), 0);
  do {
    size_t begin = table.from.size(), missing = 0;
    Shape element(spatial.size(), 0);
    do {
      int64_t row = 0, column = 0, columnStride = 1;
      bool inside = true;
      for (size_t i = 0; i < spatial.size(); ++i) {
        int64_t k = at[i] * where.window.strides[i] +
                    element[i] * where.window.dilations[i] -
                    where.window.before[i];
        inside &= k >= 0 && k < spatial[i];
        row = row * spatial[i] + k;
        column += k * columnStride;
        columnStride *= spatial[i];
      }
      if (inside) {
        table.from.push_back(row);
        table.places.push_back(columnMajor ? column : row);
      } else {
        ++missing;
      }
    } while (advance(element, where.kernel));
    bool none = begin == table.from.size();
    table.from.append(missing, none ? 0 : table.from[begin]);
    table.places.append(missing, none ? 0 : table.places[begin]);
  } while (advance(at, where.counts));
  return table;
}

/// Where in the flattened `x` the maximum of each window is: the elements of
/// windows are gathered into rows, and the place of a row's maximum is read
/// from a table.
static Value maxIndices(Node &n, Value x) {
  auto where = poolWindow(n, x);
  if (!where)
    return {};
  ArrayRef<int64_t> spatial = shapeOf(x).drop_front(2);
  int64_t planes = shapeOf(x)[0] * shapeOf(x)[1];
  auto product = [](ArrayRef<int64_t> sizes) {
    int64_t result = 1;
    for (int64_t size : sizes)
      result *= size;
    return result;
  };
  int64_t windows = product(where->counts), size = product(where->kernel);
  int64_t plane = product(spatial);
  if (!n.fitsTable(windows, size))
    return {};
  WindowTable table =
      windowTable(*where, spatial, n.getInt("storage_order", 0) != 0);
  Value from = n.reshape(n.ints(table.from), {windows, size});
  Value rows = n.gather(n.reshape(x, {planes, plane}), from, 1);
  Value best = n.make<nn::ArgReduceOp>(
      nn::ReduceKindAttr::get(n.builder.getContext(), ReduceKind::Max), rows,
      n.builder.getI64IntegerAttr(2), UnitAttr(), UnitAttr());
  SmallVector<int64_t> firsts, starts;
  for (int64_t i = 0; i < windows; ++i)
    firsts.push_back(i * size);
  for (int64_t i = 0; i < planes; ++i)
    starts.push_back(i * plane);
  Value places = n.gather(n.ints(table.places), n.add(best, n.ints(firsts)), 0);
  places = n.add(places, n.reshape(n.ints(starts), {planes, 1}));
  Shape shape(shapeOf(x).take_front(2));
  shape.append(where->counts);
  return n.reshape(places, shape);
}

static Value importMaxPool(Node &n) {
  if (n.wantsOutput(1))
    n.set(1, maxIndices(n, n.input(0)));
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
