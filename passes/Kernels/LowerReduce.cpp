//===- LowerReduce.cpp - Reductions, running sums and pooling -------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

/// The value that changes nothing: -inf, or the smallest integer, for max.
static Value neutral(ScalarBuilder &s, Type type, bool forMax,
                     bool isUnsigned) {
  if (auto floating = dyn_cast<FloatType>(type)) {
    APFloat inf = APFloat::getInf(floating.getFloatSemantics(), forMax);
    return arith::ConstantOp::create(s.builder, s.loc,
                                     FloatAttr::get(type, inf));
  }
  unsigned width = type.getIntOrFloatBitWidth();
  bool zeroBased = isUnsigned || width == 1;
  APInt value = forMax ? (zeroBased ? APInt::getMinValue(width)
                                    : APInt::getSignedMinValue(width))
                       : (zeroBased ? APInt::getMaxValue(width)
                                    : APInt::getSignedMaxValue(width));
  return arith::ConstantOp::create(s.builder, s.loc,
                                   IntegerAttr::get(type, value));
}

static Value combine(ScalarBuilder &s, nn::ReduceKind kind, Value sum,
                     Value value, bool isUnsigned) {
  switch (kind) {
  case nn::ReduceKind::Sum:
    return s.addAnyOrder(sum, value);
  case nn::ReduceKind::Prod:
    return s.mul(sum, value);
  case nn::ReduceKind::Max:
    return s.max(sum, value, isUnsigned);
  case nn::ReduceKind::Min:
    return s.min(sum, value, isUnsigned);
  }
  return Value();
}

LogicalResult kernels::lower(Lowering &l, nn::ReduceOp op) {
  Value input = l.get(op.getInput());
  bool isUnsigned = kernels::isUnsigned(op.getInput().getType());
  Type element = elementOf(input);
  nn::ReduceKind kind = op.getKind();
  Value result;
  if (op.getAxes().empty()) {
    result = input;
  } else {
    ScalarBuilder s(l.builder, l.loc);
    Type compute = computeType(element);
    bool isExtremum =
        kind == nn::ReduceKind::Max || kind == nn::ReduceKind::Min;
    Value init = isExtremum ? neutral(s, compute, kind == nn::ReduceKind::Max,
                                      isUnsigned)
                            : s.constant(compute, kind == nn::ReduceKind::Prod);
    result = l.reduce(input, op.getAxes(), init,
                      [&](ScalarBuilder &s, Value sum, Value value) {
                        return combine(s, kind, sum, value, isUnsigned);
                      });
    result = l.convert(result, element);
  }
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::ArgReduceOp op) {
  Value input = l.get(op.getInput());
  bool isUnsigned = kernels::isUnsigned(op.getInput().getType());
  AxisView view(shapeOf(input), op.getAxis());
  bool isMax = op.getKind() == nn::ReduceKind::Max;
  P better = isMax ? (op.getSelectLast() ? P::Ge : P::Gt)
                   : (op.getSelectLast() ? P::Le : P::Lt);
  Value flat = l.reshape(input, view.shape());
  RankedTensorType to =
      l.type({view.outer, view.inner}, l.builder.getI64Type());
  Value result =
      l.loops(flat, to, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel({view.outer, view.inner}, [&](ValueRange ivs) {
          Value zero = b.index(0);
          Value first = b.load(in[0], {ivs[0], zero, ivs[1]});
          auto best =
              b.carry(view.size, ValueRange{first, zero},
                      [&](Value iv, ValueRange best) {
                        Value x = b.load(in[0], {ivs[0], iv, ivs[1]});
                        Value wins = b.compare(better, x, best[0], isUnsigned);
                        if (isa<FloatType>(
                                x.getType())) // the first NaN wins, and stays
                          wins = b.select(b.isNan(best[0]),
                                          b.constant(b.builder.getI1Type(), 0),
                                          b.lor(wins, b.isNan(x)));
                        return SmallVector<Value>{b.select(wins, x, best[0]),
                                                  b.select(wins, iv, best[1])};
                      });
          b.store(b.fromIndex(best[1], b.builder.getI64Type()), out[0], ivs);
        });
      })[0];
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::CumsumOp op) {
  Value input = l.get(op.getInput());
  AxisView view(shapeOf(input), op.getAxis());
  Value flat = l.reshape(input, view.shape());
  Value result = l.loops(
      flat, tensorType(flat),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel({view.outer, view.inner}, [&](ValueRange ivs) {
          Value zero = b.constant(computeType(elementOf(flat)), 0);
          b.fold(view.size, zero, [&](Value iv, Value sum) {
            Value at = op.getReverse() ? b.sub(b.index(view.size - 1), iv) : iv;
            SmallVector<Value> indices{ivs[0], at, ivs[1]};
            Value next = b.add(sum, b.load(in[0], indices));
            b.store(op.getExclusive() ? sum : next, out[0], indices);
            return next;
          });
        });
      })[0];
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

