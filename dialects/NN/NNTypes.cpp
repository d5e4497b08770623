//===- NNTypes.cpp - Result types of nn ops -------------------------------===//
//
// One inferReturnTypes per op, in the order of NNOps.td. They also check what
// ODS cannot say about operands: errors name the op's operand and the shapes.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/NN.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace mgq::nn;

using Types = SmallVectorImpl<Type>;
using MaybeLoc = std::optional<Location>;

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}
static ArrayRef<int64_t> shapeOf(Value value) {
  return typeOf(value).getShape();
}

/// Text of a shape for messages: 2x3x?.
static std::string str(ArrayRef<int64_t> shape) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleave(
      shape, os,
      [&](int64_t dim) {
        if (ShapedType::isDynamic(dim))
          os << "?";
        else
          os << dim;
      },
      "x");
  return shape.empty() ? "scalar" : text;
}

FailureOr<SmallVector<int64_t>> mgq::nn::broadcastShapes(ArrayRef<int64_t> a,
                                                         ArrayRef<int64_t> b) {
  if (a.size() < b.size())
    std::swap(a, b);
  SmallVector<int64_t> result(a);
  size_t offset = a.size() - b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    int64_t &dim = result[offset + i];
    if (dim == b[i] || b[i] == 1)
      continue;
    if (dim != 1)
      return failure();
    dim = b[i];
  }
  return result;
}

/// Broadcasts operand shapes into `shape` or reports both.
static LogicalResult broadcastInto(MaybeLoc loc, SmallVector<int64_t> &shape,
                                   Value value) {
  auto joined = broadcastShapes(shape, shapeOf(value));
  if (failed(joined))
    return emitOptionalError(loc, "shapes ", str(shape), " and ",
                             str(shapeOf(value)), " do not broadcast");
  shape = std::move(*joined);
  return success();
}

static LogicalResult checkAxis(MaybeLoc loc, int64_t axis, int64_t rank) {
  if (axis < 0 || axis >= rank)
    return emitOptionalError(loc, "axis ", axis,
                             " is outside a tensor of rank ", rank);
  return success();
}

bool mgq::nn::areEqualOrWider(TypeRange inferred, TypeRange actual) {
  return inferred.size() == actual.size() &&
         llvm::all_of(llvm::zip(inferred, actual), [](auto pair) {
           auto from = cast<RankedTensorType>(std::get<0>(pair));
           auto to = dyn_cast<RankedTensorType>(std::get<1>(pair));
           if (from == to)
             return true;
           if (!to || from.getShape() != to.getShape())
             return false;
           auto narrow = dyn_cast<FloatType>(from.getElementType());
           auto wide = dyn_cast<FloatType>(to.getElementType());
           return narrow && wide && narrow.getWidth() < wide.getWidth();
         });
}

/// The result is like `value`.
static LogicalResult same(Value value, Types &types) {
  types.push_back(value.getType());
  return success();
}

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

LogicalResult UnaryOp::inferReturnTypes(MLIRContext *context, MaybeLoc loc,
                                        Adaptor op, Types &types) {
  auto type = typeOf(op.getInput());
  bool predicate =
      op.getKind() == UnaryKind::IsNan || op.getKind() == UnaryKind::IsInf;
  types.push_back(predicate ? type.clone(IntegerType::get(context, 1)) : type);
  return success();
}

LogicalResult BinaryOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                         Adaptor op, Types &types) {
  SmallVector<int64_t> shape(shapeOf(op.getLhs()));
  if (failed(broadcastInto(loc, shape, op.getRhs())))
    return failure();
  types.push_back(typeOf(op.getLhs()).clone(shape));
  return success();
}

LogicalResult CompareOp::inferReturnTypes(MLIRContext *context, MaybeLoc loc,
                                          Adaptor op, Types &types) {
  SmallVector<int64_t> shape(shapeOf(op.getLhs()));
  if (failed(broadcastInto(loc, shape, op.getRhs())))
    return failure();
  types.push_back(RankedTensorType::get(shape, IntegerType::get(context, 1)));
  return success();
}

