//===- ExpandMath.cpp - math functions as polynomials or library calls ----===//
//
// In: math ops on f32 and f64 (scalars, vectors). After: f32 exp, exp2, tanh,
// erf (VectorMath.h), log and log1p (upstream's polynomials) are arithmetic,
// which LLVM vectorises; functions without an LLVM intrinsic are calls of
// libm; conversions of f32 and bf16 are bit operations (round to nearest even,
// denormals kept).
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"
#include "passes/Kernels/VectorMath.h"

#include "mlir/Conversion/MathToLibm/MathToLibm.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Transforms/DialectConversion.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_EXPANDMATHPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq::kernels;

namespace {
/// Replaces an f32 function by its polynomial.
template <typename OpTy, Value (*emit)(OpBuilder &, Location, Value)>
struct Polynomial : OpRewritePattern<OpTy> {
  using OpRewritePattern<OpTy>::OpRewritePattern;
  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    if (!getElementTypeOrSelf(op.getType()).isF32())
      return rewriter.notifyMatchFailure(op, "is not of f32");
    rewriter.replaceOp(op, emit(rewriter, op.getLoc(), op.getOperand()));
    return success();
  }
};

/// Integer to bf16 by way of f32; canonicalization joins the two steps, but
/// only the second has a form in bit operations.
template <typename OpTy>
struct IntegerToBF16 : OpRewritePattern<OpTy> {
  using OpRewritePattern<OpTy>::OpRewritePattern;
  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    Type type = op.getType();
    if (!getElementTypeOrSelf(type).isBF16())
      return rewriter.notifyMatchFailure(op, "is not to bf16");
    Type wide = rewriter.getF32Type();
    if (auto vector = dyn_cast<VectorType>(type))
      wide = vector.clone(wide);
    Value value = OpTy::create(rewriter, op.getLoc(), wide, op.getIn());
    rewriter.replaceOpWithNewOp<arith::TruncFOp>(op, type, value);
    return success();
  }
};

struct ExpandMathPass : mgq::kernels::impl::ExpandMathPassBase<ExpandMathPass> {
  void runOnOperation() override {
    MLIRContext *context = &getContext();
    RewritePatternSet patterns(context);
    patterns.add<
        Polynomial<math::ExpOp, emitExp>, Polynomial<math::Exp2Op, emitExp2>,
        Polynomial<math::TanhOp, emitTanh>, Polynomial<math::ErfOp, emitErf>>(
        context);
    populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
      return name == "math.log" || name == "math.log1p";
    });
    patterns
        .add<IntegerToBF16<arith::SIToFPOp>, IntegerToBF16<arith::UIToFPOp>>(
            context);
    arith::populateExpandBFloat16Patterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      return signalPassFailure();

    // What LLVM's own intrinsics do not cover.
    RewritePatternSet calls(context);
    populateMathToLibmConversionPatterns(calls);
    ConversionTarget target(*context);
    target.markUnknownOpDynamicallyLegal([](Operation *) { return true; });
    target.addIllegalOp<math::ErfOp, math::TanOp, math::AsinOp, math::AcosOp,
                        math::AtanOp, math::Atan2Op, math::SinhOp, math::CoshOp,
                        math::AsinhOp, math::AcoshOp, math::AtanhOp,
                        math::TanhOp, math::Log1pOp, math::CbrtOp>();
    if (failed(
            applyPartialConversion(getOperation(), target, std::move(calls))))
      signalPassFailure();
  }
};
} // namespace
