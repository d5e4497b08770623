//===- Movement.cpp - Operators that move data ----------------------------===//

#include "frontends/onnx/Registry.h"

#include "dialects/NN/NNElements.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::ComparePredicate;
using mgq::nn::Elements;
using mgq::nn::ScatterKind;

static Value importTranspose(Node &n) {
  Value x = n.input(0);
  MaybeInts permutation = n.getInts("perm");
  if (!permutation)
    permutation =
        llvm::to_vector(llvm::reverse(llvm::seq<int64_t>(0, rankOf(x))));
  return n.transpose(x, *permutation);
}

static Value importConcat(Node &n) {
  if (n.inputs.empty())
    return n.fail("has no inputs");
  auto axis = n.axis(n.getInt("axis", 1), rankOf(n.input(0)));
  return axis ? n.concat(n.inputs, *axis) : Value();
}

//===----------------------------------------------------------------------===//
// Slice, Split
//===----------------------------------------------------------------------===//

/// Clamps the bounds of one axis as ONNX's Slice does.
static void clampBounds(int64_t dim, int64_t &start, int64_t &end,
                        int64_t &step) {
  if (dim == 0) {
    start = end = 0;
    step = 1;
    return;
  }
  int64_t low = step > 0 ? 0 : -1, high = step > 0 ? dim : dim - 1;
  if (start < 0)
    start += dim;
  if (end < 0)
    end += dim;
  // A longer step than the dimension takes one element all the same.
  step = std::clamp(step, -dim - 1, dim + 1);
  start = std::clamp(start, step > 0 ? low : 0, high);
  end = std::clamp(end, low, high);
  if (step > 0 ? end < start : end > start)
    end = start;
}

/// A slice whose bounds are computed from data.
static Value dynamicSlice(Node &n, MaybeInts axes) {
  Value x = n.input(0), starts = n.input(1), ends = n.input(2);
  if (!x || !starts || !ends)
    return n.fail("has no bounds");
  int64_t count = shapeOf(starts).empty() ? 0 : shapeOf(starts).front();
  if (rankOf(starts) != 1 || ShapedType::isDynamic(count))
    return n.fail("not supported yet: a number of axes that depends on data");
  Shape shape(shapeOf(x));
  if (!axes)
    axes = llvm::to_vector(llvm::seq<int64_t>(0, count));
  for (int64_t one : *axes) {
    auto axis = n.axis(one, rankOf(x));
    if (!axis)
      return {};
    shape[*axis] = ShapedType::kDynamic;
  }
  Value axesValue = n.input(3) ? n.input(3) : n.ints(*axes);
  Value steps = n.input(4) ? n.input(4) : n.ints(Shape(count, 1));
  return n.makeTyped<nn::DynamicSliceOp>(typeOf(x).clone(shape), x, starts,
                                         ends, axesValue, steps);
}

static Value importSlice(Node &n) {
  Value x = n.input(0);
  bool old = n.opset < 10;
  MaybeInts starts = old ? n.getInts("starts") : n.constantInts(n.input(1));
  MaybeInts ends = old ? n.getInts("ends") : n.constantInts(n.input(2));
  MaybeInts axes = old ? n.getInts("axes") : n.constantInts(n.input(3));
  MaybeInts steps = n.constantInts(n.input(4));
  if (!starts || !ends || (n.input(3) && !axes) || (n.input(4) && !steps))
    return dynamicSlice(n, axes);
  if (starts->size() != ends->size() ||
      (axes && axes->size() != starts->size()) ||
      (steps && steps->size() != starts->size()))
    return n.fail("has bounds of different lengths");
  Shape from(rankOf(x), 0), to(shapeOf(x)), by(rankOf(x), 1);
  for (size_t i = 0; i < starts->size(); ++i) {
    auto axis = n.axis(axes ? (*axes)[i] : i, rankOf(x));
    if (!axis)
      return {};
    int64_t start = (*starts)[i], end = (*ends)[i],
            step = steps ? (*steps)[i] : 1;
    if (step == 0)
      return n.fail("has a step of 0");
    clampBounds(shapeOf(x)[*axis], start, end, step);
    from[*axis] = start;
    to[*axis] = end;
    by[*axis] = step;
  }
  return n.make<nn::SliceOp>(x, from, to, by);
}