LogicalResult SelectOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                         Adaptor op, Types &types) {
  SmallVector<int64_t> shape(shapeOf(op.getCondition()));
  if (failed(broadcastInto(loc, shape, op.getOnTrue())) ||
      failed(broadcastInto(loc, shape, op.getOnFalse())))
    return failure();
  types.push_back(typeOf(op.getOnTrue()).clone(shape));
  return success();
}

LogicalResult DropoutOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                          Adaptor op, Types &types) {
  types.push_back(typeOf(op.getInput()));
  return success();
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

LogicalResult MatmulOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                         Adaptor op, Types &types) {
  auto a = shapeOf(op.getLhs()), b = shapeOf(op.getRhs());
  if (a.size() < 2 || b.size() < 2)
    return emitOptionalError(loc, "matmul of ", str(a), " and ", str(b),
                             ": operands need rank 2 or more");
  auto batch = broadcastShapes(a.drop_back(2), b.drop_back(2));
  if (failed(batch))
    return emitOptionalError(loc, "leading dimensions of ", str(a), " and ",
                             str(b), " do not broadcast");
  int64_t m = a[a.size() - 2], k = a.back();
  if (op.getTransposeA())
    std::swap(m, k);
  int64_t k2 = b[b.size() - 2], n = b.back();
  if (op.getTransposeB())
    std::swap(k2, n);
  if (k != k2)
    return emitOptionalError(loc, "matmul of ", str(a), " and ", str(b),
                             ": inner dimensions ", k, " and ", k2, " differ");
  SmallVector<int64_t> shape(*batch);
  shape.append({m, n});
  types.push_back(typeOf(op.getLhs()).clone(shape));
  return success();
}

LogicalResult ConvOp::inferReturnTypes(MLIRContext *, MaybeLoc loc, Adaptor op,
                                       Types &types) {
  auto x = shapeOf(op.getInput()), w = shapeOf(op.getWeight());
  size_t spatial = op.getStrides().size();
  if (x.size() != spatial + 2 || w.size() != spatial + 2)
    return emitOptionalError(loc, "convolution of ", str(x), " by ", str(w),
                             " over ", spatial, " spatial dimensions");
  if (x[1] != w[1] * static_cast<int64_t>(op.getGroups()))
    return emitOptionalError(loc, "convolution of ", str(x), " by ", str(w),
                             " in ", op.getGroups(),
                             " groups: channels do not match");
  SmallVector<int64_t> shape{x[0], w[0]};
  for (size_t i = 0; i < spatial; ++i) {
    int64_t room = x[2 + i] + op.getPadsBefore()[i] + op.getPadsAfter()[i] -
                   ((w[2 + i] - 1) * op.getDilations()[i] + 1);
    if (room < 0)
      return emitOptionalError(loc, "convolution window ", str(w),
                               " is larger than its padded input ", str(x));
    shape.push_back(room / op.getStrides()[i] + 1);
  }
  types.push_back(typeOf(op.getInput()).clone(shape));
  return success();
}

//===----------------------------------------------------------------------===//
// Shape and data movement
//===----------------------------------------------------------------------===//

LogicalResult TransposeOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                            Adaptor op, Types &types) {
  auto input = shapeOf(op.getInput());
  SmallVector<bool> seen(input.size(), false);
  SmallVector<int64_t> shape;
  for (int64_t dim : op.getPermutation()) {
    if (dim < 0 || dim >= int64_t(input.size()) || seen[dim])
      break;
    seen[dim] = true;
    shape.push_back(input[dim]);
  }
  if (shape.size() != input.size() ||
      op.getPermutation().size() != input.size())
    return emitOptionalError(loc, "permutation [", op.getPermutation(),
                             "] does not fit a tensor of rank ", input.size());
  types.push_back(typeOf(op.getInput()).clone(shape));
  return success();
}

LogicalResult SliceOp::inferReturnTypes(MLIRContext *, MaybeLoc loc, Adaptor op,
                                        Types &types) {
  auto input = shapeOf(op.getInput());
  if (op.getStarts().size() != input.size() ||
      op.getLimits().size() != input.size() ||
      op.getStrides().size() != input.size())
    return emitOptionalError(loc, "slice of a tensor of rank ", input.size(),
                             " needs as many starts, limits and strides");
  SmallVector<int64_t> shape;
  for (auto [dim, start, limit, stride] : llvm::zip_equal(
           input, op.getStarts(), op.getLimits(), op.getStrides())) {
    bool up = stride > 0;
    if (stride == 0 || (up && (start < 0 || limit > dim || start > limit)) ||
        (!up && (start >= dim || limit < -1 || limit > start)))
      return emitOptionalError(loc, "slice ", start, " to ", limit, " by ",
                               stride, " does not fit a dimension of ", dim);
    int64_t span = up ? limit - start : start - limit;
    int64_t step = up ? stride : -stride;
    shape.push_back((span + step - 1) / step);
  }
  types.push_back(typeOf(op.getInput()).clone(shape));
  return success();
}

