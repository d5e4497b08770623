//===- Report.cpp - Faults, and what is left at exit ----------------------===//
//
// Reports go to stderr and, line by line, to the file in MGQ_FAKE_REPORT. At
// exit, after the program's own handlers, leaks are reported, and a process
// with reports ends with `faultStatus`, whatever status it wanted.
//
//===----------------------------------------------------------------------===//

#include "test/device/cuda/Report.h"
#include "test/device/cuda/Settings.h"
#include "test/device/cuda/Stream.h"
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <set>
#include <unistd.h>

using namespace mgq::device;

namespace {
struct State {
  std::mutex mutex;
  std::set<std::string> told;
  std::map<std::string, std::set<const void *>> handles;
  bool failed = false;
};
} // namespace

/// Never destroyed: threads of streams may report until the end.
static State &state() {
  static auto *result = new State;
  return *result;
}

static void tell(const std::string &text) {
  std::string line = "mgq test device: " + text + "\n";
  (void)!write(STDERR_FILENO, line.data(), line.size());
  const std::string &file = settings().reportFile;
  if (file.empty())
    return;
  int out = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out < 0)
    return;
  (void)!write(out, line.data(), line.size());
  close(out);
}

void mgq::device::report(const std::string &text) { reportOnce(text, text); }

void mgq::device::reportOnce(const std::string &key, const std::string &text) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().failed = true;
  if (state().told.insert(key).second)
    tell(text);
}

void mgq::device::handleMade(const char *kind, const void *handle) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().handles[kind].insert(handle);
}

bool mgq::device::handleGone(const char *kind, const void *handle) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (state().handles[kind].erase(handle))
      return true;
  }
  report(std::string("there is no such ") + kind +
         ", or it was given back before");
  return false;
}

bool mgq::device::handleExists(const char *kind, const void *handle) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return state().handles[kind].count(handle) != 0;
}

static void reportLeaks() {
  std::map<std::string, std::set<const void *>> left;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    left = state().handles;
  }
  for (const auto &[kind, handles] : left)
    if (!handles.empty())
      report("leak: " + std::to_string(handles.size()) + " of kind '" + kind +
             "' left at exit");
}

/// A program that fails need not give anything back; after a device's fault it
/// cannot.
static void atExit(int status, void *) {
  writeCalls();
  if (status == 0)
    reportUnfinishedWork();
  if (status == 0 && !anyStickyFault())
    reportLeaks();
  if (state().failed) {
    std::fflush(nullptr);
    _exit(faultStatus);
  }
}

__attribute__((constructor)) static void begin() { on_exit(atExit, nullptr); }

int mgq::device::threadOrder() { return int(settings().seed); }
