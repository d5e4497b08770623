//===- Scenario.h - Host programs that tests run ----------------*- C++ -*-===//
//
// A test program is also the host programs that it checks: with a scenario's
// name as first argument it runs that one, as a process of its own, on the test
// device. So faults, exit statuses and several processes can be tested.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_TEST_DEVICE_PROGRAMS_SCENARIO_H
#define MGQ_TEST_DEVICE_PROGRAMS_SCENARIO_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace mgq::scenario {

using Words = std::vector<std::string>;
using Function = int (*)(const Words &words);

/// Enters a scenario; a static variable's initialiser.
bool add(const char *name, Function function);

struct Result {
  int status;         ///< Exit status, or 128 + signal.
  std::string output; ///< stdout and stderr.
};

/// Runs a scenario with variables "NAME=value" added to the environment.
Result run(const std::string &scenario, const Words &environment = {});
/// Runs `count` processes at once: word 1 is the rank, word 2 the count.
std::vector<Result> runRanks(const std::string &scenario, int count,
                             const Words &environment = {});
/// Runs a command of the shell.
Result shell(const std::string &command);

/// Makes a twin of `file` (C with `flags`, or LLVM IR without the line that has
/// `omit`) that a module loaded from `image` is. `options` are mgq-twin's.
void makeTwin(const std::string &image, const std::string &file,
              const std::string &flags = "", const std::string &omit = "",
              const std::string &options = "");
/// The bitcode that it was made from.
std::string codeOf(const std::string &image);
/// The folder of twins, which is the environment's MGQ_TWIN_DIR.
std::string twinFolder();

/// Main function of test programs.
int main(int argc, char **argv);

} // namespace mgq::scenario

#define SCENARIO(name)                                                         \
  static int scenario_##name(const mgq::scenario::Words &words);               \
  static bool added_##name = mgq::scenario::add(#name, scenario_##name);       \
  static int scenario_##name([[maybe_unused]] const mgq::scenario::Words &words)

/// A call that must return 0; otherwise the process says so and ends.
#define CHECK_OK(call)                                                         \
  do {                                                                         \
    int status_ = int(call);                                                   \
    if (status_ != 0) {                                                        \
      std::fprintf(stderr, "%s returned %d\n", #call, status_);                \
      std::exit(1);                                                            \
    }                                                                          \
  } while (false)

#define CHECK_THAT(condition)                                                  \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);     \
      std::exit(1);                                                            \
    }                                                                          \
  } while (false)

#endif // MGQ_TEST_DEVICE_PROGRAMS_SCENARIO_H
