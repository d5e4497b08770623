//===- LowerIndexing.cpp - Gathers and scatters to loops ------------------===//
//
// Updates that may hit the same element run in order; what runs in parallel
// are parts that no two updates share.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Lowering.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

static int64_t elementCount(ArrayRef<int64_t> shape) {
  return ShapedType::getNumElements(shape);
}

static SmallVector<Value> joined(ValueRange a, ValueRange b) {
  SmallVector<Value> result(a);
  llvm::append_range(result, b);
  return result;
}

LogicalResult kernels::lower(Lowering &l, nn::GatherOp op) {
  Value input = l.get(op.getInput()), indices = l.get(op.getIndices());
  AxisView view(shapeOf(input), op.getAxis());
  int64_t count = elementCount(shapeOf(indices));
  std::string name = l.nodeName();
  SmallVector<Value> operands{l.reshape(input, view.shape()),
                              l.reshape(indices, {count})};
  RankedTensorType to =
      l.type({view.outer, count, view.inner}, elementOf(input));
  Value result =
      l.loops(operands, to, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel({view.outer, count}, [&](ValueRange ivs) {
          Value index = b.checkedIndex(b.loadIndex(in[1], ivs[1]), view.size,
                                       true, l.nodeNameAddress(b, name));
          b.loop(view.inner, [&](Value j) {
            b.move(in[0], {ivs[0], index, j}, out[0], {ivs[0], ivs[1], j});
          });
        });
      })[0];
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

/// Largest divisor of `size` up to `limit`, to cut columns into equal blocks.
static int64_t blockOf(int64_t size, int64_t limit) {
  int64_t block = std::min(size, limit);
  while (block > 1 && size % block)
    --block;
  return std::max<int64_t>(block, 1);
}

LogicalResult kernels::lower(Lowering &l, nn::GatherGradOp op) {
  Value grad = l.get(op.getGrad()), indices = l.get(op.getIndices());
  AxisView view(shapeOf(op.getResult()), op.getAxis());
  int64_t count = elementCount(shapeOf(indices));
  Type element = elementOf(grad);
  int64_t block = blockOf(view.inner, 256);
  std::string name = l.nodeName();
  SmallVector<Value> operands{l.reshape(grad, {view.outer, count, view.inner}),
                              l.reshape(indices, {count})};
  Value zeros = l.filled(view.shape(), computeType(element), 0);
  Value result = l.loopsInto(
      operands, zeros, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel({view.outer, view.inner / block}, [&](ValueRange ivs) {
          b.loop(count, [&](Value i) {
            Value index = b.checkedIndex(b.loadIndex(in[1], i), view.size, true,
                                         l.nodeNameAddress(b, name));
            b.loop(block, [&](Value j) {
              Value column = b.add(b.mul(ivs[1], b.index(block)), j);
              SmallVector<Value> at{ivs[0], index, column};
              Value sum =
                  b.add(b.load(out[0], at), b.load(in[0], {ivs[0], i, column}));
              b.store(sum, out[0], at);
            });
          });
        });
      })[0];
  result = l.convert(result, element);
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::GatherElementsOp op) {
  Value input = l.get(op.getInput()), indices = l.get(op.getIndices());
  auto shape = shapeOf(indices);
  std::string name = l.nodeName();
  int64_t axis = op.getAxis(), size = shapeOf(input)[axis];
  SmallVector<Value> operands{input, indices};
  l.set(op, l.loops(operands, l.type(shape, elementOf(input)),
                    [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                      b.parallel(shape, [&](ValueRange ivs) {
                        SmallVector<Value> at(ivs);
                        at[axis] =
                            b.checkedIndex(b.loadIndex(in[1], ivs), size, true,
                                           l.nodeNameAddress(b, name));
                        b.move(in[0], at, out[0], ivs);
                      });
                    })[0]);
  return success();
}

