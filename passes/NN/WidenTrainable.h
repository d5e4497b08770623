//===- WidenTrainable.h - Narrow parameters that train are f32 --*- C++ -*-===//
#ifndef MGQ_PASSES_NN_WIDENTRAINABLE_H
#define MGQ_PASSES_NN_WIDENTRAINABLE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mgq::nn {

/// Gives trainable parameters that are stored as bf16 or f16 their f32 values
/// in `function`, and erases the casts to f32 that this makes needless.
void widenTrainable(mlir::func::FuncOp function);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_WIDENTRAINABLE_H
