//===- Diagnostics.cpp - Messages of the tools ----------------------------===//

#include "compiler/Driver/Diagnostics.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Location.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/WithColor.h"

using namespace mlir;

int mgq::reportError(StringRef tool, const llvm::Twine &message) {
  llvm::WithColor::error(llvm::errs(), tool) << message << "\n";
  return 1;
}

int mgq::reportError(StringRef tool, llvm::Error error) {
  return reportError(tool, llvm::toString(std::move(error)));
}

/// The outermost node name of a location, or nothing.
static StringRef nodeName(Location location) {
  if (auto name = dyn_cast<NameLoc>(location))
    return name.getName().getValue();
  if (auto fused = dyn_cast<FusedLoc>(location))
    for (Location part : fused.getLocations())
      if (StringRef name = nodeName(part); !name.empty())
        return name;
  return {};
}

static void printMessage(raw_ostream &os, StringRef model,
                         Diagnostic &diagnostic) {
  StringRef name = nodeName(diagnostic.getLocation());
  // What concerns the whole graph is located at the file, with or without its
  // folder.
  if (name == model || name == llvm::sys::path::filename(model))
    os << "'" << model << "': ";
  else if (!name.empty())
    os << "node \"" << name << "\": ";
  os << diagnostic.str() << "\n";
}

void mgq::printDiagnostic(StringRef tool, StringRef model,
                          Diagnostic &diagnostic) {
  switch (diagnostic.getSeverity()) {
  case DiagnosticSeverity::Error:
    printMessage(llvm::WithColor::error(llvm::errs(), tool), model, diagnostic);
    break;
  case DiagnosticSeverity::Warning:
    printMessage(llvm::WithColor::warning(llvm::errs(), tool), model,
                 diagnostic);
    break;
  default:
    return;
  }
  for (Diagnostic &note : diagnostic.getNotes()) {
    llvm::errs() << "  note: ";
    printMessage(llvm::errs(), model, note);
  }
}