static Value importSplit(Node &n) {
  Value x = n.input(0);
  auto axis = n.axis(n.getInt("axis", 0), rankOf(x));
  MaybeInts sizes = n.intsOf("split", 1);
  if (!axis || n.hasFailed())
    return {};
  int64_t dim = shapeOf(x)[*axis], count = n.proto.output_size();
  if (!sizes) {
    // The last part is smaller where the division leaves a rest.
    count = n.getInt("num_outputs", count);
    if (count < 1 || count > n.proto.output_size())
      return n.fail("splits into " + Twine(count) + " parts for " +
                    Twine(n.proto.output_size()) + " outputs");
    int64_t part = (dim + count - 1) / count;
    sizes.emplace();
    for (int64_t i = 0; i < count; ++i)
      sizes->push_back(std::clamp<int64_t>(dim - i * part, 0, part));
  }
  int64_t at = 0;
  for (auto [index, size] : llvm::enumerate(*sizes)) {
    if (size < 0 || at + size > dim)
      return n.fail("splits " + Twine(dim) +
                    " elements into parts that sum up "
                    "to more");
    n.set(index, n.slice(x, *axis, at, at + size));
    at += size;
  }
  if (at != dim || n.results.empty())
    return n.fail("splits " + Twine(dim) + " elements into parts of " +
                  Twine(at) + " in all");
  return n.results.front();
}

//===----------------------------------------------------------------------===//
// Gather, scatter
//===----------------------------------------------------------------------===//

/// Indices as i32 or i64.
static Value indexInput(Node &n, unsigned index) {
  Value indices = n.input(index);
  Type element = elementOf(indices);
  if (!element || element.isInteger(32) || element.isInteger(64))
    return indices;
  return n.cast(indices, n.builder.getI64Type());
}

static Value importGather(Node &n) {
  auto axis = n.axis(n.getInt("axis", 0), rankOf(n.input(0)));
  return axis ? n.gather(n.input(0), indexInput(n, 1), *axis) : Value();
}

static Value importGatherElements(Node &n) {
  auto axis = n.axis(n.getInt("axis", 0), rankOf(n.input(0)));
  return axis
             ? n.make<nn::GatherElementsOp>(n.input(0), indexInput(n, 1), *axis)
             : Value();
}

static Value importGatherND(Node &n) {
  return n.make<nn::GatherNDOp>(n.input(0), indexInput(n, 1),
                                n.getInt("batch_dims", 0));
}

static std::optional<nn::ScatterKindAttr> scatterKind(Node &n) {
  std::string text = n.getString("reduction", "none");
  auto kind = nn::symbolizeScatterKind(text == "none" ? "replace" : text);
  if (!kind) {
    n.fail("not supported yet: reduction '" + text + "'");
    return std::nullopt;
  }
  return nn::ScatterKindAttr::get(n.builder.getContext(), *kind);
}

static Value importScatterElements(Node &n) {
  auto axis = n.axis(n.getInt("axis", 0), rankOf(n.input(0)));
  auto kind = scatterKind(n);
  if (!axis || !kind)
    return {};
  return n.make<nn::ScatterElementsOp>(*kind, n.input(0), indexInput(n, 1),
                                       n.input(2),
                                       n.builder.getI64IntegerAttr(*axis));
}

static Value importScatterND(Node &n) {
  auto kind = scatterKind(n);
  if (!kind)
    return {};
  return n.make<nn::ScatterNDOp>(*kind, n.input(0), indexInput(n, 1),
                                 n.input(2), n.builder.getI64IntegerAttr(0));
}

//===----------------------------------------------------------------------===//
// Pad, Tile
//===----------------------------------------------------------------------===//

/// Index into a dimension of `size` for position `at` outside it.
static int64_t borderIndex(StringRef mode, int64_t at, int64_t size) {
  if (mode == "edge")
    return std::clamp<int64_t>(at, 0, size - 1);
  if (mode == "wrap")
    return ((at % size) + size) % size;
  if (size == 1)
    return 0;
  int64_t period = 2 * (size - 1);
  int64_t folded = ((at % period) + period) % period;
  return folded < size ? folded : period - folded;
}

