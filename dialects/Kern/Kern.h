//===- Kern.h - The kern dialect ------------------------------------------===//
#ifndef MGQ_DIALECTS_KERN_KERN_H
#define MGQ_DIALECTS_KERN_KERN_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialects/Kern/KernDialect.h.inc"

#define GET_OP_CLASSES
#include "dialects/Kern/KernOps.h.inc"

namespace mgq::kern {

/// Teaches one-shot-bufferize the destination-style ops.
void registerBufferization(mlir::DialectRegistry &registry);

} // namespace mgq::kern

#endif // MGQ_DIALECTS_KERN_KERN_H
