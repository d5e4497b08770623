//===- LayerSlice.h - Parts of a graph as layer functions -------*- C++ -*-===//
#ifndef MGQ_PASSES_NN_LAYERSLICE_H
#define MGQ_PASSES_NN_LAYERSLICE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/DenseSet.h"

namespace mgq::nn {

/// An empty private layer function, detached.
mlir::func::FuncOp createLayer(mlir::Location loc, llvm::StringRef name,
                               mlir::TypeRange inputs, mlir::TypeRange results);

/// Ops that `roots` need, given the values that `map` holds already.
llvm::DenseSet<mlir::Operation *> sliceOf(mlir::ValueRange roots,
                                          const mlir::IRMapping &map);

/// Fills a function with the ops of `graph` that compute `roots` from the
/// values of `map`, in their order, and nothing else.
void cloneSlice(mlir::Block &graph, mlir::func::FuncOp function,
                mlir::IRMapping &map, mlir::ValueRange roots);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_LAYERSLICE_H