static Value padByConstant(Node &n, Value x, ArrayRef<int64_t> before,
                           ArrayRef<int64_t> after) {
  Value value = n.opset < 11 ? n.scalarLike(n.getFloat("value", 0), x)
                : n.input(2) ? n.reshape(n.input(2), {})
                             : n.scalarLike(0, x);
  Shape interior(rankOf(x), 0);
  return n.make<nn::PadOp>(x, value, before, after, interior);
}

static Value importPad(Node &n) {
  Value x = n.input(0);
  std::string mode = n.getString("mode", "constant");
  MaybeInts pads = n.opset < 11 ? n.getInts("pads") : n.needInts(1, "pads");
  MaybeInts axes;
  if (n.input(3))
    axes = n.needInts(3, "axes");
  if (!pads || n.hasFailed() || !x)
    return n.fail("has no pads");
  int64_t rank = rankOf(x);
  if (!axes)
    axes = llvm::to_vector(llvm::seq<int64_t>(0, rank));
  if (pads->size() != 2 * axes->size())
    return n.fail("has " + Twine(pads->size()) + " pads, expected " +
                  Twine(2 * axes->size()));
  Shape before(rank, 0), after(rank, 0), from(rank, 0), to(shapeOf(x)),
      by(rank, 1);
  for (auto [index, one] : llvm::enumerate(*axes)) {
    auto axis = n.axis(one, rank);
    if (!axis)
      return {};
    // A negative pad cuts elements off.
    int64_t left = (*pads)[index], right = (*pads)[index + axes->size()];
    from[*axis] = std::max<int64_t>(-left, 0);
    to[*axis] -= std::max<int64_t>(-right, 0);
    before[*axis] = std::max<int64_t>(left, 0);
    after[*axis] = std::max<int64_t>(right, 0);
  }
  x = n.make<nn::SliceOp>(x, from, to, by);
  if (mode == "constant")
    return padByConstant(n, x, before, after);
  if (mode != "edge" && mode != "reflect" && mode != "wrap")
    return n.fail("not supported yet: mode '" + mode + "'");
  for (int64_t axis = 0; x && axis < rank; ++axis) {
    int64_t size = shapeOf(x)[axis];
    if (before[axis] == 0 && after[axis] == 0)
      continue;
    if (size == 0)
      return n.fail("pads an empty dimension by mode '" + mode + "'");
    if (!n.fitsTable(before[axis]) || !n.fitsTable(after[axis]) ||
        !n.fitsTable(size))
      return {};
    Shape indices;
    for (int64_t at = -before[axis]; at < size + after[axis]; ++at)
      indices.push_back(borderIndex(mode, at, size));
    x = n.gather(x, n.ints(indices), axis);
  }
  return x;
}

static Value importTile(Node &n) {
  Value x = n.input(0);
  MaybeInts repeats = n.needInts(1, "repeats");
  if (!repeats || int64_t(repeats->size()) != rankOf(x))
    return n.fail("has not one repeat per dimension");
  Shape split, wide, joined;
  for (auto [dim, repeat] : llvm::zip_equal(shapeOf(x), *repeats)) {
    split.append({1, dim});
    wide.append({repeat, dim});
    joined.push_back(repeat * dim);
  }
  return n.reshape(n.broadcast(n.reshape(x, split), wide), joined);
}

//===----------------------------------------------------------------------===//
// Masks and blocks
//===----------------------------------------------------------------------===//

static Value importTrilu(Node &n) {
  Value x = n.input(0);
  if (rankOf(x) < 2)
    return n.fail("has an input of rank " + Twine(rankOf(x)) +
                  ", expected 2 or more");
  int64_t k = 0;
  if (n.input(1)) {
    MaybeInts given = n.needInts(1, "k");
    if (!given || given->size() != 1)
      return {};
    k = given->front();
  }
  bool upper = n.getInt("upper", 1) != 0;
  int64_t rows = shapeOf(x)[rankOf(x) - 2], columns = shapeOf(x).back();
  if (!n.fitsTable(rows, columns))
    return {};
  auto type = RankedTensorType::get({rows, columns}, n.builder.getI1Type());
  Elements mask{type, false, {}};
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      mask.words.push_back(upper ? j - i >= k : j - i <= k);
  return n.select(n.constant(nn::writeElements(mask)), x, n.scalarLike(0, x));
}