LogicalResult PadOp::inferReturnTypes(MLIRContext *, MaybeLoc loc, Adaptor op,
                                      Types &types) {
  auto input = shapeOf(op.getInput());
  if (op.getBefore().size() != input.size() ||
      op.getAfter().size() != input.size() ||
      op.getInterior().size() != input.size())
    return emitOptionalError(loc, "pad of a tensor of rank ", input.size(),
                             " needs as many amounts");
  SmallVector<int64_t> shape;
  for (auto [dim, before, after, interior] : llvm::zip_equal(
           input, op.getBefore(), op.getAfter(), op.getInterior())) {
    if (before < 0 || after < 0 || interior < 0)
      return emitOptionalError(loc, "pad by a negative amount");
    shape.push_back(dim + before + after +
                    std::max<int64_t>(dim - 1, 0) * interior);
  }
  types.push_back(typeOf(op.getInput()).clone(shape));
  return success();
}

LogicalResult ConcatOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                         Adaptor op, Types &types) {
  if (op.getInputs().empty())
    return emitOptionalError(loc, "concat of nothing");
  SmallVector<int64_t> shape(shapeOf(op.getInputs().front()));
  int64_t axis = op.getAxis();
  if (failed(checkAxis(loc, axis, shape.size())))
    return failure();
  for (Value input : op.getInputs().drop_front()) {
    SmallVector<int64_t> other(shapeOf(input));
    if (other.size() != shape.size())
      return emitOptionalError(loc, "concat of ", str(shape), " and ",
                               str(other));
    int64_t extent = other[axis];
    other[axis] = shape[axis];
    if (other != shape)
      return emitOptionalError(loc, "concat of ", str(shape), " and ",
                               str(shapeOf(input)), " along axis ", axis);
    shape[axis] += extent;
  }
  types.push_back(typeOf(op.getInputs().front()).clone(shape));
  return success();
}

LogicalResult GatherOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                         Adaptor op, Types &types) {
  auto input = shapeOf(op.getInput());
  int64_t axis = op.getAxis();
  if (failed(checkAxis(loc, axis, input.size())))
    return failure();
  SmallVector<int64_t> shape(input.take_front(axis));
  llvm::append_range(shape, shapeOf(op.getIndices()));
  llvm::append_range(shape, input.drop_front(axis + 1));
  types.push_back(typeOf(op.getInput()).clone(shape));
  return success();
}

LogicalResult GatherElementsOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                                 Adaptor op, Types &types) {
  auto input = shapeOf(op.getInput()), indices = shapeOf(op.getIndices());
  if (input.size() != indices.size())
    return emitOptionalError(loc, "input ", str(input), " and indices ",
                             str(indices), " have different ranks");
  if (failed(checkAxis(loc, op.getAxis(), input.size())))
    return failure();
  types.push_back(typeOf(op.getInput()).clone(indices));
  return success();
}

LogicalResult ScatterElementsOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                                  Adaptor op, Types &types) {
  auto input = shapeOf(op.getInput()), indices = shapeOf(op.getIndices());
  if (failed(checkAxis(loc, op.getAxis(), input.size())))
    return failure();
  if (input.size() != indices.size() || shapeOf(op.getUpdates()) != indices)
    return emitOptionalError(loc, "updates ", str(shapeOf(op.getUpdates())),
                             " and indices ", str(indices), " into ",
                             str(input));
  return same(op.getInput(), types);
}

