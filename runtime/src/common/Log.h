//===- Log.h - One JSON object a step ---------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_LOG_H
#define MGQ_RUNTIME_COMMON_LOG_H

#include <cstdint>
#include <string>
#include <string_view>

namespace mgq::rt {

/// Values of a logged step; steps from 1, samples of the step.
struct StepRecord {
  int64_t step;
  double epoch;
  double loss;
  double gradNorm;
  double learningRate;
  int64_t samples;
  double stepSeconds;
  double lossScale;     ///< The factor that the step used; 0: none.
  const char *skipped;  ///< What was not finite; null: nothing was skipped.
  int64_t microBatches; ///< Where their number may change; else 0.
};

/// A line of JSON in a fixed buffer. Numbers print to round-trip; those that
/// are not finite as null. Text that does not fit is dropped whole.
class JsonLine {
public:
  void add(std::string_view key, int64_t value);
  void add(std::string_view key, double value);
  /// Text that needs no escapes.
  void add(std::string_view key, const char *text);
  /// The finished line, with its newline; the next add() starts a new one.
  std::string_view finish();

private:
  void key(std::string_view name);

  char buffer[4096];
  size_t size = 0;
};

/// The file of --log-file. Writing a line allocates nothing.
class LogFile {
public:
  LogFile() = default;
  LogFile(const LogFile &) = delete;
  LogFile &operator=(const LogFile &) = delete;
  ~LogFile();

  /// Opens `path`. With `resumedStep` >= 0 an existing file is cut behind the
  /// last line of a step up to it; else it starts empty. Throws Error.
  void open(const std::string &path, int64_t resumedStep);

  /// Appends a line; nothing if no file is open. Throws Error naming the file.
  void write(std::string_view line);

  /// Makes written lines durable.
  void sync();

private:
  std::string path;
  int descriptor = -1;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_LOG_H
