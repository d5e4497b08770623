//===- SimplifyNorm.cpp - rms_norm and layer_norm
//---------------------------===//
//
//   x * rsqrt(mean(x^2) + e)       -> rms_norm x   (rsqrt in all spellings)
//   rms_norm (x - mean(x))         -> layer_norm x
//   norm * w, norm + b             -> norm with scale, bias
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

using namespace mlir;
using namespace mgq::nn;

/// For x^2 as pow(x, 2) or x * x: x.
static Value matchSquare(Value value) {
  if (BinaryOp pow = definedBy(value, BinaryKind::Pow)) {
    if (splatConstant(pow.getRhs()) == 2.0 ||
        splatInteger(pow.getRhs()) == int64_t(2))
      return pow.getLhs();
  } else if (BinaryOp mul = definedBy(value, BinaryKind::Mul)) {
    if (mul.getLhs() == mul.getRhs())
      return mul.getLhs();
  }
  return nullptr;
}

/// For sqrt(v), as sqrt or pow: v.
static Value matchRoot(Value value) {
  if (UnaryOp sqrt = definedBy(value, UnaryKind::Sqrt))
    return sqrt.getInput();
  BinaryOp pow = definedBy(value, BinaryKind::Pow);
  return pow && splatConstant(pow.getRhs()) == 0.5 ? pow.getLhs() : Value();
}

/// For 1 / sqrt(v), in all spellings: v.
static Value matchInverseRoot(Value value) {
  if (UnaryOp rsqrt = definedBy(value, UnaryKind::Rsqrt))
    return rsqrt.getInput();
  if (UnaryOp reciprocal = definedBy(value, UnaryKind::Reciprocal))
    return matchRoot(reciprocal.getInput());
  if (BinaryOp div = definedBy(value, BinaryKind::Div))
    return splatConstant(div.getLhs()) == 1.0 ? matchRoot(div.getRhs())
                                              : Value();
  BinaryOp pow = definedBy(value, BinaryKind::Pow);
  return pow && splatConstant(pow.getRhs()) == -0.5 ? pow.getLhs() : Value();
}

namespace {
struct RMSNormFromParts : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    Value input = op.getLhs(), power;
    if (op.getKind() == BinaryKind::Mul) {
      power = matchInverseRoot(op.getRhs());
      if (!power) {
        input = op.getRhs();
        power = matchInverseRoot(op.getLhs());
      }
    } else if (op.getKind() == BinaryKind::Div) {
      power = matchRoot(op.getRhs());
    }
    if (!power)
      return rewriter.notifyMatchFailure(op, "does not divide by a root");
    auto offset = matchOffset(power);
    auto mean = offset ? matchMean(offset->input) : std::nullopt;
    Value squared = mean ? matchSquare(mean->input) : Value();
    if (!squared || squared != input || op.getType() != input.getType())
      return rewriter.notifyMatchFailure(op, "root is not that of a mean "
                                             "square of what is divided");
    rewriter.replaceOpWithNewOp<RMSNormOp>(op, input, Value(), mean->axis,
                                           APFloat(offset->factor));
    return success();
  }
};

struct LayerNormFromRMSNorm : OpRewritePattern<RMSNormOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(RMSNormOp op,
                                PatternRewriter &rewriter) const override {
    BinaryOp centered = definedBy(op.getInput(), BinaryKind::Sub);
    auto mean = centered ? matchMean(centered.getRhs()) : std::nullopt;
    if (!mean || mean->input != centered.getLhs() ||
        mean->axis != int64_t(op.getAxis()))
      return rewriter.notifyMatchFailure(op, "input is not centered");
    rewriter.replaceOpWithNewOp<LayerNormOp>(
        op, mean->input, op.getScale(), Value(), op.getAxis(), op.getEpsilon());
    return success();
  }
};

/// Whether `value` has one element per element that a norm over the dimensions
/// from `axis` of `shape` runs over.
static bool isAffine(Value value, ArrayRef<int64_t> shape, int64_t axis) {
  auto normed = shape.drop_front(axis), own = shapeOf(value);
  while (own.size() > normed.size() && own.front() == 1)
    own = own.drop_front();
  return own == normed;
}

/// The norm among the operands of `op` that only `op` uses, and the other
/// operand, which is one element per normed element.
template <typename Norm>
static std::pair<Norm, Value> matchAffine(BinaryOp op) {
  Value value = op.getLhs(), other = op.getRhs();
  for (int i = 0; i < 2; ++i, std::swap(value, other)) {
    auto norm = value.getDefiningOp<Norm>();
    if (norm && value.hasOneUse() && op.getType() == value.getType() &&
        isAffine(other, shapeOf(value), norm.getAxis()))
      return {norm, other};
  }
  return {};
}

struct AbsorbScale : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getKind() != BinaryKind::Mul)
      return rewriter.notifyMatchFailure(op, "does not scale");
    if (auto [norm, scale] = matchAffine<RMSNormOp>(op);
        norm && !norm.getScale()) {
      rewriter.replaceOpWithNewOp<RMSNormOp>(op, norm.getInput(), scale,
                                             norm.getAxis(), norm.getEpsilon());
      return success();
    }
    if (auto [norm, scale] = matchAffine<LayerNormOp>(op);
        norm && !norm.getScale() && !norm.getBias()) {
      rewriter.replaceOpWithNewOp<LayerNormOp>(op, norm.getInput(), scale,
                                               Value(), norm.getAxis(),
                                               norm.getEpsilon());
      return success();
    }
    return rewriter.notifyMatchFailure(op, "does not scale a norm");
  }
};

struct AbsorbBias : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getKind() != BinaryKind::Add)
      return rewriter.notifyMatchFailure(op, "does not add");
    auto [norm, bias] = matchAffine<LayerNormOp>(op);
    if (!norm || norm.getBias())
      return rewriter.notifyMatchFailure(op, "does not add to a layer_norm");
    rewriter.replaceOpWithNewOp<LayerNormOp>(op, norm.getInput(),
                                             norm.getScale(), bias,
                                             norm.getAxis(), norm.getEpsilon());
    return success();
  }
};
} // namespace

void mgq::nn::populateNormPatterns(RewritePatternSet &patterns) {
  patterns.add<RMSNormFromParts, LayerNormFromRMSNorm, AbsorbScale, AbsorbBias>(
      patterns.getContext());
}
