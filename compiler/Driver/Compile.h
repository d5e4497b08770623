//===- Compile.h - mgq-compile, as a function -----------------------------===//
#ifndef MGQ_COMPILER_DRIVER_COMPILE_H
#define MGQ_COMPILER_DRIVER_COMPILE_H

namespace mgq {

/// The main of mgq-compile: reads flags, runs the phases, writes the result.
/// Returns the exit status.
int compileMain(int argc, char **argv);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_COMPILE_H