//===----------------------------------------------------------------------===//
// Pooling
//===----------------------------------------------------------------------===//

/// Visits the elements of a window that lie inside the tensor. `visit` gets
/// the indices of the element; `carried` passes through the others.
static SmallVector<Value> forWindow(
    LoopBuilder &b, ArrayRef<int64_t> window, ArrayRef<int64_t> strides,
    ArrayRef<int64_t> dilations, ArrayRef<int64_t> pads,
    ArrayRef<int64_t> spatial, ValueRange position, ValueRange init,
    llvm::function_ref<SmallVector<Value>(ValueRange, ValueRange)> visit) {
  SmallVector<Value> indices, result;
  std::function<SmallVector<Value>(size_t, Value, ValueRange)> nest =
      [&](size_t level, Value inside, ValueRange carried) {
        if (level == window.size()) {
          SmallVector<Value> next = visit(indices, carried);
          for (auto [value, old] : llvm::zip_equal(next, carried))
            value = b.select(inside, value, old);
          return next;
        }
        return b.carry(window[level], carried, [&](Value iv, ValueRange now) {
          Value at =
              b.sub(b.add(b.mul(position[level], b.index(strides[level])),
                          b.mul(iv, b.index(dilations[level]))),
                    b.index(pads[level]));
          Value ok = b.land(b.compare(P::Ge, at, b.index(0)),
                            b.compare(P::Lt, at, b.index(spatial[level])));
          indices.push_back(b.select(ok, at, b.index(0)));
          SmallVector<Value> next =
              nest(level + 1, inside ? b.land(inside, ok) : ok, now);
          indices.pop_back();
          return next;
        });
      };
  return nest(0, Value(), init);
}

/// Runs `body` for the elements of a window that lie inside the tensor.
static void forEachInside(LoopBuilder &b, nn::PoolGradOp op,
                          ArrayRef<int64_t> shape, ValueRange ivs,
                          LoopBuilder::Body body) {
  b.loops(op.getWindow(), [&](ValueRange window) {
    SmallVector<Value> indices;
    Value inside;
    for (size_t i = 0; i < window.size(); ++i) {
      Value at = b.sub(b.add(b.mul(ivs[2 + i], b.index(op.getStrides()[i])),
                             b.mul(window[i], b.index(op.getDilations()[i]))),
                       b.index(op.getPadsBefore()[i]));
      Value ok = b.land(b.compare(P::Ge, at, b.index(0)),
                        b.compare(P::Lt, at, b.index(shape[2 + i])));
      inside = inside ? b.land(inside, ok) : ok;
      indices.push_back(at);
    }
    b.when(inside, [&] { body(indices); });
  });
}

