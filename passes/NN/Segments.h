//===- Segments.h - Cutting a graph into layers
//-----------------------------===//
#ifndef MGQ_PASSES_NN_SEGMENTS_H
#define MGQ_PASSES_NN_SEGMENTS_H

#include "dialects/NN/NN.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mgq::nn {

/// What an op of @model is for outlining.
enum class Role {
  Param,    ///< nn.param_ref: an operand of calls
  Constant, ///< copied into each layer that uses it
  View,     ///< cheap, of one or more parameters only: copied likewise
  Input,    ///< recomputable from graph inputs: masks, tables, labels
  Chain     ///< what layers are made of
};

/// The ops of a function, by role.
class Graph {
public:
  explicit Graph(mlir::func::FuncOp function);

  Role roleOf(mlir::Operation *op) const { return roles.lookup(op); }
  /// Ops of role Chain and Input in program order.
  llvm::ArrayRef<mlir::Operation *> getChain() const { return chain; }
  llvm::ArrayRef<mlir::Operation *> getInputOps() const { return inputOps; }

private:
  llvm::SmallVector<mlir::Operation *> chain, inputOps;
  llvm::DenseMap<mlir::Operation *, Role> roles;
};

/// Chain ops [begin, end).
struct Segment {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

/// A description of ops that is equal for isomorphic ones: name, attributes,
/// types, constants, wiring; parameters and other operands by number.
using Structure = std::vector<const void *>;

/// Numbers what `ops` take from outside: appends operands to `operands`, in
/// order of first use, parameters last. Describes the ops and `results`.
Structure describe(llvm::ArrayRef<mlir::Operation *> ops,
                   llvm::ArrayRef<mlir::Value> results,
                   llvm::SmallVectorImpl<mlir::Value> &operands);

/// Cuts the chain where the cut set (live values of chain ops) is minimal;
/// where that leaves a repetition inside a segment, there too.
llvm::SmallVector<Segment> cutIntoSegments(const Graph &graph);

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_SEGMENTS_H
