//===- Launch.h - Starts the ranks of this process --------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_LOCAL_LAUNCH_H
#define MGQ_RUNTIME_LOCAL_LAUNCH_H

#include "runtime/include/rt.h"
#include "runtime/src/common/Options.h"

namespace mgq::rt {

/// Runs all ranks as threads of this process or, where a launcher started it,
/// this process' rank. Prints a rank's fault as one line. Returns the exit
/// status; throws Error before there are ranks.
int launch(const mgq_program &program, const Options &options);

/// Prints "error: TEXT" and returns `status`.
int reportFault(const char *text, int status);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_LAUNCH_H