LogicalResult kernels::lower(Lowering &l, nn::PoolOp op) {
  Value input = l.get(op.getInput());
  auto shape = shapeOf(input), to = shapeOf(op.getResult());
  bool isMax = op.getKind() == nn::PoolKind::Max;
  bool isUnsigned = kernels::isUnsigned(op.getInput().getType());
  Type element = elementOf(input);
  int64_t windowSize = 1;
  for (int64_t dim : op.getWindow())
    windowSize *= dim;
  Value result = l.loops(
      input, l.type(to, element),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel(to, [&](ValueRange ivs) {
          Type compute = computeType(element);
          Value zero = b.constant(compute, 0);
          Value start = isMax ? neutral(b, compute, true, isUnsigned) : zero;
          auto last = forWindow(
              b, op.getWindow(), op.getStrides(), op.getDilations(),
              op.getPadsBefore(), shape.drop_front(2), ivs.drop_front(2),
              ValueRange{start, zero}, [&](ValueRange at, ValueRange now) {
                SmallVector<Value> indices{ivs[0], ivs[1]};
                llvm::append_range(indices, at);
                Value x = b.load(in[0], indices);
                return SmallVector<Value>{
                    isMax ? b.max(now[0], x, isUnsigned) : b.add(now[0], x),
                    b.add(now[1], b.constant(compute, 1))};
              });
          Value value = last[0];
          if (!isMax)
            value = b.div(value, op.getCountPadding()
                                     ? b.constant(compute, windowSize)
                                     : last[1]);
          b.store(value, out[0], ivs);
        });
      })[0];
  l.set(op, result);
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::PoolGradOp op) {
  Value input = l.get(op.getInput()), grad = l.get(op.getGrad());
  auto shape = shapeOf(input), windows = shapeOf(grad);
  bool isMax = op.getKind() == nn::PoolKind::Max;
  Type element = elementOf(input), compute = computeType(element);
  int64_t windowSize = 1;
  for (int64_t dim : op.getWindow())
    windowSize *= dim;
  // Channels run in parallel, the windows of one in order. Sums are kept in
  // the compute type.
  Value zeros = l.filled(shape, compute, 0);
  SmallVector<Value> operands{input, grad};
  Value result = l.loopsInto(
      operands, zeros, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        auto window = [&](ValueRange ivs, ValueRange init, auto visit) {
          return forWindow(b, op.getWindow(), op.getStrides(),
                           op.getDilations(), op.getPadsBefore(),
                           shape.drop_front(2), ivs.drop_front(2), init, visit);
        };
        auto at = [](ValueRange ivs, ValueRange spatial) {
          SmallVector<Value> indices{ivs[0], ivs[1]};
          llvm::append_range(indices, spatial);
          return indices;
        };
        auto addTo = [&](ValueRange indices, Value value) {
          b.store(b.add(b.load(out[0], indices), value), out[0], indices);
        };
        auto maxWindow = [&](ValueRange ivs) {
          SmallVector<Value> init{neutral(b, compute, true, false),
                                  b.constant(b.builder.getI1Type(), 0)};
          init.append(shape.size() - 2, b.index(0));
          auto best =
              window(ivs, init, [&](ValueRange spatial, ValueRange now) {
                Value x = b.load(in[0], at(ivs, spatial));
                Value wins = b.lor(b.compare(P::Gt, x, now[0]), b.lnot(now[1]));
                SmallVector<Value> next{b.select(wins, x, now[0]),
                                        b.constant(b.builder.getI1Type(), 1)};
                for (auto [index, old] :
                     llvm::zip_equal(spatial, now.drop_front(2)))
                  next.push_back(b.select(wins, index, old));
                return next;
              });
          SmallVector<Value> spatial(ArrayRef<Value>(best).drop_front(2));
          addTo(at(ivs, spatial), b.load(in[1], ivs));
        };
        auto averageWindow = [&](ValueRange ivs) {
          Value zero = b.constant(compute, 0), one = b.constant(compute, 1);
          Value count =
              op.getCountPadding()
                  ? b.constant(compute, windowSize)
                  : window(ivs, ValueRange{zero},
                           [&](ValueRange, ValueRange now) {
                             return SmallVector<Value>{b.add(now[0], one)};
                           })[0];
          Value share = b.div(b.load(in[1], ivs), count);
          forEachInside(b, op, shape, ivs, [&](ValueRange spatial) {
            addTo(at(ivs, spatial), share);
          });
        };
        b.parallel({shape[0], shape[1]}, [&](ValueRange outer) {
          b.loops(windows.drop_front(2), [&](ValueRange position) {
            SmallVector<Value> ivs(outer);
            llvm::append_range(ivs, position);
            isMax ? maxWindow(ivs) : averageWindow(ivs);
          });
        });
      })[0];
  l.set(op, l.convert(result, element));
  return success();
}
