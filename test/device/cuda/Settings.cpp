//===- Settings.cpp - What the environment asks for -----------------------===//

#include "test/device/cuda/Settings.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <unistd.h>

using namespace mgq::device;

[[noreturn]] static void refuse(const char *name, const std::string &value,
                                const char *expected) {
  std::fprintf(stderr, "mgq test device: %s is '%s', expected %s\n", name,
               value.c_str(), expected);
  _exit(2);
}

/// `value` as a whole number from `low` on.
static int64_t number(const char *name, const std::string &value, int64_t low) {
  char *end = nullptr;
  int64_t result = std::strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end || result < low)
    refuse(name, value, ("a number from " + std::to_string(low)).c_str());
  return result;
}

template <typename T>
static void readNumber(const char *name, T &setting, int64_t low) {
  if (const char *value = std::getenv(name))
    setting = T(number(name, value, low));
}

static std::vector<InjectedFailure> parseFailures(const std::string &text) {
  const char *name = "MGQ_FAKE_FAIL";
  std::vector<InjectedFailure> failures;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    std::istringstream parts(item);
    std::string function, call, code;
    if (!std::getline(parts, function, ':') ||
        !std::getline(parts, call, ':') || !std::getline(parts, code))
      refuse(name, text, "FUNCTION:CALL:CODE,...");
    failures.push_back(
        {function, number(name, call, 1), int(number(name, code, 1))});
  }
  return failures;
}

static Settings readSettings() {
  Settings result;
  readNumber("MGQ_FAKE_DEVICES", result.devices, 0);
  readNumber("MGQ_FAKE_SM", result.architecture, 10);
  readNumber("MGQ_FAKE_MEMORY", result.memory, 1);
  readNumber("MGQ_FAKE_DRIVER", result.driver, 1000);
  readNumber("MGQ_FAKE_SEED", result.seed, 0);
  readNumber("MGQ_FAKE_DELAY", result.delay, 0);
  readNumber("MGQ_FAKE_TIMEOUT", result.timeout, 1);
  readNumber("MGQ_FAKE_SKIP_WAIT", result.skippedWait, 1);
  if (const char *folder = std::getenv("MGQ_TWIN_DIR"))
    result.twinFolder = folder;
  if (const char *file = std::getenv("MGQ_FAKE_REPORT"))
    result.reportFile = file;
  if (const char *file = std::getenv("MGQ_FAKE_CALLS"))
    result.callsFile = file;
  if (const char *failures = std::getenv("MGQ_FAKE_FAIL"))
    result.failures = parseFailures(failures);
  return result;
}

/// Never destroyed: asked for when the process ends.
const Settings &mgq::device::settings() {
  static const auto *result = new Settings(readSettings());
  return *result;
}

namespace {
struct Calls {
  std::mutex mutex;
  std::map<std::string, int64_t> of;
};
} // namespace

/// Never destroyed: written after everything else.
static Calls &calls() {
  static auto *result = new Calls;
  return *result;
}

int mgq::device::injectedFailure(const char *function) {
  if (settings().failures.empty() && settings().callsFile.empty())
    return 0;
  std::string name = function;
  // Names of versions, cuMemAlloc_v2, are the header's business.
  if (size_t at = name.rfind("_v"); at != std::string::npos)
    name.resize(at);
  std::lock_guard<std::mutex> lock(calls().mutex);
  int64_t call = ++calls().of[name];
  for (const InjectedFailure &failure : settings().failures)
    if (failure.function == name && failure.call == call)
      return failure.code;
  return 0;
}

bool mgq::device::isSkippedWait() {
  static std::atomic<int64_t> waits{0};
  return settings().skippedWait && ++waits == settings().skippedWait;
}

void mgq::device::writeCalls() {
  if (settings().callsFile.empty())
    return;
  std::ofstream out(settings().callsFile, std::ios::app);
  std::lock_guard<std::mutex> lock(calls().mutex);
  for (const auto &[name, count] : calls().of)
    out << name << ' ' << count << '\n';
}
