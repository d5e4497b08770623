//===- CommandLine.h - Flags of mgq-compile -------------------------------===//
#ifndef MGQ_COMPILER_DRIVER_COMMANDLINE_H
#define MGQ_COMPILER_DRIVER_COMMANDLINE_H

#include "compiler/Pipelines/Options.h"

namespace mgq {

/// Exit statuses of the tools.
enum ExitStatus { kSuccess = 0, kFailure = 1, kUsage = 2 };

/// Reads the command line of mgq-compile into `options`. Returns kSuccess, or
/// kUsage or kFailure (a flag whose feature is not there yet) with a message
/// on stderr. `--help` and `--version` print and exit.
ExitStatus parseCommandLine(int argc, char **argv, Options &options);

/// Parses NAME=N into `dims`; false if it is not that.
bool parseDim(llvm::StringRef text, llvm::StringMap<int64_t> &dims);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_COMMANDLINE_H