/// Stores an update where it meets the old element.
static void update(LoopBuilder &b, nn::ScatterKind kind, Value from,
                   ValueRange fromIndices, Value to, ValueRange toIndices,
                   bool isUnsigned) {
  if (kind == nn::ScatterKind::Replace)
    return b.move(from, fromIndices, to, toIndices);
  Value x = b.load(to, toIndices), y = b.load(from, fromIndices);
  Value result;
  switch (kind) {
  case nn::ScatterKind::Replace:
  case nn::ScatterKind::Add:
    result = b.add(x, y);
    break;
  case nn::ScatterKind::Mul:
    result = b.mul(x, y);
    break;
  case nn::ScatterKind::Max:
    result = b.max(x, y, isUnsigned);
    break;
  case nn::ScatterKind::Min:
    result = b.min(x, y, isUnsigned);
    break;
  }
  b.store(result, to, toIndices);
}

LogicalResult kernels::lower(Lowering &l, nn::ScatterElementsOp op) {
  Value input = l.get(op.getInput());
  SmallVector<Value> operands{l.get(op.getIndices()), l.get(op.getUpdates())};
  bool isUnsigned = kernels::isUnsigned(op.getInput().getType());
  auto shape = shapeOf(operands[0]);
  std::string name = l.nodeName();
  int64_t axis = op.getAxis(), size = shapeOf(input)[axis];
  l.set(op, l.loopsInto(
                operands, input,
                [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                  b.loops(shape, [&](ValueRange ivs) {
                    SmallVector<Value> at(ivs);
                    at[axis] = b.checkedIndex(b.loadIndex(in[0], ivs), size,
                                              true, l.nodeNameAddress(b, name));
                    update(b, op.getKind(), in[1], ivs, out[0], at, isUnsigned);
                  });
                })[0]);
  return success();
}

//===----------------------------------------------------------------------===//
// Index tuples
//===----------------------------------------------------------------------===//

/// How index tuples address a tensor: `batch` shared dimensions, a tuple of
/// `depth`, and `inner` elements per slice.
struct Tuples {
  SmallVector<int64_t> outer;  ///< dimensions of indices but the last
  SmallVector<int64_t> target; ///< addressed dimensions, then inner
  int64_t batch, depth, inner;
  Tuples(ArrayRef<int64_t> input, ArrayRef<int64_t> indices, int64_t batch)
      : outer(indices.drop_back()), batch(batch), depth(indices.back()) {
    target.assign(input.begin(), input.begin() + batch + depth);
    inner = elementCount(input.drop_front(batch + depth));
    target.push_back(inner);
  }
  /// Indices of the slice that the tuple at `ivs` names.
  SmallVector<Value> address(LoopBuilder &b, Value indices, ValueRange ivs,
                             Value name) const {
    SmallVector<Value> at(ivs.take_front(batch));
    for (int64_t i = 0; i < depth; ++i)
      at.push_back(b.checkedIndex(b.loadIndex(indices, joined(ivs, b.index(i))),
                                  target[batch + i], true, name));
    return at;
  }
};

LogicalResult kernels::lower(Lowering &l, nn::GatherNDOp op) {
  Value input = l.get(op.getInput()), indices = l.get(op.getIndices());
  Tuples tuples(shapeOf(input), shapeOf(indices), op.getBatchDims());
  std::string name = l.nodeName();
  SmallVector<Value> operands{l.reshape(input, tuples.target), indices};
  SmallVector<int64_t> shape(tuples.outer);
  shape.push_back(tuples.inner);
  Value result =
      l.loops(operands, l.type(shape, elementOf(input)),
              [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                b.parallel(tuples.outer, [&](ValueRange ivs) {
                  auto at =
                      tuples.address(b, in[1], ivs, l.nodeNameAddress(b, name));
                  b.loop(tuples.inner, [&](Value j) {
                    b.move(in[0], joined(at, j), out[0], joined(ivs, j));
                  });
                });
              })[0];
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::ScatterNDOp op) {
  Value input = l.get(op.getInput()), indices = l.get(op.getIndices());
  Tuples tuples(shapeOf(input), shapeOf(indices), op.getBatchDims());
  bool isUnsigned = kernels::isUnsigned(op.getInput().getType());
  std::string name = l.nodeName();
  SmallVector<int64_t> shape(tuples.outer);
  shape.push_back(tuples.inner);
  SmallVector<Value> operands{indices,
                              l.reshape(l.get(op.getUpdates()), shape)};
  Value start = l.reshape(input, tuples.target);
  Value result = l.loopsInto(
      operands, start, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.loops(tuples.outer, [&](ValueRange ivs) {
          auto at = tuples.address(b, in[0], ivs, l.nodeNameAddress(b, name));
          b.loop(tuples.inner, [&](Value j) {
            update(b, op.getKind(), in[1], joined(ivs, j), out[0],
                   joined(at, j), isUnsigned);
          });
        });
      })[0];
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}

