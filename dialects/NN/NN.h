//===- NN.h - The nn dialect ----------------------------------------------===//
#ifndef MGQ_DIALECTS_NN_NN_H
#define MGQ_DIALECTS_NN_NN_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/BitVector.h"

#include "dialects/NN/NNDialect.h.inc"

#include "dialects/NN/NNEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/NN/NNAttrs.h.inc"

#include "dialects/NN/NNInterfaces.h.inc"

namespace mgq::nn {
/// Whether `actual` are the types `inferred`, or tensors of the same shapes and
/// of wider floats: results of products that sum wider than their operands are.
bool areEqualOrWider(mlir::TypeRange inferred, mlir::TypeRange actual);
} // namespace mgq::nn

#define GET_OP_CLASSES
#include "dialects/NN/NNOps.h.inc"

namespace mgq::nn {

// Names of the attributes that carry facts between phases.

/// On the module: file name of the model, and its metadata (string to string).
inline constexpr llvm::StringLiteral kModelAttr = "nn.model";
inline constexpr llvm::StringLiteral kMetadataAttr = "nn.metadata";
/// On an argument or a result of @model: name of the graph input or output.
inline constexpr llvm::StringLiteral kInputAttr = "nn.input";
inline constexpr llvm::StringLiteral kOutputAttr = "nn.output";
/// What inputs that are not the graph's own are called, before a number: the
/// keys of the dropout ops, in their order; the runtime makes their values.
inline constexpr llvm::StringLiteral kRandomInput = "mgq.random.";
/// On a result of @model: "sum" and "count" of a mean over rows, or "mean".
inline constexpr llvm::StringLiteral kLossAttr = "nn.loss";
/// On the module, between simplify and mark: names of unused parameters.
inline constexpr llvm::StringLiteral kDeadParamsAttr = "nn.dead_params";
/// On results of @train: the parameter whose gradient it is; on its last
/// argument: the gradient of the loss; on its calls: forward, backward or
/// weight, and the name of the layer instance.
inline constexpr llvm::StringLiteral kGradientAttr = "nn.gradient";
inline constexpr llvm::StringLiteral kSeedAttr = "nn.seed";
inline constexpr llvm::StringLiteral kPhaseAttr = "nn.phase";
inline constexpr llvm::StringLiteral kInstanceAttr = "nn.instance";
/// On a function: it is a layer.
inline constexpr llvm::StringLiteral kLayerAttr = "nn.layer";

/// Shape of two shapes broadcast as in NumPy, or failure.
mlir::FailureOr<llvm::SmallVector<int64_t>>
broadcastShapes(llvm::ArrayRef<int64_t> a, llvm::ArrayRef<int64_t> b);

/// Whether folding may compute a constant of this many elements; larger ones
/// stay as ops (tables that are cheap to compute need no bytes in the IR).
bool isFoldableSize(mlir::ShapedType type);

} // namespace mgq::nn

#endif // MGQ_DIALECTS_NN_NN_H
