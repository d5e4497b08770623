//===- Interpreter.h - Reference interpreter of nn --------------*- C++ -*-===//
//
// Runs functions of nn ops, slowly and plainly: what an op means is what this
// code does. Arithmetic is f64; each result is rounded to its element type.
// Tests compare gradients, folding and kernels with it.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_DIALECTS_NN_INTERPRETER_INTERPRETER_H
#define MGQ_DIALECTS_NN_INTERPRETER_INTERPRETER_H

#include "dialects/NN/Interpreter/Tensor.h"
#include "dialects/NN/NN.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringMap.h"

namespace mgq::nn {

/// Values of parameters by name.
using Parameters = llvm::StringMap<Tensor>;

/// Runs a function; its calls are looked up in its module. Reports what it
/// cannot run.
mlir::FailureOr<llvm::SmallVector<Tensor>>
interpret(mlir::func::FuncOp function, llvm::ArrayRef<Tensor> inputs,
          const Parameters &parameters = {});

} // namespace mgq::nn

#endif // MGQ_DIALECTS_NN_INTERPRETER_INTERPRETER_H
