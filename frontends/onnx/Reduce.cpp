//===- Reduce.cpp - Reductions and running sums ---------------------------===//

#include "frontends/onnx/Registry.h"

#include "dialects/NN/NNElements.h"

#include <cmath>

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;
using mgq::nn::BinaryKind;
using mgq::nn::ReduceKind;
using mgq::nn::UnaryKind;

namespace {
/// Input, axes and keepdims of a Reduce operator.
struct Reduction {
  Value x;
  Shape axes;
  bool keepDims = true;
};
} // namespace

static std::optional<Reduction> reductionOf(Node &n) {
  Reduction r{n.input(0), {}, n.getInt("keepdims", 1) != 0};
  MaybeInts given = n.intsOf("axes", 1);
  if (n.hasFailed() || !r.x)
    return std::nullopt;
  if ((!given || given->empty()) && n.getInt("noop_with_empty_axes", 0) != 0)
    return r;
  MaybeInts axes = n.axes(given, rankOf(r.x));
  if (!axes)
    return std::nullopt;
  r.axes = *axes;
  return r;
}

/// What a reduction of nothing gives.
static Value neutral(Node &n, ReduceKind kind, ArrayRef<int64_t> shape,
                     Type element) {
  if (kind == ReduceKind::Sum || kind == ReduceKind::Prod)
    return n.splat(kind == ReduceKind::Prod, shape, element);
  bool isMax = kind == ReduceKind::Max;
  if (isa<FloatType>(element))
    return n.splat(isMax ? -INFINITY : INFINITY, shape, element);
  auto type = cast<IntegerType>(element);
  unsigned width = type.getWidth();
  bool isUnsigned = type.isUnsigned() || width == 1;
  APInt value = isMax ? (isUnsigned ? APInt::getMinValue(width)
                                    : APInt::getSignedMinValue(width))
                      : (isUnsigned ? APInt::getMaxValue(width)
                                    : APInt::getSignedMaxValue(width));
  return n.constant(
      DenseElementsAttr::get(RankedTensorType::get(shape, element), value));
}

static Value reduce(Node &n, ReduceKind kind, const Reduction &r) {
  if (!r.x)
    return {};
  if (typeOf(r.x).getNumElements() == 0) {
    Shape shape;
    for (auto [index, dim] : llvm::enumerate(shapeOf(r.x)))
      if (!llvm::is_contained(r.axes, int64_t(index)))
        shape.push_back(dim);
      else if (r.keepDims)
        shape.push_back(1);
    return neutral(n, kind, shape, elementOf(r.x));
  }
  // Booleans: max is or, min is and.
  if (elementOf(r.x).isInteger(1)) {
    Reduction wide = r;
    wide.x = n.cast(r.x, n.builder.getI32Type());
    return n.cast(reduce(n, kind, wide), elementOf(r.x));
  }
  return n.reduce(kind, r.x, r.axes, r.keepDims);
}

template <ReduceKind kind>
static Value importReduce(Node &n) {
  auto r = reductionOf(n);
  return r ? reduce(n, kind, *r) : Value();
}

static Value importReduceMean(Node &n) {
  auto r = reductionOf(n);
  return r ? n.mean(r->x, r->axes, r->keepDims) : Value();
}

static Value importReduceL1(Node &n) {
  auto r = reductionOf(n);
  if (!r)
    return {};
  r->x = n.unary(UnaryKind::Abs, r->x);
  return reduce(n, ReduceKind::Sum, *r);
}

static Value importReduceSumSquare(Node &n) {
  auto r = reductionOf(n);
  if (!r)
    return {};
  r->x = n.mul(r->x, r->x);
  return reduce(n, ReduceKind::Sum, *r);
}

static Value importReduceL2(Node &n) {
  Value squares = importReduceSumSquare(n);
  if (!squares || isFloat(squares))
    return n.unary(UnaryKind::Sqrt, squares);
  Value root =
      n.unary(UnaryKind::Sqrt, n.cast(squares, n.builder.getF64Type()));
  return n.cast(root, elementOf(squares));
}

static Value importReduceLogSum(Node &n) {
  return n.unary(UnaryKind::Log, importReduce<ReduceKind::Sum>(n));
}

static Value importReduceLogSumExp(Node &n) {
  auto r = reductionOf(n);
  if (!r)
    return {};
  // Shifted by the maximum, unless that is infinite.
  Reduction top = *r;
  top.keepDims = true;
  Value shift = reduce(n, ReduceKind::Max, top);
  shift =
      n.select(n.unary(UnaryKind::IsInf, shift), n.scalarLike(0, shift), shift);
  Reduction sum = *r;
  sum.x = n.unary(UnaryKind::Exp, n.sub(r->x, shift));
  Value log = n.unary(UnaryKind::Log, reduce(n, ReduceKind::Sum, sum));
  return n.add(log, n.reshape(shift, shapeOf(log)));
}

