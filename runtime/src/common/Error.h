//===- Error.h - Errors the user sees ---------------------------*- C++ -*-===//
//
// Inside the runtime a fault is an exception that carries one line of text;
// main() prints it as `error: ...`. None crosses rt.h.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_ERROR_H
#define MGQ_RUNTIME_COMMON_ERROR_H

#include <cstdio>
#include <fmt/format.h>
#include <stdexcept>

namespace mgq::rt {

/// A fault in files, data or training: exit status 1.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Wrong usage of the command line: exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws Error with a formatted text.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args &&...args) {
  throw Error(fmt::format(text, std::forward<Args>(args)...));
}

/// Throws UsageError with a formatted text.
template <typename... Args>
[[noreturn]] void failUsage(fmt::format_string<Args...> text, Args &&...args) {
  throw UsageError(fmt::format(text, std::forward<Args>(args)...));
}

/// Prints a line to standard error. That nobody can read it is no fault.
template <typename... Args>
void printError(fmt::format_string<Args...> text, Args &&...args) {
  std::string line = fmt::format(text, std::forward<Args>(args)...) + "\n";
  fwrite(line.data(), 1, line.size(), stderr);
}

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_ERROR_H