static Value importOneHot(Node &n) {
  Value indices = n.cast(n.input(0), n.builder.getI64Type());
  Value values = n.input(2);
  int64_t rank = rankOf(indices) + 1;
  auto axis = n.axis(n.getInt("axis", -1), rank);
  std::optional<double> depthFloat = n.constantFloat(n.input(1));
  MaybeInts depth = depthFloat ? MaybeInts(Shape{int64_t(*depthFloat)})
                               : n.needInts(1, "depth");
  if (!axis || !depth || depth->size() != 1)
    return {};
  // A negative index counts from the end.
  int64_t classes = depth->front();
  if (!n.fitsTable(classes))
    return {};
  Value zero = n.scalarLike(0, indices);
  indices = n.select(n.compare(ComparePredicate::Lt, indices, zero),
                     n.add(indices, n.scalarLike(classes, indices)), indices);
  Shape shape(shapeOf(indices)), line(rank, 1);
  shape.insert(shape.begin() + *axis, 1);
  line[*axis] = classes;
  Value numbers =
      n.reshape(n.ints(llvm::to_vector(llvm::seq<int64_t>(0, classes))), line);
  Value hit =
      n.compare(ComparePredicate::Eq, n.reshape(indices, shape), numbers);
  return n.select(hit, n.reshape(n.slice(values, 0, 1, 2), {}),
                  n.reshape(n.slice(values, 0, 0, 1), {}));
}

/// Larger blocks fit no picture, and their square would overflow.
static constexpr int64_t kMaxBlock = 1 << 15;

static Value importDepthToSpace(Node &n) {
  Value x = n.input(0);
  int64_t b = n.getInt("blocksize", 1);
  if (rankOf(x) != 4 || b < 1 || b > kMaxBlock || shapeOf(x)[1] % (b * b) != 0)
    return n.fail("has channels that blocks of " + Twine(b) + " do not divide");
  auto d = shapeOf(x);
  int64_t batch = d[0], c = d[1] / (b * b), h = d[2], w = d[3];
  bool columnFirst = n.getString("mode", "DCR") == "CRD";
  Value y = columnFirst ? n.transpose(n.reshape(x, {batch, c, b, b, h, w}),
                                      {0, 1, 4, 2, 5, 3})
                        : n.transpose(n.reshape(x, {batch, b, b, c, h, w}),
                                      {0, 3, 4, 1, 5, 2});
  return n.reshape(y, {batch, c, h * b, w * b});
}

static Value importSpaceToDepth(Node &n) {
  Value x = n.input(0);
  int64_t b = n.getInt("blocksize", 1);
  if (rankOf(x) != 4 || b < 1 || b > kMaxBlock || shapeOf(x)[2] % b != 0 ||
      shapeOf(x)[3] % b != 0)
    return n.fail("has a picture that blocks of " + Twine(b) +
                  " do not divide");
  auto d = shapeOf(x);
  int64_t batch = d[0], c = d[1], h = d[2] / b, w = d[3] / b;
  bool columnFirst = n.getString("mode", "DCR") == "CRD";
  Shape order = columnFirst ? Shape{0, 1, 3, 5, 2, 4} : Shape{0, 3, 5, 1, 2, 4};
  Value y = n.transpose(n.reshape(x, {batch, c, h, b, w, b}), order);
  return n.reshape(y, {batch, c * b * b, h, w});
}

void mgq::onnx::registerMovement(Registry &r) {
  r["Concat"] = importConcat;
  r["DepthToSpace"] = importDepthToSpace;
  r["Gather"] = importGather;
  r["GatherElements"] = importGatherElements;
  r["GatherND"] = importGatherND;
  r["OneHot"] = importOneHot;
  r["Pad"] = importPad;
  r["Scatter"] = importScatterElements;
  r["ScatterElements"] = importScatterElements;
  r["ScatterND"] = importScatterND;
  r["Slice"] = importSlice;
  r["SpaceToDepth"] = importSpaceToDepth;
  r["Split"] = importSplit;
  r["Tile"] = importTile;
  r["Transpose"] = importTranspose;
  r["Trilu"] = importTrilu;
}
