//===- Run.h - mgq-run, as a function -------------------------------------===//
#ifndef MGQ_COMPILER_DRIVER_RUN_H
#define MGQ_COMPILER_DRIVER_RUN_H

namespace mgq {

/// The main of mgq-run: compiles a graph forward only, runs it once in this
/// process on the inputs of a file, writes all graph outputs to another.
/// Returns the exit status.
int runMain(int argc, char **argv);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_RUN_H
