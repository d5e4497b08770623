//===- Pipe.h - The pipe dialect ------------------------------------------===//
#ifndef MGQ_DIALECTS_PIPE_PIPE_H
#define MGQ_DIALECTS_PIPE_PIPE_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialects/Pipe/PipeDialect.h.inc"

#include "dialects/Pipe/PipeEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Pipe/PipeAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Pipe/PipeTypes.h.inc"

#define GET_OP_CLASSES
#include "dialects/Pipe/PipeOps.h.inc"

namespace mgq::pipe {

/// On a call of @train or @model: the chunk that runs it (i64). A call without
/// it computes something from inputs alone: each chunk that needs that repeats
/// the call.
inline constexpr llvm::StringLiteral kChunkAttr = "pipe.chunk";

/// On a forward call of @train that a cached record skips: the numbers of its
/// results that the cache keeps (i64 array, maybe empty).
inline constexpr llvm::StringLiteral kKeptAttr = "pipe.kept";
/// On the module: why no cache of a frozen prefix can be kept.
inline constexpr llvm::StringLiteral kNoCacheAttr = "pipe.no_cache";
/// On a module with a plan: micro-batches are put together from single samples,
/// not read as records.
inline constexpr llvm::StringLiteral kBySampleAttr = "pipe.by_sample";

} // namespace mgq::pipe

#endif // MGQ_DIALECTS_PIPE_PIPE_H
