//===- LowerLinear.cpp - Products and convolutions to kern.matmul ---------===//
//
// A convolution is a product with the unfolded input (im2col). Columns are
// [batch, groups, channels / groups x window, positions].
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

static int64_t elementCount(ArrayRef<int64_t> shape) {
  return ShapedType::getNumElements(shape);
}

/// To the element type the nn op wants.
static Value finish(Lowering &l, Value value, Value result) {
  value = l.reshape(value, shapeOf(result));
  Type element = signless(elementOf(result));
  if (elementOf(value) == element)
    return value;
  bool toUnsigned = isUnsigned(result.getType());
  return l.elementwise(shapeOf(value), element, value,
                       [&](ScalarBuilder &s, ValueRange in) {
                         return s.cast(in[0], element, toUnsigned, toUnsigned);
                       });
}

LogicalResult kernels::lower(Lowering &l, nn::MatmulOp op) {
  Value a = l.getStored(op.getLhs()), b = l.getStored(op.getRhs());
  bool ta = op.getTransposeA(), tb = op.getTransposeB();
  ArrayRef<int64_t> sa = shapeOf(a), sb = shapeOf(b);
  ArrayRef<int64_t> la = sa.drop_back(2), lb = sb.drop_back(2);
  ArrayRef<int64_t> lead = shapeOf(op.getResult()).drop_back(2);
  auto matrices = [&](Value value, ArrayRef<int64_t> shape, bool batched) {
    SmallVector<int64_t> to(shape.take_back(2));
    if (batched)
      to.insert(to.begin(), elementCount(shape.drop_back(2)));
    return l.reshape(value, to);
  };
  Value result;
  if (elementCount(lb) == 1 && !ta) {
    // Rows of all batches are rows of one product.
    a = l.reshape(a, {elementCount(sa.drop_back()), sa.back()});
    result = l.product(a, matrices(b, sb, false), false, tb);
  } else if (elementCount(la) == 1 || elementCount(lb) == 1 || la == lb) {
    bool batchA = elementCount(la) != 1, batchB = elementCount(lb) != 1;
    result =
        l.product(matrices(a, sa, batchA), matrices(b, sb, batchB), ta, tb);
  } else {
    auto expand = [&](Value value, ArrayRef<int64_t> shape) {
      SmallVector<int64_t> full(lead);
      llvm::append_range(full, shape.take_back(2));
      return l.reshape(
          l.broadcast(value, full),
          {elementCount(lead), full[full.size() - 2], full.back()});
    };
    result = l.product(expand(a, sa), expand(b, sb), ta, tb);
  }
  l.set(op, finish(l, result, op.getResult()));
  return success();
}

//===----------------------------------------------------------------------===//
// Convolution
//===----------------------------------------------------------------------===//

namespace {
/// Geometry of a convolution, from its three tensors' shapes.
struct Geometry {
  int64_t batch, channels, outChannels, groups;
  SmallVector<int64_t> image, window, positions;
  SmallVector<int64_t> strides, dilations, pads;
  bool padded;

  template <typename OpTy>
  Geometry(OpTy op, ArrayRef<int64_t> input, ArrayRef<int64_t> weight,
           ArrayRef<int64_t> result)
      : batch(input[0]), channels(input[1]), outChannels(weight[0]),
        groups(op.getGroups()), image(input.drop_front(2)),
        window(weight.drop_front(2)), positions(result.drop_front(2)),
        strides(op.getStrides()), dilations(op.getDilations()),
        pads(op.getPadsBefore()) {
    padded =
        llvm::any_of(pads, [](int64_t pad) { return pad != 0; }) ||
        llvm::any_of(op.getPadsAfter(), [](int64_t pad) { return pad != 0; });
  }
  int64_t positionCount() const { return elementCount(positions); }
  int64_t windowCount() const { return elementCount(window); }
  /// Rows of a group's columns.
  int64_t depth() const { return channels / groups * windowCount(); }
};
} // namespace

/// Input as [batch, channels, window..., positions...], or channels, window,
/// batch, positions with `batchInside`.
static Value unfold(Lowering &l, Value input, const Geometry &g,
                    bool batchInside) {
  SmallVector<int64_t> shape;
  if (!batchInside)
    shape.push_back(g.batch);
  shape.push_back(g.channels);
  llvm::append_range(shape, g.window);
  if (batchInside)
    shape.push_back(g.batch);
  llvm::append_range(shape, g.positions);
  size_t spatial = g.window.size();
  Type element = elementOf(input);
  return l.loops(
      input, l.type(shape, element),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel(ArrayRef(shape).drop_back(), [&](ValueRange outer) {
          b.loop(shape.back(), [&](Value last) {
            SmallVector<Value> ivs(outer);
            ivs.push_back(last);
            ValueRange all(ivs);
            size_t windowAt = batchInside ? 1 : 2;
            SmallVector<Value> at{all[batchInside ? 1 + spatial : 0],
                                  all[batchInside ? 0 : 1]};
            Value inside;
            for (size_t i = 0; i < spatial; ++i) {
              Value position = all[all.size() - spatial + i];
              Value pixel = b.sub(
                  b.add(b.mul(position, b.index(g.strides[i])),
                        b.mul(all[windowAt + i], b.index(g.dilations[i]))),
                  b.index(g.pads[i]));
              if (g.padded) {
                Value ok = b.land(b.compare(P::Ge, pixel, b.index(0)),
                                  b.compare(P::Lt, pixel, b.index(g.image[i])));
                inside = inside ? b.land(inside, ok) : ok;
              }
              at.push_back(pixel);
            }
            auto read = [&]() -> Value {
              return memref::LoadOp::create(b.builder, b.loc, in[0], at);
            };
            Value value = inside
                              ? b.branch(inside, read,
                                         [&] { return b.constant(element, 0); })
                              : read();
            memref::StoreOp::create(b.builder, b.loc, value, out[0], ivs);
          });
        });
      })[0];
}

