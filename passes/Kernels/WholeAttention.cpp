//===- WholeAttention.cpp - Attention that stays one op -------------------===//
//
// CPU: of f32. CUDA: of floats up to f32, with head sizes that the kernels have
// registers for. Those kernels read and write any of these types; cuDNN wants
// one narrow type for all tensors. So where q, k and v have one, and there is
// no cap, the others become that: the result, its gradient, and a mask, as a
// bias.
//
// There a bias of -inf has no meaning that can be relied on for a row that sees
// nothing. It becomes a large finite one, or 0 in all of such a row, and what
// such rows give is set right outside: their result, and the gradient of it,
// are zeros. A row of large negative numbers alone would cost cuDNN the sum of
// its statistics (maximum + log(sum)): the largest is taken off it, which
// changes no probability but for what rounding did to the scores.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/WholeAttention.h"

#include <limits>

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;
using P = nn::ComparePredicate;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// A row of a bias whose largest element is below this hides all keys.
static constexpr double kHidden = -1024;

static bool isUpToF32(Type type) {
  return type.isF32() || type.isF16() || type.isBF16();
}

static bool fits(int64_t headSize) {
  return headSize <= kMostHeadSize && headSize % kHeadSizeStep == 0;
}

/// Whether the target has kernels for `op`.
template <typename OpTy>
static bool hasKernels(const Lowering &l, OpTy op) {
  Type result = elementOf(op->getResult(0));
  Type mask = op.getMask() ? elementOf(op.getMask()) : Type();
  switch (l.attention) {
  case AttentionForm::Products:
    return false;
  case AttentionForm::Fused:
    return result.isF32() && (!mask || mask.isF32() || mask.isInteger(1));
  case AttentionForm::Tiled:
    return isUpToF32(result) && isUpToF32(elementOf(op.getQ())) &&
           isUpToF32(elementOf(op.getK())) && isUpToF32(elementOf(op.getV())) &&
           (!mask || isUpToF32(mask) || mask.isInteger(1)) &&
           fits(shapeOf(op.getQ())[3]) && fits(shapeOf(op.getV())[3]);
  }
  llvm_unreachable("there are no other forms");
}

namespace {
/// The tensors of an op as its kernel takes them.
class Operands {
public:
  template <typename OpTy>
  Operands(Lowering &l, OpTy op)
      : l(l), mask(l.get(op.getMask())), causal(op.getCausal()),
        queries(shapeOf(op.getQ())[2]), keys(shapeOf(op.getK())[2]) {
    if (op.getCausalFromEnd())
      causalOffset = keys - queries;
    if (l.attention == AttentionForm::Fused) {
      factorType = elementOf(op->getResult(0));
      return;
    }
    Type q = elementOf(op.getQ());
    bool isOneType =
        q == elementOf(op.getK()) && q == elementOf(op.getV()) && !q.isF32();
    // With more queries than keys, the first ones see nothing.
    bool isLibrarys = op.getSoftcap().convertToDouble() == 0 &&
                      (!causal || causalOffset >= 0);
    if (!isOneType || !isLibrarys)
      return;
    factorType = resultType = q;
    if (mask)
      makeBias();
  }

  /// q, k or v.
  Value factor(Value operand) const { return as(l.get(operand), factorType); }
  /// The result of the forward pass, which backward reads.
  Value result(Value operand) const {
    return as(l.get(operand), resultType ? resultType : factorType);
  }
  /// The gradient of that.
  Value gradient(Value operand) const {
    return seen ? onlySeen(l.get(operand), resultType) : result(operand);
  }
  /// Of something that the kernel writes for `result` of the op.
  Value init(Value result) const {
    return l.empty(shapeOf(result),
                   resultType ? resultType : elementOf(result));
  }
  /// What the kernel wrote, as the op's result.
  void finish(Value result, Value written, bool isForward) const {
    l.set(result, isForward && seen ? onlySeen(written, elementOf(result))
                                    : l.convert(written, elementOf(result)));
  }
  Value getMask() const { return mask; }

private:
  Value as(Value value, Type type) const {
    return type ? l.convert(value, type) : value;
  }
  void makeBias();
  Value maskAsBias(ScalarBuilder &s, Value mask, Value hidden) const;
  Value onlySeen(Value value, Type element) const;

  Lowering &l;
  Value mask;
  bool causal;
  int64_t queries, keys, causalOffset = 0;
  Type factorType, resultType; ///< null: as they are
  Value seen; ///< of each row, whether it sees a key; null: all do
};
} // namespace

/// An element of the mask as what is added to a score.
Value Operands::maskAsBias(ScalarBuilder &s, Value mask, Value hidden) const {
  Type f32 = s.builder.getF32Type();
  if (mask.getType().isInteger(1))
    return s.select(mask, s.constant(f32, 0), hidden);
  return s.select(s.compare(P::Lt, mask, hidden), hidden, mask);
}