//===----------------------------------------------------------------------===//
// Masks
//===----------------------------------------------------------------------===//

/// Number of true elements before each true one, -1 for the others and for
/// those beyond `rows`, which are reported if `name` is given.
static Value positions(Lowering &l, Value mask, int64_t rows,
                       std::optional<std::string> name) {
  int64_t count = elementCount(shapeOf(mask));
  Type i64 = l.builder.getI64Type();
  Value flat = l.reshape(mask, {count});
  return l.loops(
      flat, l.type({count}, i64),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.fold(count, b.index(0), [&](Value i, Value seen) {
          Value isTrue = b.load(in[0], i);
          Value fits = b.compare(P::Lt, seen, b.index(rows));
          if (name)
            b.when(b.land(isTrue, b.lnot(fits)), [&] {
              b.checkedIndex(seen, rows, false, l.nodeNameAddress(b, *name));
            });
          Value used = b.land(isTrue, fits);
          Value position = b.select(used, seen, b.index(-1));
          b.store(b.fromIndex(position, i64), out[0], i);
          return b.add(seen, b.select(isTrue, b.index(1), b.index(0)));
        });
      })[0];
}

LogicalResult kernels::lower(Lowering &l, nn::MaskedScatterOp op) {
  Value input = l.get(op.getInput()), source = l.get(op.getSource());
  Value mask = l.get(op.getMask());
  int64_t rows = shapeOf(source)[0];
  int64_t count = elementCount(shapeOf(mask));
  int64_t width = elementCount(shapeOf(input)) / std::max<int64_t>(count, 1);
  SmallVector<Value> operands{l.reshape(input, {count, width}),
                              positions(l, mask, rows, l.nodeName()),
                              l.reshape(source, {rows, width})};
  Value result =
      l.loops(operands, tensorType(operands[0]),
              [&](LoopBuilder &b, ValueRange in, ValueRange out) {
                b.parallel(count, [&](ValueRange ivs) {
                  Value i = ivs[0], position = b.loadIndex(in[1], i);
                  auto op = b.branch(
                      b.compare(P::Ge, position, b.index(0)),
                      [&] {
                        b.loop(width, [&](Value j) {
                          b.move(in[2], {position, j}, out[0], {i, j});
                        });
                        return position;
                      },
                      [&] {
                        b.loop(width, [&](Value j) {
                          b.move(in[0], {i, j}, out[0], {i, j});
                        });
                        return position;
                      });
                  (void)op;
                });
              })[0];
  l.set(op, l.reshape(result, shapeOf(input)));
  return success();
}

LogicalResult kernels::lower(Lowering &l, nn::MaskedGatherOp op) {
  Value input = l.get(op.getInput()), mask = l.get(op.getMask());
  int64_t rows = shapeOf(op.getResult())[0];
  int64_t count = elementCount(shapeOf(mask));
  int64_t width = elementCount(shapeOf(input)) / std::max<int64_t>(count, 1);
  SmallVector<Value> operands{l.reshape(input, {count, width}),
                              positions(l, mask, rows, std::nullopt)};
  Value zeros = l.filled({rows, width}, elementOf(input), 0);
  Value result = l.loopsInto(
      operands, zeros, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        b.parallel(count, [&](ValueRange ivs) {
          Value i = ivs[0], position = b.loadIndex(in[1], i);
          b.when(b.compare(P::Ge, position, b.index(0)), [&] {
            b.loop(width, [&](Value j) {
              b.move(in[0], {i, j}, out[0], {position, j});
            });
          });
        });
      })[0];
  l.set(op, l.reshape(result, shapeOf(op.getResult())));
  return success();
}
