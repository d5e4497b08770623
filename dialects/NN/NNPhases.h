//===- NNPhases.h - Progressive precision: when layers change ---*- C++ -*-===//
#ifndef MGQ_DIALECTS_NN_NNPHASES_H
#define MGQ_DIALECTS_NN_NNPHASES_H

#include "mlir/IR/BuiltinAttributes.h"

namespace mgq::nn {

/// Progressive precision. On the module: steps in f32, and steps in which the
/// layers change to bf16 after that, first to last. On a layer function: the
/// one of the same operands and results that takes its place then.
inline constexpr llvm::StringLiteral kFp32StepsAttr = "nn.fp32_steps";
inline constexpr llvm::StringLiteral kBf16RampAttr = "nn.bf16_ramp";
inline constexpr llvm::StringLiteral kLateAttr = "nn.late";

/// The function that takes the place of layer function `name`, or null.
mlir::FlatSymbolRefAttr lateOf(mlir::Operation *module, llvm::StringRef name);
/// The step, from 0, from which on layer number `layer` of `count` is late.
int64_t lateFrom(mlir::Operation *module, int64_t layer, int64_t count);

} // namespace mgq::nn

#endif // MGQ_DIALECTS_NN_NNPHASES_H
