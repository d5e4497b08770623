//===- SimplifyActivation.cpp - gelu, gelu_tanh, silu
//-----------------------===//
//
//   0.5 x (1 + erf(x / sqrt 2))                              -> gelu
//   0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))        -> gelu_tanh
//   x sigmoid(x)                                             -> silu
//
// Exporters multiply and nest these in every order. So the product is taken
// apart into factors, and what stands inside erf or tanh is read as a
// polynomial in x: all spellings have the same coefficients.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"

#include <cmath>

using namespace mlir;
using namespace mgq::nn;

namespace {
/// Coefficients, that of degree 0 first; none higher than 3 is non-zero.
using Polynomial = std::array<double, 4>;

std::optional<Polynomial> multiply(const Polynomial &a, const Polynomial &b) {
  Polynomial product{};
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j) {
      if (a[i] == 0 || b[j] == 0)
        continue;
      if (i + j >= product.size())
        return std::nullopt;
      product[i + j] += a[i] * b[j];
    }
  return product;
}

/// `value` as a polynomial in `x`, or nothing.
std::optional<Polynomial> polynomialIn(Value value, Value x, int depth = 8) {
  if (value == x)
    return Polynomial{0, 1};
  if (auto constant = splatConstant(value))
    return Polynomial{*constant};
  auto op = value.getDefiningOp<BinaryOp>();
  if (!op || depth == 0)
    return std::nullopt;
  auto lhs = polynomialIn(op.getLhs(), x, depth - 1);
  if (!lhs)
    return std::nullopt;
  if (op.getKind() == BinaryKind::Pow) {
    auto exponent = splatConstant(op.getRhs());
    if (auto integer = splatInteger(op.getRhs()))
      exponent = double(*integer);
    if (exponent == 2.0)
      return multiply(*lhs, *lhs);
    if (exponent != 3.0)
      return std::nullopt;
    auto square = multiply(*lhs, *lhs);
    return square ? multiply(*square, *lhs) : std::nullopt;
  }
  auto rhs = polynomialIn(op.getRhs(), x, depth - 1);
  if (!rhs)
    return std::nullopt;
  switch (op.getKind()) {
  case BinaryKind::Add:
    for (size_t i = 0; i < lhs->size(); ++i)
      (*lhs)[i] += (*rhs)[i];
    return lhs;
  case BinaryKind::Mul:
    return multiply(*lhs, *rhs);
  case BinaryKind::Div: {
    auto divisor = splatConstant(op.getRhs());
    return divisor ? multiply(*lhs, Polynomial{1 / *divisor}) : std::nullopt;
  }
  default:
    return std::nullopt;
  }
}

bool isNearTo(const Polynomial &a, const Polynomial &b) {
  return llvm::all_of(llvm::zip_equal(a, b), [](auto pair) {
    return isNear(std::get<0>(pair), std::get<1>(pair));
  });
}

/// A product taken apart: scalars multiplied, the other factors listed.
struct Product {
  double scale = 1;
  SmallVector<Value> factors;

  void collect(Value value, bool isRoot = false) {
    auto op = value.getDefiningOp<BinaryOp>();
    if (auto constant = splatConstant(value)) {
      scale *= *constant;
    } else if (op && op.getKind() == BinaryKind::Mul &&
               (isRoot || value.hasOneUse())) {
      collect(op.getLhs());
      collect(op.getRhs());
    } else if (auto scaled = matchScaled(value); scaled && value.hasOneUse()) {
      scale *= scaled->factor;
      collect(scaled->input);
    } else {
      factors.push_back(value);
    }
  }
};

/// The erf or tanh under additions and products of `value`, or null.
UnaryOp findBell(Value value, int depth = 3) {
  if (auto unary = value.getDefiningOp<UnaryOp>())
    return unary.getKind() == UnaryKind::Erf ||
                   unary.getKind() == UnaryKind::Tanh
               ? unary
               : nullptr;
  auto op = value.getDefiningOp<BinaryOp>();
  if (!op || depth == 0 ||
      (op.getKind() != BinaryKind::Add && op.getKind() != BinaryKind::Mul))
    return nullptr;
  if (UnaryOp bell = findBell(op.getLhs(), depth - 1))
    return bell;
  return findBell(op.getRhs(), depth - 1);
}

struct GeluFromParts : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getKind() != BinaryKind::Mul && op.getKind() != BinaryKind::Div)
      return rewriter.notifyMatchFailure(op, "not a product");
    Product product;
    if (auto scaled = matchScaled(op.getResult())) {
      product.scale = scaled->factor;
      product.collect(scaled->input);
    } else {
      product.collect(op.getResult(), /*isRoot=*/true);
    }
    if (product.factors.size() != 2)
      return rewriter.notifyMatchFailure(op, "not a product of two factors");
    Value x = product.factors[0], gate = product.factors[1];
    UnaryOp bell = findBell(gate);
    if (!bell) {
      std::swap(x, gate);
      bell = findBell(gate);
    }
    if (!bell || op.getType() != x.getType())
      return rewriter.notifyMatchFailure(op, "no factor has erf or tanh");
    // gate * scale = 0.5 + 0.5 bell
    auto outer = polynomialIn(gate, bell.getResult());
    if (!outer || !isNear((*outer)[0] * product.scale, 0.5) ||
        !isNear((*outer)[1] * product.scale, 0.5) || (*outer)[2] != 0 ||
        (*outer)[3] != 0)
      return rewriter.notifyMatchFailure(op, "factor is not 0.5 + 0.5 f");
    auto inner = polynomialIn(bell.getInput(), x);
    bool isErf = bell.getKind() == UnaryKind::Erf;
    double slope = isErf ? std::sqrt(0.5) : std::sqrt(2 / M_PI);
    Polynomial expected{0, slope, 0, isErf ? 0 : slope * 0.044715};
    if (!inner || !isNearTo(*inner, expected))
      return rewriter.notifyMatchFailure(op, "f is of another polynomial");
    rewriter.replaceOpWithNewOp<UnaryOp>(
        op, isErf ? UnaryKind::Gelu : UnaryKind::GeluTanh, x);
    return success();
  }
};

struct SiluFromParts : OpRewritePattern<BinaryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(BinaryOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getKind() != BinaryKind::Mul)
      return rewriter.notifyMatchFailure(op, "not a product");
    Value x = op.getLhs(), gate = op.getRhs();
    for (int i = 0; i < 2; ++i, std::swap(x, gate)) {
      UnaryOp sigmoid = definedBy(gate, UnaryKind::Sigmoid);
      if (!sigmoid || sigmoid.getInput() != x)
        continue;
      rewriter.replaceOpWithNewOp<UnaryOp>(op, UnaryKind::Silu, x);
      return success();
    }
    return rewriter.notifyMatchFailure(op, "not x sigmoid(x)");
  }
};
} // namespace

void mgq::nn::populateActivationPatterns(RewritePatternSet &patterns) {
  patterns.add<GeluFromParts, SiluFromParts>(patterns.getContext());
}
