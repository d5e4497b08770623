//===- Simplify.h - Pattern sets and matchers of nn-simplify
//----------------===//
#ifndef MGQ_PASSES_NN_SIMPLIFY_H
#define MGQ_PASSES_NN_SIMPLIFY_H

#include "dialects/NN/NN.h"
#include "mlir/IR/PatternMatch.h"

namespace mgq::nn {

// Pattern sets, by idiom. Each expects what the earlier ones leave.

/// Views that cancel or merge; constant indices become slices.
void populateShapePatterns(mlir::RewritePatternSet &patterns);
/// Transposes into products, patch embedding, batched Gemm.
void populateLinearPatterns(mlir::RewritePatternSet &patterns);
/// rms_norm and layer_norm from their parts.
void populateNormPatterns(mlir::RewritePatternSet &patterns);
/// gelu, gelu_tanh, silu.
void populateActivationPatterns(mlir::RewritePatternSet &patterns);
/// rope from slices, halves or pairs.
void populateRopePatterns(mlir::RewritePatternSet &patterns);
/// attention from two products and a softmax.
void populateAttentionPatterns(mlir::RewritePatternSet &patterns);
/// masked_scatter from NonZero and ScatterND.
void populateMaskedScatterPatterns(mlir::RewritePatternSet &patterns);
/// cross_entropy and label_weights from log_softmax and gathers.
void populateLossPatterns(mlir::RewritePatternSet &patterns);

// Matchers.

inline mlir::RankedTensorType typeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}
inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return typeOf(value).getShape();
}

/// Value of all elements of a float constant, or nothing.
std::optional<double> splatConstant(mlir::Value value);
/// The same of an integer or boolean constant.
std::optional<int64_t> splatInteger(mlir::Value value);
/// Elements of an integer constant, or nothing.
std::optional<llvm::SmallVector<int64_t>> integerConstant(mlir::Value value);

/// Whether two numbers are equal up to the rounding of f32 constants.
bool isNear(double a, double b);

/// The op of `kind` that defines `value`, or null.
BinaryOp definedBy(mlir::Value value, BinaryKind kind);
UnaryOp definedBy(mlir::Value value, UnaryKind kind);

/// For x * c, c * x or x / c with a scalar c: x and the factor. The type of x
/// is that of `value`.
struct Scaled {
  mlir::Value input;
  double factor = 1;
};
std::optional<Scaled> matchScaled(mlir::Value value);

/// For x + c or c + x: x and c.
std::optional<Scaled> matchOffset(mlir::Value value);

/// The mean of `input` over the dimensions from `axis`, kept as 1.
struct Mean {
  mlir::Value input;
  int64_t axis = 0;
};
std::optional<Mean> matchMean(mlir::Value value);

/// Whether a parameter stands somewhere behind `value`: a mask has no gradient,
/// so it must not depend on one.
bool dependsOnParam(mlir::Value value);

/// Behind casts between float types and reshapes; `value` itself if none.
mlir::Value stripCasts(mlir::Value value);

/// `value` with another shape; itself where that is its shape.
mlir::Value reshapeTo(mlir::OpBuilder &builder, mlir::Location loc,
                      mlir::Value value, llvm::ArrayRef<int64_t> shape);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_SIMPLIFY_H
