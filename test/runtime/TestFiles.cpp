//===- TestFiles.cpp - Files and processes for tests ----------------------===//

#include "test/runtime/TestFiles.h"
#include "test/runtime/PipeToy.h"
#include "test/runtime/ToyModel.h"
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace test;

static std::string makeFolder() {
  std::string name = std::filesystem::temp_directory_path() / "mgq-rt-XXXXXX";
  if (!mkdtemp(name.data()))
    abort();
  return name;
}

TempDir::TempDir() : path(makeFolder()) {}

TempDir::~TempDir() {
  std::error_code code;
  std::filesystem::remove_all(path, code);
}

std::string test::rawTensorFile(const std::string &header,
                                const std::string &data) {
  uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char *>(&length), 8);
  return bytes + header + data;
}

std::string
test::tensorFile(const Tensors &tensors,
                 const std::map<std::string, std::string> &metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty())
    header["__metadata__"] = metadata;
  std::string data;
  for (const auto &[name, tensor] : tensors) {
    header[name] = {
        {"dtype", tensor.type},
        {"shape", tensor.shape},
        {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return rawTensorFile(header.dump(), data);
}

void test::writeFile(const std::string &path, const std::string &bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<nlohmann::json> test::readLog(const std::string &path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(readFile(path));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
    lines.back().erase("step_seconds");
  }
  return lines;
}

std::string test::readFile(const std::string &path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

bool test::fileExists(const std::string &path) {
  return std::filesystem::exists(path);
}

std::vector<std::string> test::namesIn(const std::string &folder) {
  std::vector<std::string> names;
  for (const auto &entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

Tensors test::toyData(int records, int seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> ids, labels;
  std::vector<float> pixels;
  for (int i = 0; i < records * toy::batch; ++i) {
    ids.push_back(random() % toy::words);
    labels.push_back(random() % 4
                         ? static_cast<int64_t>(random() % toy::classes)
                         : toy::ignored);
    for (int k = 0; k < toy::pixels; ++k)
      pixels.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  }
  return {{"ids", tensor("I64", {records, toy::batch}, ids)},
          {"labels", tensor("I64", {records, toy::batch}, labels)},
          {"pixels", tensor("F32", {records, toy::batch, 3, 2, 2}, pixels)}};
}

void test::writeToyWeights(const std::string &path) {
  std::mt19937 random(7);
  std::string bytes;
  auto add = [&](float value, size_t from) {
    bytes.append(reinterpret_cast<const char *>(&value) + from, 4 - from);
  };
  auto draw = [&] {
    return static_cast<float>(random() % 1001) / 1000.0f - 0.5f;
  };
  for (int i = 0; i < toy::words * toy::classes + toy::pixels * toy::classes;
       ++i)
    add(draw(), 0);
  for (int i = 0; i < toy::classes; ++i)
    add(draw(), 2); // BF16: the upper half.
  for (int i = 0; i < toy::classes; ++i)
    add(draw(), 0);
  writeFile(path, bytes);
}

Tensors test::pipeData(int records, int seed) {
  std::mt19937 random(seed);
  std::vector<float> x;
  std::vector<int64_t> labels;
  for (int i = 0; i < records * pipetoy::batch * pipetoy::width; ++i)
    x.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  for (int i = 0; i < records * pipetoy::batch; ++i)
    labels.push_back(random() % 5 ? static_cast<int64_t>(random() % 8)
                                  : toy::ignored);
  return {{"x", tensor("F32", {records, pipetoy::batch, pipetoy::width}, x)},
          {"labels", tensor("I64", {records, pipetoy::batch}, labels)}};
}

void test::writePipeWeights(const std::string &path) {
  std::mt19937 random(8);
  std::vector<float> values(8 + pipetoy::layers * 72);
  for (float &value : values)
    value = static_cast<float>(random() % 1001) / 700.0f - 0.7f;
  writeFile(path, std::string(reinterpret_cast<const char *>(values.data()),
                              values.size() * sizeof(float)));
}

Process::Process(const std::string &folder,
                 const std::vector<std::string> &arguments,
                 const std::vector<std::string> &environment,
                 int64_t fileSizeLimit)
    : outPath(folder + "/stdout.txt"), errPath(folder + "/stderr.txt") {
  std::vector<std::string> words = {MGQ_TOY_PATH};
  words.insert(words.end(), arguments.begin(), arguments.end());
  if (words.size() > 1 && words[1][0] == '!') {
    words.erase(words.begin());
    words[0].erase(0, 1);
  }
  std::vector<char *> argv;
  for (std::string &word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  pid = fork();
  if (pid)
    return;
  if (chdir(folder.c_str()))
    _exit(99);
  for (const std::string &setting : environment)
    putenv(strdup(setting.c_str()));
  dup2(open(outPath.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 1);
  dup2(open(errPath.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
  if (fileSizeLimit >= 0) {
    rlimit limit = {static_cast<rlim_t>(fileSizeLimit),
                    static_cast<rlim_t>(fileSizeLimit)};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  execvp(argv[0], argv.data());
  _exit(98);
}

Process::~Process() {
  if (pid <= 0)
    return;
  kill(SIGKILL);
  wait();
}

void Process::kill(int signal) const { ::kill(pid, signal); }

int Process::wait() {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  pid = -1;
  return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

RunResult test::runToy(const TempDir &folder,
                       const std::vector<std::string> &arguments,
                       const std::vector<std::string> &environment,
                       int64_t fileSizeLimit) {
  Process process(folder.path, arguments, environment, fileSizeLimit);
  int status = process.wait();
  return {status, process.output(), process.error()};
}
