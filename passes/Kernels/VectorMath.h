//===- VectorMath.h - exp, exp2, tanh and erf of f32 as own polynomials ---===//
//
// Builders for straight-line code on f32 scalars or vectors of f32 (any shape).
// Only arith operations and math.fma come out, so nothing needs a library and
// every lane and every instruction set gives the same bits. The code rounds by
// adding a large constant: fast-math flags on it (reassoc) would delete that
// and give wrong results; none are set and none may be added.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_VECTORMATH_H
#define MGQ_PASSES_KERNELS_VECTORMATH_H

#include "mlir/IR/Builders.h"

namespace mgq::kernels {

/// e^x, at most 0.9 ulp off. Overflow gives infinity, results below the
/// smallest normal number give 0, NaN stays NaN.
mlir::Value emitExp(mlir::OpBuilder &builder, mlir::Location loc,
                    mlir::Value x);

/// 2^x, at most 0.9 ulp off; edges as emitExp.
mlir::Value emitExp2(mlir::OpBuilder &builder, mlir::Location loc,
                     mlir::Value x);

/// 2^x for x <= 0 (or NaN): one selection less than emitExp2.
mlir::Value emitExp2NonPositive(mlir::OpBuilder &builder, mlir::Location loc,
                                mlir::Value x);

/// tanh x, at most 1.8 ulp off.
mlir::Value emitTanh(mlir::OpBuilder &builder, mlir::Location loc,
                     mlir::Value x);

/// The error function of x, at most 1 ulp off.
mlir::Value emitErf(mlir::OpBuilder &builder, mlir::Location loc,
                    mlir::Value x);

/// log2 x for x > 0 and normal, at most 1e-7 absolute or relative off.
mlir::Value emitLog2(mlir::OpBuilder &builder, mlir::Location loc,
                     mlir::Value x);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_VECTORMATH_H