LogicalResult GatherNDOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                           Adaptor op, Types &types) {
  auto input = shapeOf(op.getInput()), indices = shapeOf(op.getIndices());
  int64_t batch = op.getBatchDims();
  if (indices.empty() || batch < 0 || batch >= int64_t(indices.size()) ||
      batch + indices.back() > int64_t(input.size()))
    return emitOptionalError(loc, "index tuples ", str(indices), " into ",
                             str(input), " with ", batch, " batch dimensions");
  SmallVector<int64_t> shape(indices.drop_back());
  llvm::append_range(shape, input.drop_front(batch + indices.back()));
  types.push_back(typeOf(op.getInput()).clone(shape));
  return success();
}

LogicalResult ScatterNDOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                            Adaptor op, Types &types) {
  return same(op.getInput(), types);
}

LogicalResult NonZeroOp::inferReturnTypes(MLIRContext *context, MaybeLoc loc,
                                          Adaptor op, Types &types) {
  // A scalar counts as one dimension, as in numpy.nonzero.
  int64_t rank = std::max<int64_t>(typeOf(op.getInput()).getRank(), 1);
  types.push_back(RankedTensorType::get({rank, ShapedType::kDynamic},
                                        IntegerType::get(context, 64)));
  return success();
}

LogicalResult ShapeOp::inferReturnTypes(MLIRContext *context, MaybeLoc loc,
                                        Adaptor op, Types &types) {
  types.push_back(RankedTensorType::get({typeOf(op.getInput()).getRank()},
                                        IntegerType::get(context, 64)));
  return success();
}

LogicalResult MaskedScatterOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                                Adaptor op, Types &types) {
  auto input = shapeOf(op.getInput()), mask = shapeOf(op.getMask()),
       source = shapeOf(op.getSource());
  if (mask.size() > input.size() || input.take_front(mask.size()) != mask ||
      source.empty() || source.drop_front() != input.drop_front(mask.size()))
    return emitOptionalError(loc, "masked_scatter of rows ", str(source),
                             " into ", str(input), " by mask ", str(mask));
  return same(op.getInput(), types);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

LogicalResult ReduceOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                         Adaptor op, Types &types) {
  auto input = shapeOf(op.getInput());
  SmallVector<int64_t> shape;
  SmallVector<bool> reduced(input.size(), false);
  for (int64_t axis : op.getAxes()) {
    if (failed(checkAxis(loc, axis, input.size())))
      return failure();
    reduced[axis] = true;
  }
  for (auto [dim, gone] : llvm::zip_equal(input, reduced)) {
    if (!gone)
      shape.push_back(dim);
    else if (op.getKeepDims())
      shape.push_back(1);
  }
  types.push_back(typeOf(op.getInput()).clone(shape));
  return success();
}

LogicalResult ArgReduceOp::inferReturnTypes(MLIRContext *context, MaybeLoc loc,
                                            Adaptor op, Types &types) {
  SmallVector<int64_t> shape(shapeOf(op.getInput()));
  if (failed(checkAxis(loc, op.getAxis(), shape.size())))
    return failure();
  if (op.getKeepDims())
    shape[op.getAxis()] = 1;
  else
    shape.erase(shape.begin() + op.getAxis());
  types.push_back(RankedTensorType::get(shape, IntegerType::get(context, 64)));
  return success();
}

LogicalResult CumsumOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                         Adaptor op, Types &types) {
  if (failed(checkAxis(loc, op.getAxis(), shapeOf(op.getInput()).size())))
    return failure();
  return same(op.getInput(), types);
}

//===----------------------------------------------------------------------===//
// Normalisation and softmax
//===----------------------------------------------------------------------===//

LogicalResult SoftmaxOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                          Adaptor op, Types &types) {
  if (failed(checkAxis(loc, op.getAxis(), shapeOf(op.getInput()).size())))
    return failure();
  return same(op.getInput(), types);
}

LogicalResult LogSoftmaxOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                             Adaptor op, Types &types) {
  if (failed(checkAxis(loc, op.getAxis(), shapeOf(op.getInput()).size())))
    return failure();
  return same(op.getInput(), types);
}

/// Norms: `axis` is a dimension, scale and bias broadcast to the input.
template <typename... Values>
static LogicalResult inferNorm(MaybeLoc loc, Value input, int64_t axis,
                               Types &types, Values... affine) {
  auto shape = shapeOf(input);
  if (failed(checkAxis(loc, axis, shape.size())))
    return failure();
  for (Value value : {affine...}) {
    if (!value)
      continue;
    auto joined = broadcastShapes(shape, shapeOf(value));
    if (failed(joined) || ArrayRef<int64_t>(*joined) != shape)
      return emitOptionalError(loc, "scale or bias ", str(shapeOf(value)),
                               " does not broadcast to ", str(shape));
  }
  return same(input, types);
}

