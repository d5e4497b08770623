//===- LowerRows.cpp - Softmax, norms, rope and the loss, row by row ------===//
//
// Each row is read a few times while it is in the cache; rows run in parallel.
// Sums over a row may use vector lanes, so their order depends on the target's
// vector width and on nothing else.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Lowering.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

static Value lowest(ScalarBuilder &s, Type type) {
  APFloat inf =
      APFloat::getInf(cast<FloatType>(type).getFloatSemantics(), true);
  return arith::ConstantOp::create(s.builder, s.loc, FloatAttr::get(type, inf));
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

/// Softmax or its logarithm over the middle dimension of a 3-D view.
static Value softmax(Lowering &l, Value input, int64_t axis, bool logarithm) {
  AxisView view(shapeOf(input), axis);
  Value flat = l.reshape(input, view.shape());
  Type compute = computeType(elementOf(input));
  // A narrow result cannot hold the exponentials between the passes.
  bool keep = compute == elementOf(input) && !logarithm;
  Value result = l.loops(
      flat, tensorType(flat),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        SmallVector<int64_t> rows{view.outer};
        if (view.inner != 1)
          rows.push_back(view.inner);
        b.parallel(rows, [&](ValueRange ivs) {
          auto at = [&](Value j) {
            return SmallVector<Value>{ivs[0], j,
                                      view.inner == 1 ? b.index(0) : ivs[1]};
          };
          Value max =
              b.fold(view.size, lowest(b, compute), [&](Value j, Value max) {
                return b.max(max, b.load(in[0], at(j)));
              });
          Value sum = b.fold(
              view.size, b.constant(compute, 0), [&](Value j, Value sum) {
                Value e = b.exp(b.sub(b.load(in[0], at(j)), max));
                if (keep)
                  b.store(e, out[0], at(j));
                return b.addAnyOrder(sum, e);
              });
          Value factor =
              logarithm ? b.log(sum) : b.div(b.constant(compute, 1), sum);
          b.loop(view.size, [&](Value j) {
            Value x =
                keep ? b.load(out[0], at(j)) : b.sub(b.load(in[0], at(j)), max);
            Value y = logarithm ? b.sub(x, factor)
                                : b.mul(keep ? x : b.exp(x), factor);
            b.store(y, out[0], at(j));
          });
        });
      })[0];
  return l.reshape(result, shapeOf(input));
}

LogicalResult kernels::lower(Lowering &l, nn::SoftmaxOp op) {
  l.set(op, softmax(l, l.get(op.getInput()), op.getAxis(), false));
  return success();
}
LogicalResult kernels::lower(Lowering &l, nn::LogSoftmaxOp op) {
  l.set(op, softmax(l, l.get(op.getInput()), op.getAxis(), true));
  return success();
}

//===----------------------------------------------------------------------===//
// Norms
//===----------------------------------------------------------------------===//

/// Rows of a norm: dimensions before and from `axis`.
struct Rows {
  int64_t count = 1, size = 1;
  Rows(ArrayRef<int64_t> shape, int64_t axis) {
    for (int64_t dim : shape.take_front(axis))
      count *= dim;
    for (int64_t dim : shape.drop_front(axis))
      size *= dim;
  }
  SmallVector<int64_t> shape() const { return {count, size}; }
};

/// Scale or bias as one row [size], or as [count, size] where rows differ.
static Value affineRows(Lowering &l, Value value, ArrayRef<int64_t> shape,
                        int64_t axis, const Rows &rows) {
  if (!value)
    return value;
  SmallVector<int64_t> own(shape.size() - shapeOf(value).size(), 1);
  llvm::append_range(own, shapeOf(value));
  bool oneRow = ArrayRef(own).drop_front(axis) == shape.drop_front(axis) &&
                llvm::all_of(ArrayRef(own).take_front(axis),
                             [](int64_t dim) { return dim == 1; });
  if (oneRow)
    return l.reshape(value, {rows.size});
  return l.reshape(l.broadcast(value, shape), rows.shape());
}

/// 1 / sqrt(sum / size + epsilon).
static Value inverseRoot(LoopBuilder &b, Value sum, int64_t size,
                         double epsilon) {
  Type type = sum.getType();
  Value mean = b.mul(sum, b.constant(type, 1.0 / size));
  return b.div(b.constant(type, 1),
               b.sqrt(b.add(mean, b.constant(type, epsilon))));
}

