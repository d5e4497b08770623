//===- Settings.h - What the environment asks for ---------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUDA_SETTINGS_H
#define MGQ_TEST_DEVICE_CUDA_SETTINGS_H

#include "test/device/cuda/Report.h"
#include <cstdint>
#include <string>
#include <vector>

namespace mgq::device {

/// Of a device: a small GPU of a generation that is supported.
constexpr int multiprocessors = 24;

/// Call number `call` (from 1) of `function` fails with `code`. Function
/// "kernel": the kernel ends with a fault that later calls meet.
struct InjectedFailure {
  std::string function;
  int64_t call;
  int code;
};

struct Settings {
  int devices = 1;            ///< MGQ_FAKE_DEVICES
  int architecture = 80;      ///< MGQ_FAKE_SM, 86 for sm_86
  int64_t memory = 2ll << 30; ///< MGQ_FAKE_MEMORY, bytes of a device
  int driver = 0;             ///< MGQ_FAKE_DRIVER, 0: the headers' version
  uint64_t seed = 0;          ///< MGQ_FAKE_SEED
  int delay = 100;            ///< MGQ_FAKE_DELAY, microseconds at most
  int timeout = 60;           ///< MGQ_FAKE_TIMEOUT, seconds
  int64_t skippedWait = 0;    ///< MGQ_FAKE_SKIP_WAIT, 0: none
  std::string twinFolder;     ///< MGQ_TWIN_DIR
  std::string reportFile;     ///< MGQ_FAKE_REPORT
  std::string callsFile;      ///< MGQ_FAKE_CALLS
  std::vector<InjectedFailure> failures; ///< MGQ_FAKE_FAIL, NAME:CALL:CODE,...
};

/// Read at the first call. A value that makes no sense ends the process.
MGQ_DEVICE_EXPORT const Settings &settings();

/// Counts a call of `function`. The code with which it must fail, 0: it need
/// not.
MGQ_DEVICE_EXPORT int injectedFailure(const char *function);

/// Whether this wait of a stream for an event is the one to leave out.
bool isSkippedWait();

/// Adds to the file in MGQ_FAKE_CALLS how often each function was called.
void writeCalls();

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_CUDA_SETTINGS_H