LogicalResult LayerNormOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                            Adaptor op, Types &types) {
  return inferNorm(loc, op.getInput(), op.getAxis(), types, op.getScale(),
                   op.getBias());
}

LogicalResult LayerNormGradOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                                Adaptor op, Types &types) {
  return inferNorm(loc, op.getInput(), op.getAxis(), types, op.getGrad());
}

LogicalResult RMSNormOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                          Adaptor op, Types &types) {
  return inferNorm(loc, op.getInput(), op.getAxis(), types, op.getScale());
}

LogicalResult RMSNormGradOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                              Adaptor op, Types &types) {
  return inferNorm(loc, op.getInput(), op.getAxis(), types, op.getGrad());
}

//===----------------------------------------------------------------------===//
// Transformers
//===----------------------------------------------------------------------===//

/// Checks q, k, v of rank 4 and an optional mask; gives the result's shape.
static FailureOr<SmallVector<int64_t>>
attentionShape(MaybeLoc loc, Value qv, Value kv, Value vv, Value mask) {
  auto q = shapeOf(qv), k = shapeOf(kv), v = shapeOf(vv);
  bool fits = q.size() == 4 && k.size() == 4 && v.size() == 4 && q[0] == k[0] &&
              q[0] == v[0] && k[1] == v[1] && k[1] > 0 && q[1] % k[1] == 0 &&
              k[2] == v[2] && q[3] == k[3];
  if (!fits)
    return emitOptionalError(loc, "attention of q ", str(q), ", k ", str(k),
                             ", v ", str(v),
                             ": expected [batch, heads, length, width]");
  if (mask) {
    SmallVector<int64_t> scores{q[0], q[1], q[2], k[2]};
    auto joined = broadcastShapes(scores, shapeOf(mask));
    if (failed(joined) || *joined != scores)
      return emitOptionalError(loc, "attention mask ", str(shapeOf(mask)),
                               " does not broadcast to ", str(scores));
  }
  return SmallVector<int64_t>{q[0], q[1], q[2], v[3]};
}

LogicalResult AttentionOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                            Adaptor op, Types &types) {
  auto shape =
      attentionShape(loc, op.getQ(), op.getK(), op.getV(), op.getMask());
  if (failed(shape))
    return failure();
  types.push_back(typeOf(op.getQ()).clone(*shape));
  return success();
}

LogicalResult AttentionGradOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                                Adaptor op, Types &types) {
  if (failed(
          attentionShape(loc, op.getQ(), op.getK(), op.getV(), op.getMask())))
    return failure();
  types.append({op.getQ().getType(), op.getK().getType(), op.getV().getType()});
  return success();
}

LogicalResult RopeOp::inferReturnTypes(MLIRContext *, MaybeLoc loc, Adaptor op,
                                       Types &types) {
  auto shape = shapeOf(op.getInput());
  if (shape.empty() || shape.back() % 2 != 0)
    return emitOptionalError(loc, "rope of ", str(shape),
                             ": the last dimension must be even");
  return inferNorm(loc, op.getInput(), 0, types, op.getCos(), op.getSin());
}

//===----------------------------------------------------------------------===//
// Loss
//===----------------------------------------------------------------------===//

LogicalResult CrossEntropyOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                               Adaptor op, Types &types) {
  auto logits = shapeOf(op.getLogits()), labels = shapeOf(op.getLabels());
  if (logits.size() != 2 || labels.size() != 1 || logits[0] != labels[0])
    return emitOptionalError(loc, "cross_entropy of logits ", str(logits),
                             " and labels ", str(labels),
                             ": expected [rows, classes] and [rows]");
  types.push_back(typeOf(op.getLogits()).clone(labels));
  return success();
}

LogicalResult CrossEntropyGradOp::inferReturnTypes(MLIRContext *, MaybeLoc loc,
                                                   Adaptor op, Types &types) {
  return same(op.getLogits(), types);
}
