//===- Passes.h - Passes from nn to target code ---------------------------===//
#ifndef MGQ_PASSES_KERNELS_PASSES_H
#define MGQ_PASSES_KERNELS_PASSES_H

#include "dialects/Kern/Kern.h"
#include "dialects/NN/NN.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace mgq::kernels {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "passes/Kernels/Passes.h.inc"

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_PASSES_H
