//===- Scenario.cpp - Host programs that tests run ------------------------===//

#include "test/device/programs/Scenario.h"
#include "runtime/include/rt.h"
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

using namespace mgq;
namespace fs = std::filesystem;

static std::map<std::string, scenario::Function> &scenarios() {
  static std::map<std::string, scenario::Function> all;
  return all;
}

bool scenario::add(const char *name, Function function) {
  return scenarios().emplace(name, function).second;
}

namespace {
/// A temporary folder, which the process that made it removes.
struct TwinFolder {
  TwinFolder() {
    path = (fs::temp_directory_path() / "mgq-device-XXXXXX").string();
    EXPECT_NE(mkdtemp(path.data()), nullptr);
  }
  ~TwinFolder() {
    std::error_code code;
    if (getpid() == maker)
      fs::remove_all(path, code);
  }
  std::string path;
  pid_t maker = getpid();
};
} // namespace

std::string scenario::twinFolder() {
  static const TwinFolder folder;
  return folder.path;
}

//===----------------------------------------------------------------------===//
// Processes
//===----------------------------------------------------------------------===//

namespace {
struct Process {
  pid_t id;
  int output;
};
} // namespace

static Process start(const scenario::Words &words,
                     const scenario::Words &environment) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::fflush(nullptr);
  std::string twins = scenario::twinFolder(); // Of this process, not its child.
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    setenv("LD_LIBRARY_PATH", MGQ_TEST_DEVICE, 1);
    setenv("MGQ_TWIN_DIR", twins.c_str(), 1);
    for (const std::string &variable : environment)
      putenv(strdup(variable.c_str()));
    std::vector<char *> arguments;
    for (const std::string &word : words)
      arguments.push_back(strdup(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  return {child, ends[0]};
}

static scenario::Result finish(const Process &process) {
  scenario::Result result;
  char buffer[4096];
  for (ssize_t n; (n = read(process.output, buffer, sizeof buffer)) > 0;)
    result.output.append(buffer, size_t(n));
  close(process.output);
  int status = 0;
  waitpid(process.id, &status, 0);
  result.status =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

static std::string self() { return fs::read_symlink("/proc/self/exe"); }

scenario::Result scenario::run(const std::string &name,
                               const Words &environment) {
  return finish(start({self(), name}, environment));
}

std::vector<scenario::Result> scenario::runRanks(const std::string &name,
                                                 int count,
                                                 const Words &environment) {
  std::vector<Process> processes;
  std::string id = std::to_string(getpid()) + "-" + name;
  for (int rank = 0; rank < count; ++rank)
    processes.push_back(
        start({self(), name, std::to_string(rank), std::to_string(count), id},
              environment));
  std::vector<Result> results;
  for (const Process &process : processes)
    results.push_back(finish(process));
  return results;
}

scenario::Result scenario::shell(const std::string &command) {
  return finish(start({"/bin/sh", "-c", command}, {}));
}

//===----------------------------------------------------------------------===//
// Twins
//===----------------------------------------------------------------------===//

static std::string readFile(const std::string &path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// `text` without the lines that have `omit`.
static std::string without(const std::string &text, const std::string &omit) {
  std::istringstream lines(text);
  std::string result;
  int left = 0;
  for (std::string line; std::getline(lines, line);) {
    bool leaveOut = !omit.empty() && line.find(omit) != line.npos &&
                    line.find("declare") == line.npos;
    left += leaveOut;
    if (!leaveOut)
      result += line + "\n";
  }
  EXPECT_EQ(left, omit.empty() ? 0 : 1) << omit;
  return result;
}

std::string scenario::codeOf(const std::string &image) {
  char hash[32];
  std::snprintf(hash, sizeof hash, "%016llx",
                (unsigned long long)mgq_hash(MGQ_HASH_START, image.data(),
                                             int64_t(image.size())));
  return twinFolder() + "/" + hash + ".bc";
}

void scenario::makeTwin(const std::string &image, const std::string &file,
                        const std::string &flags, const std::string &omit,
                        const std::string &options) {
  std::string source = MGQ_DEVICE_SOURCES "/kernels/" + file;
  std::string code = codeOf(image);
  if (fs::path(file).extension() == ".c") {
    Result result =
        shell("clang-22 --target=nvptx64-nvidia-cuda -march=sm_80 "
              "-Xclang -target-feature -Xclang +ptx80 -nogpulib -nostdinc -O2 "
              "-emit-llvm -c -Wall -Werror " +
              flags + " " + source + " -o " + code);
    ASSERT_EQ(result.status, 0) << result.output;
  } else {
    std::ofstream(code) << without(readFile(source), omit);
  }
  Result result = shell(MGQ_TWIN_TOOL " " + options + " " + code);
  ASSERT_EQ(result.status, 0) << result.output;
}

int scenario::main(int argc, char **argv) {
  if (argc > 1 && scenarios().count(argv[1]))
    return scenarios()[argv[1]](Words(argv + 1, argv + argc));
  testing::InitGoogleTest(&argc, argv);
  int status = RUN_ALL_TESTS();
  fs::remove_all(twinFolder());
  return status;
}

int main(int argc, char **argv) { return mgq::scenario::main(argc, argv); }