/// Sums columns [batch, channels, window..., positions...] into the image.
static Value fold(Lowering &l, Value columns, const Geometry &g) {
  SmallVector<int64_t> shape{g.batch, g.channels};
  llvm::append_range(shape, g.image);
  SmallVector<int64_t> view{g.batch, g.channels};
  llvm::append_range(view, g.window);
  llvm::append_range(view, g.positions);
  columns = l.reshape(columns, view);
  Type type = elementOf(columns);
  return l.loops(
      columns, l.type(shape, type),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel(shape, [&](ValueRange ivs) {
          std::function<Value(size_t, SmallVector<Value>, Value, Value)> nest =
              [&](size_t level, SmallVector<Value> window, Value ok,
                  Value sum) -> Value {
            if (level < g.window.size())
              return b.fold(g.window[level], sum, [&](Value iv, Value sum) {
                SmallVector<Value> next(window);
                next.push_back(iv);
                return nest(level + 1, next, ok, sum);
              });
            SmallVector<Value> at{ivs[0], ivs[1]}, positions;
            llvm::append_range(at, window);
            Value inside;
            for (size_t i = 0; i < g.window.size(); ++i) {
              Value from = b.sub(b.add(ivs[2 + i], b.index(g.pads[i])),
                                 b.mul(window[i], b.index(g.dilations[i])));
              Value stride = b.index(g.strides[i]);
              Value position =
                  arith::DivSIOp::create(b.builder, b.loc, from, stride);
              Value good = b.compare(P::Eq, b.mul(position, stride), from);
              good = b.land(good, b.compare(P::Ge, from, b.index(0)));
              good = b.land(
                  good, b.compare(P::Lt, position, b.index(g.positions[i])));
              inside = inside ? b.land(inside, good) : good;
              at.push_back(position);
            }
            return b.branch(
                inside, [&] { return b.add(sum, b.load(in[0], at)); },
                [&] { return sum; });
          };
          Value sum = nest(0, {}, Value(), b.constant(computeType(type), 0));
          b.store(sum, out[0], ivs);
        });
      })[0];
}

/// Weight as one matrix per group, repeated for the batch unless there is one
/// group only.
static Value weightMatrices(Lowering &l, Value weight, const Geometry &g) {
  int64_t rows = g.outChannels / g.groups;
  if (g.groups == 1)
    return l.reshape(weight, {rows, g.depth()});
  Value groups = l.reshape(weight, {1, g.groups, rows, g.depth()});
  groups = l.broadcast(groups, {g.batch, g.groups, rows, g.depth()});
  return l.reshape(groups, {g.batch * g.groups, rows, g.depth()});
}

LogicalResult kernels::lower(Lowering &l, nn::ConvOp op) {
  Value input = l.get(op.getInput()), weight = l.getStored(op.getWeight());
  Geometry g(op, shapeOf(input), shapeOf(weight), shapeOf(op.getResult()));
  Value columns = l.reshape(unfold(l, input, g, false),
                            {g.batch * g.groups, g.depth(), g.positionCount()});
  Value result = l.product(weightMatrices(l, weight, g), columns, false, false);
  l.set(op, finish(l, result, op.getResult()));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::ConvGradInputOp op) {
  Value grad = l.get(op.getGrad()), weight = l.getStored(op.getWeight());
  Geometry g(op, shapeOf(op.getResult()), shapeOf(weight), shapeOf(grad));
  Value rows = l.reshape(
      grad, {g.batch * g.groups, g.outChannels / g.groups, g.positionCount()});
  Value columns = l.product(weightMatrices(l, weight, g), rows, true, false);
  l.set(op, finish(l, fold(l, columns, g), op.getResult()));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::ConvGradWeightOp op) {
  Value input = l.get(op.getInput()), grad = l.get(op.getGrad());
  Geometry g(op, shapeOf(input), shapeOf(op.getResult()), shapeOf(grad));
  int64_t length = g.batch * g.positionCount();
  int64_t rows = g.outChannels / g.groups;
  Value columns =
      l.reshape(unfold(l, input, g, true), {g.groups, g.depth(), length});
  Value flat = l.reshape(grad, {g.batch, g.outChannels, g.positionCount()});
  Value left =
      l.reshape(l.transpose(flat, {1, 0, 2}), {g.groups, rows, length});
  l.set(op, finish(l, l.product(left, columns, false, true), op.getResult()));
  return success();
}