/// Replaces the mask by a bias of finite numbers, and finds out which rows see
/// something.
void Operands::makeBias() {
  // Far below any score; twice it is finite, too.
  double lowest = resultType.isF16() ? -32768.0 : -0x1p100;
  Value original = mask;
  ArrayRef<int64_t> shape = shapeOf(original);
  mask = l.loops(
      original, l.type(shape, resultType),
      [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        Type f32 = b.builder.getF32Type();
        Value never = b.constant(f32, -kInfinity), zero = b.constant(f32, 0);
        b.parallel(shape.drop_back(), [&](ValueRange row) {
          SmallVector<Value> at(row);
          at.push_back(nullptr);
          auto load = [&](Value key) {
            at.back() = key;
            return maskAsBias(b, b.load(in[0], at), never);
          };
          Value best = b.fold(shape.back(), never, [&](Value key, Value best) {
            return b.max(best, load(key));
          });
          Value nothing = b.compare(P::Eq, best, never);
          Value base = b.select(
              b.compare(P::Lt, best, b.constant(f32, kHidden)), best, zero);
          b.loop(shape.back(), [&](Value key) {
            Value low = b.constant(f32, lowest), own = b.sub(load(key), base);
            own = b.select(b.compare(P::Lt, own, low), low, own);
            b.store(b.select(nothing, zero, own), out[0], at);
          });
        });
      })[0];
  SmallVector<int64_t> maskShape(4, 1);
  llvm::copy(llvm::reverse(shapeOf(original)), maskShape.rbegin());
  Type i1 = l.builder.getI1Type();
  RankedTensorType type = l.type({maskShape[0], maskShape[1], queries, 1}, i1);
  seen = l.loops(
      original, type, [&](LoopBuilder &b, ValueRange in, ValueRange out) {
        Type f32 = b.builder.getF32Type();
        Value never = b.constant(f32, -kInfinity);
        b.parallel({maskShape[0], maskShape[1], queries}, [&](ValueRange row) {
          Value best = b.fold(keys, never, [&](Value key, Value best) {
            SmallVector<Value> at(row);
            at.push_back(key);
            Value own =
                b.load(in[0], b.broadcastIndices(shapeOf(original), at));
            own = maskAsBias(b, own, never);
            if (causal) {
              Value last = b.add(row[2], b.index(causalOffset));
              own = b.select(b.compare(P::Le, key, last), own, never);
            }
            return b.max(best, own);
          });
          b.store(b.compare(P::Gt, best, never), out[0],
                  {row[0], row[1], row[2], b.index(0)});
        });
      })[0];
}

/// Zeros in rows that see nothing.
Value Operands::onlySeen(Value value, Type element) const {
  return l.elementwise(shapeOf(value), element, {value, seen},
                       [&](ScalarBuilder &s, ValueRange in) {
                         return s.select(in[1], in[0],
                                         s.constant(in[0].getType(), 0));
                       });
}

bool kernels::keepAttention(Lowering &l, nn::AttentionOp op) {
  if (!hasKernels(l, op))
    return false;
  Operands operands(l, op);
  Value q = operands.factor(op.getQ()), k = operands.factor(op.getK());
  Value v = operands.factor(op.getV()), init = operands.init(op.getResult());
  auto kernel = kern::AttentionOp::create(
      l.builder, l.loc, init.getType(), q, k, v, operands.getMask(), init,
      op.getScaleAttr(), op.getCausalAttr(), op.getCausalFromEndAttr(),
      op.getSoftcapAttr());
  operands.finish(op.getResult(), kernel.getResult(0), /*isForward=*/true);
  return true;
}

bool kernels::keepAttention(Lowering &l, nn::AttentionGradOp op) {
  if (!hasKernels(l, op))
    return false;
  Operands operands(l, op);
  Value q = operands.factor(op.getQ()), k = operands.factor(op.getK());
  Value v = operands.factor(op.getV());
  Value result = operands.result(op.getResult());
  Value grad = operands.gradient(op.getGrad());
  SmallVector<Value> inits;
  SmallVector<Type> types;
  for (Value gradient : op->getResults()) {
    inits.push_back(operands.init(gradient));
    types.push_back(inits.back().getType());
  }
  auto kernel = kern::AttentionGradOp::create(
      l.builder, l.loc, types, q, k, v, result, grad, operands.getMask(), inits,
      op.getScaleAttr(), op.getCausalAttr(), op.getCausalFromEndAttr(),
      op.getSoftcapAttr());
  for (auto [gradient, written] :
       llvm::zip_equal(op->getResults(), kernel.getResults()))
    operands.finish(gradient, written, /*isForward=*/false);
  return true;
}
