//===- Files.h - Mapped files, atomic writing -------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_FILES_H
#define MGQ_RUNTIME_COMMON_FILES_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mgq::rt {

/// A file mapped read only. An empty file has size 0 and no mapping.
class MappedFile {
public:
  /// Throws Error that names the file if it is missing, not a plain file or
  /// cannot be read.
  explicit MappedFile(const std::string &path);
  MappedFile(MappedFile &&other) noexcept;
  MappedFile &operator=(MappedFile &&) = delete;
  ~MappedFile();

  const std::string &path() const { return filePath; }
  const std::byte *data() const { return bytes; }
  int64_t size() const { return length; }

  /// Takes the pages of a range out of this process; the system keeps them as
  /// long as it likes, and reading them again is allowed.
  void release(const std::byte *begin, const std::byte *end) const;
  /// Lets a range come from the disk meanwhile.
  void prefetch(const std::byte *begin, const std::byte *end) const;

private:
  std::string filePath;
  std::byte *bytes = nullptr;
  int64_t length = 0;
};

/// Writes a file so that its final name never shows a part of it: bytes go to
/// a temporary name, commit() syncs and renames. Without commit() the
/// temporary file is removed. A path that is there and no file, as /dev/null,
/// is written itself. Throws Error that names the file.
class AtomicFile {
public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile &) = delete;
  AtomicFile &operator=(const AtomicFile &) = delete;
  ~AtomicFile();

  void write(const void *data, size_t size);
  void write(const std::string &text) { write(text.data(), text.size()); }
  /// Writes at an offset in bytes, wherever write() goes on.
  void writeAt(int64_t offset, const void *data, size_t size);
  void commit();

  const std::string &temporary() const { return temporaryPath; }

private:
  void flush();
  bool isReplaced() const { return !temporaryPath.empty(); }

  std::string finalPath, temporaryPath; ///< the second empty: written itself
  std::vector<char> buffer;
  int descriptor = -1;
};

/// The whole file as text; throws Error that names it.
std::string readText(const std::string &path);

/// Writes `text` by AtomicFile.
void writeText(const std::string &path, const std::string &text);

/// Throws Error if a file cannot be made at `path`. Leaves nothing there.
void checkWritable(const std::string &path);

/// Makes a folder's entries durable.
void syncFolder(const std::string &path);

/// The folder part of a path, "." if there is none.
std::string folderOf(const std::string &path);

/// Text of errno `code`.
std::string errorText(int code);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_FILES_H
