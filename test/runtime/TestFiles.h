//===- TestFiles.h - Files and processes for tests --------------*- C++ -*-===//
#ifndef MGQ_TEST_RUNTIME_TESTFILES_H
#define MGQ_TEST_RUNTIME_TESTFILES_H

#include "runtime/src/common/Safetensors.h"
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace test {

/// A folder of its own, removed at the end.
class TempDir {
public:
  TempDir();
  ~TempDir();
  std::string operator/(const std::string &name) const {
    return path + "/" + name;
  }
  const std::string path;
};

/// A tensor of any type for writeTensors().
struct Tensor {
  std::string type;
  mgq::rt::Shape shape;
  std::string bytes;
};

template <typename T>
Tensor tensor(const char *type, mgq::rt::Shape shape,
              const std::vector<T> &values) {
  return {type, std::move(shape),
          std::string(reinterpret_cast<const char *>(values.data()),
                      values.size() * sizeof(T))};
}

using Tensors = std::map<std::string, Tensor>;

/// Bytes of a safetensors file.
std::string tensorFile(const Tensors &tensors,
                       const std::map<std::string, std::string> &metadata = {});

/// Bytes of a file with this header text.
std::string rawTensorFile(const std::string &header, const std::string &data);

void writeFile(const std::string &path, const std::string &bytes);
std::string readFile(const std::string &path);
bool fileExists(const std::string &path);

/// Names in a folder, sorted, without . and ...
std::vector<std::string> namesIn(const std::string &folder);

/// Runs `action` and returns the text of its mgq::rt::Error, or "no error".
template <typename Action>
std::string errorOf(Action action);

/// Lines of a log without their times.
std::vector<nlohmann::json> readLog(const std::string &path);

/// Data of the toy model: `records` records drawn from `seed`.
Tensors toyData(int records, int seed);

/// The same for the pipeline, and its weights.
Tensors pipeData(int records, int seed);
void writePipeWeights(const std::string &path);

/// Writes toy.weights.
void writeToyWeights(const std::string &path);

/// The process of the toy executable or of another program.
class Process {
public:
  /// Starts it in `folder`; `environment` is added to this process' own. Where
  /// the first word begins with '!', the rest of it is the program to run.
  Process(const std::string &folder, const std::vector<std::string> &arguments,
          const std::vector<std::string> &environment = {},
          int64_t fileSizeLimit = -1);
  ~Process();
  void kill(int signal) const;
  /// Exit status, or 256 + signal.
  int wait();
  /// Text so far; whole after wait().
  std::string output() const { return readFile(outPath); }
  std::string error() const { return readFile(errPath); }

private:
  std::string outPath, errPath;
  int pid = -1;
};

struct RunResult {
  int status;
  std::string output, error;
};

RunResult runToy(const TempDir &folder,
                 const std::vector<std::string> &arguments,
                 const std::vector<std::string> &environment = {},
                 int64_t fileSizeLimit = -1);

} // namespace test

#include "runtime/src/common/Error.h"

template <typename Action>
std::string test::errorOf(Action action) {
  try {
    action();
  } catch (const mgq::rt::Error &error) {
    return error.what();
  } catch (const mgq::rt::UsageError &error) {
    return std::string("usage: ") + error.what();
  }
  return "no error";
}

#endif // MGQ_TEST_RUNTIME_TESTFILES_H