/// Sum over a row of what `term` gives for column j.
static Value rowSum(LoopBuilder &b, int64_t size, Type type,
                    llvm::function_ref<Value(Value)> term) {
  return b.fold(size, b.constant(type, 0), [&](Value j, Value sum) {
    return b.addAnyOrder(sum, term(j));
  });
}

/// Mean (zero without `centered`) and inverse deviation of row r.
static std::pair<Value, Value> statistics(LoopBuilder &b, Value x, Value r,
                                          int64_t size, double epsilon,
                                          bool centered) {
  Type type = computeType(elementOf(x));
  Value mean = b.constant(type, 0);
  if (centered)
    mean =
        b.mul(rowSum(b, size, type, [&](Value j) { return b.load(x, {r, j}); }),
              b.constant(type, 1.0 / size));
  Value squares = rowSum(b, size, type, [&](Value j) {
    Value d = b.load(x, {r, j});
    if (centered)
      d = b.sub(d, mean);
    return b.mul(d, d);
  });
  return {mean, inverseRoot(b, squares, size, epsilon)};
}

static Value norm(Lowering &l, Value input, Value scale, Value bias,
                  int64_t axis, double epsilon, bool centered) {
  ArrayRef<int64_t> shape = shapeOf(input);
  Rows rows(shape, axis);
  scale = affineRows(l, scale, shape, axis, rows);
  bias = affineRows(l, bias, shape, axis, rows);
  SmallVector<Value> operands{l.reshape(input, rows.shape())};
  if (scale)
    operands.push_back(scale);
  if (bias)
    operands.push_back(bias);
  Value result =
      l.loops(operands, tensorType(operands[0]),
              [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                auto affine = [&](Value buffer, Value r, Value j) {
                  if (cast<MemRefType>(buffer.getType()).getRank() == 1)
                    return b.load(buffer, j);
                  return b.load(buffer, {r, j});
                };
                b.parallel(rows.count, [&](ValueRange ivs) {
                  Value r = ivs[0];
                  auto [mean, rstd] =
                      statistics(b, in[0], r, rows.size, epsilon, centered);
                  b.loop(rows.size, [&, mean = mean, rstd = rstd](Value j) {
                    Value y = b.load(in[0], {r, j});
                    if (centered)
                      y = b.sub(y, mean);
                    y = b.mul(y, rstd);
                    if (scale)
                      y = b.mul(y, affine(in[1], r, j));
                    if (bias)
                      y = b.add(y, affine(in.back(), r, j));
                    b.store(y, out[0], {r, j});
                  });
                });
              })[0];
  return l.reshape(result, shape);
}

/// dx = rstd (g - mean(g) - x^ mean(g x^)), the first mean only if centered.
static Value normGrad(Lowering &l, Value input, Value grad, int64_t axis,
                      double epsilon, bool centered) {
  ArrayRef<int64_t> shape = shapeOf(input);
  Rows rows(shape, axis);
  SmallVector<Value> operands{l.reshape(input, rows.shape()),
                              l.reshape(grad, rows.shape())};
  Value result = l.loops(
      operands, tensorType(operands[0]),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        Type type = computeType(elementOf(input));
        Value inverse = b.constant(type, 1.0 / rows.size);
        b.parallel(rows.count, [&](ValueRange ivs) {
          Value r = ivs[0];
          auto [mean, rstd] =
              statistics(b, in[0], r, rows.size, epsilon, centered);
          auto unit = [&, mean = mean, rstd = rstd](Value j) {
            Value x = b.load(in[0], {r, j});
            return b.mul(centered ? b.sub(x, mean) : x, rstd);
          };
          Value along =
              b.mul(rowSum(b, rows.size, type,
                           [&](Value j) {
                             return b.mul(b.load(in[1], {r, j}), unit(j));
                           }),
                    inverse);
          Value level = centered ? b.mul(rowSum(b, rows.size, type,
                                                [&](Value j) {
                                                  return b.load(in[1], {r, j});
                                                }),
                                         inverse)
                                 : Value();
          b.loop(rows.size, [&, rstd = rstd](Value j) {
            Value g = b.load(in[1], {r, j});
            if (centered)
              g = b.sub(g, level);
            b.store(b.mul(rstd, b.sub(g, b.mul(unit(j), along))), out[0],
                    {r, j});
          });
        });
      })[0];
  return l.reshape(result, shape);
}

