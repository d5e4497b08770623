//===- Registration.h - Dialects and passes of this project ---------------===//
#ifndef MGQ_COMPILER_PIPELINES_REGISTRATION_H
#define MGQ_COMPILER_PIPELINES_REGISTRATION_H

#include "mlir/IR/DialectRegistry.h"

namespace mgq {

/// Adds every dialect that the phases use, with the interfaces that their
/// passes need. (InitAllDialects would cost half a minute of compile time.)
void registerDialects(mlir::DialectRegistry &registry);

/// Registers the project's passes for mgq-opt.
void registerPasses();

} // namespace mgq

#endif // MGQ_COMPILER_PIPELINES_REGISTRATION_H
