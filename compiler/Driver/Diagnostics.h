//===- Diagnostics.h - Messages of the tools ------------------------------===//
#ifndef MGQ_COMPILER_DRIVER_DIAGNOSTICS_H
#define MGQ_COMPILER_DRIVER_DIAGNOSTICS_H

#include "mlir/IR/Diagnostics.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

namespace mgq {

/// Prints `TOOL: error: MESSAGE` to stderr; gives exit status 1.
int reportError(llvm::StringRef tool, const llvm::Twine &message);
int reportError(llvm::StringRef tool, llvm::Error error);

/// Prints a diagnostic in the user's words: the name of the ONNX node, or the
/// file `model`, instead of a place in IR; notes below. Remarks are not
/// printed.
void printDiagnostic(llvm::StringRef tool, llvm::StringRef model,
                     mlir::Diagnostic &diagnostic);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_DIAGNOSTICS_H