LogicalResult kernels::lower(Lowering &l, nn::LayerNormOp op) {
  l.set(op,
        norm(l, l.get(op.getInput()), l.get(op.getScale()), l.get(op.getBias()),
             op.getAxis(), op.getEpsilon().convertToDouble(), true));
  return success();
}
LogicalResult kernels::lower(Lowering &l, nn::RMSNormOp op) {
  l.set(op, norm(l, l.get(op.getInput()), l.get(op.getScale()), Value(),
                 op.getAxis(), op.getEpsilon().convertToDouble(), false));
  return success();
}
LogicalResult kernels::lower(Lowering &l, nn::LayerNormGradOp op) {
  l.set(op, normGrad(l, l.get(op.getInput()), l.get(op.getGrad()), op.getAxis(),
                     op.getEpsilon().convertToDouble(), true));
  return success();
}
LogicalResult kernels::lower(Lowering &l, nn::RMSNormGradOp op) {
  l.set(op, normGrad(l, l.get(op.getInput()), l.get(op.getGrad()), op.getAxis(),
                     op.getEpsilon().convertToDouble(), false));
  return success();
}

//===----------------------------------------------------------------------===//
// Rotary embedding
//===----------------------------------------------------------------------===//

LogicalResult kernels::lower(Lowering &l, nn::RopeOp op) {
  Value input = l.get(op.getInput());
  SmallVector<Value> operands{input, l.get(op.getCos()), l.get(op.getSin())};
  auto shape = shapeOf(input);
  int64_t half = shape.back() / 2;
  Value result = l.loops(
      operands, tensorType(input),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel(shape.drop_back(), [&](ValueRange row) {
          b.loop(half, [&](Value j) {
            Value first = op.getInterleaved() ? b.mul(j, b.index(2)) : j;
            Value second =
                b.add(first, b.index(op.getInterleaved() ? 1 : half));
            auto at = [&](Value column) {
              SmallVector<Value> indices(row);
              indices.push_back(column);
              return indices;
            };
            auto table = [&](Value buffer, Value column) {
              return b.load(buffer,
                            b.broadcastIndices(
                                cast<MemRefType>(buffer.getType()).getShape(),
                                at(column)));
            };
            Value x1 = b.load(in[0], at(first)), x2 = b.load(in[0], at(second));
            Value c1 = table(in[1], first), c2 = table(in[1], second);
            Value s1 = table(in[2], first), s2 = table(in[2], second);
            // rotate: (-x2, x1); its transpose on (x1 s1, x2 s2): (x2 s2, -x1
            // s1).
            Value y1, y2;
            if (op.getTransposed()) {
              y1 = b.add(b.mul(x1, c1), b.mul(x2, s2));
              y2 = b.sub(b.mul(x2, c2), b.mul(x1, s1));
            } else {
              y1 = b.sub(b.mul(x1, c1), b.mul(x2, s1));
              y2 = b.add(b.mul(x2, c2), b.mul(x1, s2));
            }
            b.store(y1, out[0], at(first));
            b.store(y2, out[0], at(second));
          });
        });
      })[0];
  l.set(op, result);
  return success();
}

//===----------------------------------------------------------------------===//
// Loss
//===----------------------------------------------------------------------===//

/// Whether a label is one that counts.
static Value counts(LoopBuilder &b, Value label,
                    std::optional<int64_t> ignoreIndex) {
  if (!ignoreIndex)
    return b.constant(b.builder.getI1Type(), 1);
  return b.compare(P::Ne, label, b.index(*ignoreIndex));
}

/// Maximum of a row of logits and the sum of exponentials below it.
static std::pair<Value, Value> logSumExp(LoopBuilder &b, Value logits, Value r,
                                         int64_t classes) {
  Type type = computeType(elementOf(logits));
  Value max = b.fold(classes, lowest(b, type), [&](Value j, Value max) {
    return b.max(max, b.load(logits, {r, j}));
  });
  Value sum = rowSum(b, classes, type, [&](Value j) {
    return b.exp(b.sub(b.load(logits, {r, j}), max));
  });
  return {max, sum};
}

