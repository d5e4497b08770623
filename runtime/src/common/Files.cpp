//===- Files.cpp - Mapped files, atomic writing ---------------------------===//

#include "runtime/src/common/Files.h"
#include "runtime/src/common/Error.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

using namespace mgq::rt;

std::string mgq::rt::errorText(int code) {
  return std::generic_category().message(code);
}

MappedFile::MappedFile(const std::string &path) : filePath(path) {
  int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    fail("cannot open '{}': {}", path, errorText(errno));
  struct stat status;
  int code = fstat(descriptor, &status) ? errno : 0;
  if (!code && !S_ISREG(status.st_mode)) {
    close(descriptor);
    fail("'{}' is not a file", path);
  }
  if (!code && status.st_size > 0) {
    length = status.st_size;
    void *mapping =
        mmap(nullptr, length, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapping == MAP_FAILED)
      code = errno;
    else
      bytes = static_cast<std::byte *>(mapping);
  }
  close(descriptor);
  if (code)
    fail("cannot read '{}': {}", path, errorText(code));
}

MappedFile::MappedFile(MappedFile &&other) noexcept
    : filePath(std::move(other.filePath)),
      bytes(std::exchange(other.bytes, nullptr)),
      length(std::exchange(other.length, 0)) {}

MappedFile::~MappedFile() {
  if (bytes)
    munmap(bytes, length);
}

// A fault maps the pages around it, in windows of this size.
static constexpr int64_t windowBytes = 1 << 16;

/// Advises on the windows that a range touches. Advice may fail.
static void advise(std::byte *start, int64_t length, int64_t begin, int64_t end,
                   int advice) {
  begin = begin / windowBytes * windowBytes;
  end = std::min(length, (end + windowBytes - 1) / windowBytes * windowBytes);
  if (begin < end)
    (void)madvise(start + begin, end - begin, advice);
}

void MappedFile::release(const std::byte *begin, const std::byte *end) const {
  advise(bytes, length, begin - bytes, end - bytes, MADV_DONTNEED);
}

void MappedFile::prefetch(const std::byte *begin, const std::byte *end) const {
  advise(bytes, length, begin - bytes, end - bytes, MADV_WILLNEED);
}

static constexpr size_t writeBufferBytes = 1 << 20;

/// Whether a path is a device, a pipe or the like, which no file may replace.
static bool isSpecial(const std::string &path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

AtomicFile::AtomicFile(std::string path) : finalPath(std::move(path)) {
  if (!isSpecial(finalPath))
    temporaryPath = finalPath + ".tmp" + std::to_string(getpid());
  buffer.reserve(writeBufferBytes);
  descriptor = open(isReplaced() ? temporaryPath.c_str() : finalPath.c_str(),
                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0)
    fail("cannot write '{}': {}", finalPath, errorText(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor < 0)
    return;
  close(descriptor);
  if (isReplaced())
    unlink(temporaryPath.c_str());
}

/// Writes all bytes; returns errno or 0.
static int writeAll(int descriptor, const char *data, size_t size) {
  while (size) {
    ssize_t written = ::write(descriptor, data, size);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return written < 0 ? errno : EIO;
    data += written;
    size -= written;
  }
  return 0;
}

void AtomicFile::flush() {
  if (int code = writeAll(descriptor, buffer.data(), buffer.size()))
    fail("cannot write '{}': {}", finalPath, errorText(code));
  buffer.clear();
}

void AtomicFile::write(const void *data, size_t size) {
  const char *from = static_cast<const char *>(data);
  if (buffer.size() + size > writeBufferBytes)
    flush();
  if (size < writeBufferBytes) {
    buffer.insert(buffer.end(), from, from + size);
    return;
  }
  if (int code = writeAll(descriptor, from, size))
    fail("cannot write '{}': {}", finalPath, errorText(code));
}

void AtomicFile::writeAt(int64_t offset, const void *data, size_t size) {
  flush();
  const char *from = static_cast<const char *>(data);
  while (size) {
    ssize_t written = pwrite(descriptor, from, size, offset);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      fail("cannot write '{}': {}", finalPath,
           errorText(written < 0 ? errno : EIO));
    from += written;
    offset += written;
    size -= written;
  }
}

void AtomicFile::commit() {
  flush();
  if (fsync(descriptor) && errno != EINVAL)
    fail("cannot write '{}': {}", finalPath, errorText(errno));
  if (!isReplaced()) {
    close(std::exchange(descriptor, -1));
    return;
  }
  if (rename(temporaryPath.c_str(), finalPath.c_str()))
    fail("cannot write '{}': {}", finalPath, errorText(errno));
  close(std::exchange(descriptor, -1));
  syncFolder(folderOf(finalPath));
}

std::string mgq::rt::readText(const std::string &path) {
  MappedFile file(path);
  return std::string(reinterpret_cast<const char *>(file.data()), file.size());
}

void mgq::rt::writeText(const std::string &path, const std::string &text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void mgq::rt::checkWritable(const std::string &path) { AtomicFile probe(path); }

void mgq::rt::syncFolder(const std::string &path) {
  // Some file systems refuse to sync a folder; the rename has happened anyway.
  int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0)
    return;
  fsync(descriptor);
  close(descriptor);
}

std::string mgq::rt::folderOf(const std::string &path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos)
    return ".";
  return slash ? path.substr(0, slash) : "/";
}
