//===- Passes.h - Passes over pipe ----------------------------------------===//
#ifndef MGQ_PASSES_PIPE_PASSES_H
#define MGQ_PASSES_PIPE_PASSES_H

#include "dialects/NN/NN.h"
#include "dialects/Pipe/Pipe.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace mgq::pipe {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "passes/Pipe/Passes.h.inc"

} // namespace mgq::pipe

#endif // MGQ_PASSES_PIPE_PASSES_H
