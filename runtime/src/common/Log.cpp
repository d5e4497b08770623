//===- Log.cpp - One JSON object a step -----------------------------------===//

#include "runtime/src/common/Log.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

using namespace mgq::rt;

void JsonLine::key(std::string_view name) {
  size_t room = sizeof buffer - 64; // A number and the end always fit.
  if (size + name.size() + 6 > room)
    return;
  auto end = fmt::format_to_n(buffer + size, room - size,
                              "{}\"{}\": ", size ? ", " : "{", name);
  size = end.out - buffer;
}

void JsonLine::add(std::string_view name, int64_t value) {
  size_t before = size;
  key(name);
  if (size != before)
    size = fmt::format_to_n(buffer + size, 30, "{}", value).out - buffer;
}

void JsonLine::add(std::string_view name, double value) {
  size_t before = size;
  key(name);
  if (size == before)
    return;
  char *start = buffer + size;
  char *end = fmt::format_to_n(start, 30, "{}", value).out;
  std::string_view text(start, end - start);
  if (!std::isfinite(value))
    end = fmt::format_to_n(start, 30, "null").out;
  else if (text.find_first_of(".e") == text.npos) // Stays a float for readers.
    end = fmt::format_to_n(end, 30, ".0").out;
  size = end - buffer;
}

void JsonLine::add(std::string_view name, const char *text) {
  size_t before = size;
  key(name);
  if (size != before)
    size = fmt::format_to_n(buffer + size, 40, "\"{}\"", text).out - buffer;
}

std::string_view JsonLine::finish() {
  buffer[size++] = '}';
  buffer[size++] = '\n';
  return {buffer, std::exchange(size, 0)};
}

LogFile::~LogFile() {
  if (descriptor >= 0)
    close(descriptor);
}

/// Bytes of `text` up to the last whole line of a step up to `step`.
static size_t keptBytes(std::string_view text, int64_t step) {
  size_t kept = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    if (end == text.npos)
      break;
    auto line = nlohmann::json::parse(text.begin() + begin, text.begin() + end,
                                      nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step") ||
        !line["step"].is_number_integer() || line["step"].get<int64_t>() > step)
      break;
    begin = kept = end + 1;
  }
  return kept;
}

void LogFile::open(const std::string &file, int64_t resumedStep) {
  path = file;
  bool keep = resumedStep >= 0 && access(path.c_str(), F_OK) == 0;
  off_t size = 0;
  if (keep) {
    MappedFile old(path);
    size = static_cast<off_t>(
        keptBytes({reinterpret_cast<const char *>(old.data()),
                   static_cast<size_t>(old.size())},
                  resumedStep));
  }
  descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  // Devices (/dev/full, /dev/stderr) cannot be cut.
  if (descriptor < 0 || (ftruncate(descriptor, size) && errno != EINVAL))
    fail("cannot write '{}': {}", path, errorText(errno));
}

void LogFile::write(std::string_view line) {
  while (descriptor >= 0 && !line.empty()) {
    ssize_t written = ::write(descriptor, line.data(), line.size());
    if (written < 0 && errno != EINTR)
      fail("cannot write '{}': {}", path, errorText(errno));
    line.remove_prefix(std::max<ssize_t>(written, 0));
  }
}

void LogFile::sync() {
  if (descriptor >= 0)
    fsync(descriptor);
}
