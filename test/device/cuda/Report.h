//===- Report.h - Faults, and what is left at exit --------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUDA_REPORT_H
#define MGQ_TEST_DEVICE_CUDA_REPORT_H

#include <string>

/// Functions that other stand-ins than libcuda.so.1 use.
#define MGQ_DEVICE_EXPORT __attribute__((visibility("default")))

namespace mgq::device {

/// Exit status of a process in which a fault was reported.
constexpr int faultStatus = 86;

/// Prints "mgq test device: TEXT" and lets the process fail at its end.
MGQ_DEVICE_EXPORT void report(const std::string &text);
/// The same, unless something was reported under `key` before.
MGQ_DEVICE_EXPORT void reportOnce(const std::string &key,
                                  const std::string &text);

/// Counts what a program must give back: "CUDA stream", at `handle`. What is
/// left when it ends well is reported.
MGQ_DEVICE_EXPORT void handleMade(const char *kind, const void *handle);
/// False, and reported, if there is no such handle.
MGQ_DEVICE_EXPORT bool handleGone(const char *kind, const void *handle);
MGQ_DEVICE_EXPORT bool handleExists(const char *kind, const void *handle);

/// The order of a block's threads: 0 forward, 1 backward, else a seed.
int threadOrder();

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_CUDA_REPORT_H