LogicalResult kernels::lower(Lowering &l, nn::CrossEntropyOp op) {
  Value logits = l.get(op.getLogits()), weight = l.get(op.getWeight());
  int64_t rows = shapeOf(logits)[0], classes = shapeOf(logits)[1];
  SmallVector<Value> operands{logits, l.get(op.getLabels())};
  if (weight)
    operands.push_back(weight);
  std::string name = l.nodeName();
  Type element = elementOf(logits), compute = computeType(element);
  l.set(op, l.loops(operands, l.type({rows}, element),
                    [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                      b.parallel(rows, [&](ValueRange ivs) {
                        Value r = ivs[0], label = b.loadIndex(in[1], r);
                        Value loss = b.branch(
                            counts(b, label, op.getIgnoreIndex()),
                            [&] {
                              Value safe =
                                  b.checkedIndex(label, classes, false,
                                                 l.nodeNameAddress(b, name));
                              auto [max, sum] = logSumExp(b, in[0], r, classes);
                              Value x = b.sub(b.load(in[0], {r, safe}), max);
                              Value loss = b.sub(b.log(sum), x);
                              return weight ? b.mul(loss, b.load(in[2], safe))
                                            : loss;
                            },
                            [&] { return b.constant(compute, 0); });
                        b.store(loss, out[0], r);
                      });
                    })[0]);
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::CrossEntropyGradOp op) {
  Value logits = l.get(op.getLogits()), weight = l.get(op.getWeight());
  int64_t rows = shapeOf(logits)[0], classes = shapeOf(logits)[1];
  SmallVector<Value> operands{logits, l.get(op.getLabels()),
                              l.get(op.getGrad())};
  if (weight)
    operands.push_back(weight);
  Type compute = computeType(elementOf(logits));
  auto rowBody = [&](LoopBuilder &b, ValueRange in, Value out, Value r) {
    Value label = b.loadIndex(in[1], r);
    Value counted = counts(b, label, op.getIgnoreIndex());
    // An invalid label was reported by the forward kernel.
    Value inside = b.land(b.compare(P::Ge, label, b.index(0)),
                          b.compare(P::Lt, label, b.index(classes)));
    Value safe = b.select(inside, label, b.index(0));
    Value factor = b.load(in[2], r);
    if (weight)
      factor = b.mul(factor, b.load(in[3], safe));
    Value yes = b.land(counted, inside);
    auto op = b.branch(
        yes,
        [&] {
          auto [max, sum] = logSumExp(b, in[0], r, classes);
          Value scale = b.div(factor, sum);
          b.loop(classes, [&, max = max](Value j) {
            Value e = b.exp(b.sub(b.load(in[0], {r, j}), max));
            b.store(b.mul(e, scale), out, {r, j});
          });
          return b.sub(
              b.mul(b.exp(b.sub(b.load(in[0], {r, safe}), max)), scale),
              factor);
        },
        [&] {
          Value zero = b.constant(compute, 0);
          b.loop(classes, [&](Value j) { b.store(zero, out, {r, j}); });
          return zero;
        });
    b.store(op, out, {r, safe});
  };
  l.set(op, l.loops(operands, tensorType(logits),
                    [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                      b.parallel(rows, [&](ValueRange ivs) {
                        rowBody(b, in, out[0], ivs[0]);
                      });
                    })[0]);
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::LabelWeightsOp op) {
  Value labels = l.get(op.getLabels()), weight = l.get(op.getWeight());
  SmallVector<Value> operands{labels};
  if (weight)
    operands.push_back(weight);
  Type element = elementOf(op.getResult());
  int64_t rows = shapeOf(labels)[0];
  l.set(op, l.loops(operands, l.type({rows}, element),
                    [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                      b.parallel(rows, [&](ValueRange ivs) {
                        Value label = b.loadIndex(in[0], ivs);
                        Value value = b.constant(computeType(element), 1);
                        if (weight) {
                          int64_t classes = shapeOf(weight)[0];
                          Value inside =
                              b.land(b.compare(P::Ge, label, b.index(0)),
                                     b.compare(P::Lt, label, b.index(classes)));
                          value = b.load(in[1],
                                         b.select(inside, label, b.index(0)));
                        }
                        b.store(b.select(counts(b, label, op.getIgnoreIndex()),
                                         value, b.constant(value.getType(), 0)),
                                out[0], ivs);
                      });
                    })[0]);
  return success();
}