template <ReduceKind kind>
static Value importArgReduce(Node &n) {
  auto axis = n.axis(n.getInt("axis", 0), rankOf(n.input(0)));
  if (!axis)
    return {};
  auto flag = [&](StringRef name, int64_t otherwise) {
    return n.getInt(name, otherwise) ? n.builder.getUnitAttr() : UnitAttr();
  };
  return n.make<nn::ArgReduceOp>(
      nn::ReduceKindAttr::get(n.builder.getContext(), kind), n.input(0),
      n.builder.getI64IntegerAttr(*axis), flag("keepdims", 1),
      flag("select_last_index", 0));
}

/// The k largest or smallest elements along an axis. An element's place is the
/// number of those before it, found by comparing all pairs.
static Value importTopK(Node &n) {
  Value x = n.input(0);
  auto axis = n.axis(n.getInt("axis", -1), rankOf(x));
  MaybeInts count =
      n.opset < 10 ? MaybeInts(Shape{n.getInt("k", 0)}) : n.needInts(1, "k");
  if (!axis || !count || count->size() != 1)
    return {};
  int64_t size = shapeOf(x)[*axis], k = count->front();
  constexpr int64_t maxSize = 4096;
  if (k < 0 || k > size)
    return n.fail("takes " + Twine(k) + " of " + Twine(size) + " elements");
  if (size > maxSize)
    return n.fail("not supported yet: the largest of more than " +
                  Twine(maxSize) + " elements");
  // [..., this, other]
  Shape shape(shapeOf(x));
  Shape toLast = llvm::to_vector(llvm::seq<int64_t>(0, rankOf(x)));
  std::swap(toLast[*axis], toLast.back());
  Value moved = n.transpose(x, toLast);
  if (!moved)
    return {};
  Shape asRow(shapeOf(moved)), asColumn(asRow);
  asRow.insert(asRow.end() - 1, 1);
  asColumn.push_back(1);
  Value self = n.reshape(moved, asColumn), other = n.reshape(moved, asRow);
  Value numbers = n.ints(llvm::to_vector(llvm::seq<int64_t>(0, size)));
  Value column = n.reshape(numbers, {size, 1});
  bool largest = n.getInt("largest", 1) != 0;
  Value before =
      n.compare(largest ? nn::ComparePredicate::Gt : nn::ComparePredicate::Lt,
                other, self);
  Value equal = n.compare(nn::ComparePredicate::Eq, other, self);
  Value earlier = n.compare(nn::ComparePredicate::Lt, numbers, column);
  Type i64 = n.builder.getI64Type();
  Value isBefore = n.select(equal, n.cast(earlier, i64), n.cast(before, i64));
  int64_t last = rankOf(x);
  Value place = n.reduce(ReduceKind::Sum, isBefore, {last}, true);
  // Sum of i over the one i whose place is j: [..., i, j], then over i.
  Value places = n.ints(llvm::to_vector(llvm::seq<int64_t>(0, k)));
  Value hit = n.compare(nn::ComparePredicate::Eq, place, places);
  Value indices =
      n.reduce(ReduceKind::Sum, n.select(hit, column, n.scalarLike(0, column)),
               {last - 1}, false);
  indices = n.transpose(indices, toLast);
  Value values = n.make<nn::GatherElementsOp>(x, indices, *axis);
  n.set(0, values);
  n.set(1, indices);
  return values;
}

static Value importCumSum(Node &n) {
  MaybeInts at = n.needInts(1, "axis");
  if (!at || at->size() != 1)
    return {};
  auto axis = n.axis(at->front(), rankOf(n.input(0)));
  if (!axis)
    return {};
  auto flag = [&](StringRef name) {
    return n.getInt(name, 0) ? n.builder.getUnitAttr() : UnitAttr();
  };
  return n.make<nn::CumsumOp>(n.input(0), n.builder.getI64IntegerAttr(*axis),
                              flag("exclusive"), flag("reverse"));
}

void mgq::onnx::registerReduce(Registry &r) {
  r["ArgMax"] = importArgReduce<ReduceKind::Max>;
  r["ArgMin"] = importArgReduce<ReduceKind::Min>;
  r["CumSum"] = importCumSum;
  r["TopK"] = importTopK;
  r["ReduceL1"] = importReduceL1;
  r["ReduceL2"] = importReduceL2;
  r["ReduceLogSum"] = importReduceLogSum;
  r["ReduceLogSumExp"] = importReduceLogSumExp;
  r["ReduceMax"] = importReduce<ReduceKind::Max>;
  r["ReduceMean"] = importReduceMean;
  r["ReduceMin"] = importReduce<ReduceKind::Min>;
  r["ReduceProd"] = importReduce<ReduceKind::Prod>;
  r["ReduceSum"] = importReduce<ReduceKind::Sum>;
  r["ReduceSumSquare"] = importReduceSumSquare;
}
