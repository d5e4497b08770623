//===- Passes.h - Passes over nn ------------------------------------------===//
#ifndef MGQ_PASSES_NN_PASSES_H
#define MGQ_PASSES_NN_PASSES_H

#include "dialects/NN/NN.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace mgq::nn {

/// Which forward values backward computes again rather than keeps.
enum class Recompute { None, Cheap, Full };

/// Whether gradients of weights are calls of their own.
enum class SplitWeights { Never, Always, Auto };

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "passes/NN/Passes.h.inc"

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_PASSES_H
