//===- FrozenStore.cpp - Values by record, in memory or files -------------===//
//
// A file is a header, then the values. It is written under a temporary name and
// renamed, so ranks and runs may share a folder: who comes second writes the
// same bytes. It is not synced: what a crash leaves is found by the checksum.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/FrozenStore.h"
#include "runtime/include/rt.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

using namespace mgq::rt;
namespace fs = std::filesystem;

static constexpr const char *suffix = ".frozen";

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

namespace {
/// The values of a chunk, for all ranks of the process.
struct SharedValues {
  std::mutex mutex;
  std::vector<int64_t> slots; ///< By record; -1: not stored.
  int64_t used = 0, capacity = 0, bytes = 0;
  std::byte *memory = nullptr; ///< Mapped, touched as it is used.
};

class MemoryStore : public FrozenStore {
public:
  explicit MemoryStore(std::shared_ptr<SharedValues> shared)
      : shared(std::move(shared)) {}

  bool read(int64_t record, uint64_t, std::byte *to) override {
    std::lock_guard<std::mutex> lock(shared->mutex);
    int64_t slot = shared->slots[record];
    if (slot >= 0)
      memcpy(to, shared->memory + slot * shared->bytes, shared->bytes);
    return slot >= 0;
  }

  void write(int64_t record, uint64_t, const std::byte *from) override {
    std::lock_guard<std::mutex> lock(shared->mutex);
    int64_t &slot = shared->slots[record];
    if (slot >= 0 || shared->used == shared->capacity)
      return;
    slot = shared->used++;
    memcpy(shared->memory + slot * shared->bytes, from, shared->bytes);
  }

private:
  std::shared_ptr<SharedValues> shared;
};
} // namespace

static std::shared_ptr<SharedValues> makeShared(int64_t records, int64_t bytes,
                                                int64_t limit) {
  auto made = std::make_shared<SharedValues>();
  made->slots.assign(records, -1);
  made->bytes = bytes;
  made->capacity = std::min(records, limit / bytes);
  if (made->capacity == 0)
    return made;
  void *memory = mmap(nullptr, made->capacity * bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    fail("no memory for --cache-frozen: {}", errorText(errno));
  made->memory = static_cast<std::byte *>(memory);
  return made;
}

std::unique_ptr<FrozenStore> mgq::rt::makeMemoryStore(int32_t chunk,
                                                      int64_t records,
                                                      int64_t bytes,
                                                      int64_t limit) {
  static std::mutex mutex;
  static std::map<int32_t, std::shared_ptr<SharedValues>> chunks;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<SharedValues> &shared = chunks[chunk];
  if (!shared)
    shared = makeShared(records, bytes, limit);
  return std::make_unique<MemoryStore>(shared);
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

namespace {
struct FileHeader {
  char magic[8];
  uint64_t content;
  int64_t bytes;
  uint64_t checksum; ///< Of the values.
};

class FileStore : public FrozenStore {
public:
  FileStore(std::string folder, int64_t bytes, int64_t limit)
      : folder(std::move(folder)), bytes(bytes), left(limit) {}

  bool read(int64_t record, uint64_t content, std::byte *to) override;
  void write(int64_t record, uint64_t content, const std::byte *from) override;

private:
  std::string pathOf(uint64_t content) const {
    return fmt::format("{}/{:016x}{}", folder, content, suffix);
  }
  FileHeader headerOf(uint64_t content, const std::byte *values) const {
    return {{'m', 'g', 'q', 'f', 'r', 'z', '1', 0},
            content,
            bytes,
            mgq_hash(MGQ_HASH_START, values, bytes)};
  }

  std::string folder;
  int64_t bytes, left;
};
} // namespace

/// Reads or writes all of a range; false after a fault or an early end.
template <typename Function, typename Bytes>
static bool transferAll(Function function, int file, Bytes *data,
                        int64_t size) {
  while (size > 0) {
    ssize_t done = function(file, data, size);
    if (done < 0 && errno == EINTR)
      continue;
    if (done <= 0)
      return false;
    data += done;
    size -= done;
  }
  return true;
}

bool FileStore::read(int64_t, uint64_t content, std::byte *to) {
  std::string path = pathOf(content);
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return false;
  FileHeader header;
  struct stat status;
  bool whole = fstat(file, &status) == 0 &&
               status.st_size == static_cast<off_t>(sizeof header) + bytes &&
               transferAll(::read, file, reinterpret_cast<std::byte *>(&header),
                           sizeof header) &&
               transferAll(::read, file, to, bytes);
  close(file);
  if (whole) {
    FileHeader expected = headerOf(content, to);
    whole = memcmp(&header, &expected, sizeof header) == 0;
  }
  if (!whole) {
    printError("warning: '{}' is damaged; its values are computed again", path);
    unlink(path.c_str());
  }
  return whole;
}

void FileStore::write(int64_t, uint64_t content, const std::byte *from) {
  FileHeader header = headerOf(content, from);
  int64_t size = static_cast<int64_t>(sizeof header) + bytes;
  std::string path = pathOf(content);
  if (left < size || access(path.c_str(), F_OK) == 0)
    return;
  std::string temporary =
      fmt::format("{}.{}.{}.tmp", path, getpid(), static_cast<void *>(this));
  int file =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool done = file >= 0 &&
              transferAll(::write, file, reinterpret_cast<std::byte *>(&header),
                          sizeof header) &&
              transferAll(::write, file, from, bytes);
  int code = errno;
  if (file >= 0)
    close(file);
  if (done && rename(temporary.c_str(), path.c_str()) == 0) {
    left -= size;
    return;
  }
  // A full disk is no reason to end a training.
  printError("warning: cannot write '{}': {}; nothing more is kept there", path,
             errorText(code));
  unlink(temporary.c_str());
  left = 0;
}

std::unique_ptr<FrozenStore> mgq::rt::makeFileStore(const std::string &folder,
                                                    int64_t bytes,
                                                    int64_t limit) {
  return std::make_unique<FileStore>(folder, bytes, limit);
}

int64_t mgq::rt::openCacheFolder(const std::string &folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (access(folder.c_str(), W_OK | X_OK) != 0 || !fs::is_directory(folder))
    fail("cannot write '{}': {}", folder,
         code ? code.message() : errorText(errno));
  int64_t bytes = 0;
  for (const auto &entry : fs::directory_iterator(folder, code))
    if (entry.path().extension() == suffix) {
      std::error_code ignored; // Others may remove it meanwhile.
      auto size = entry.file_size(ignored);
      bytes += ignored ? 0 : static_cast<int64_t>(size);
    }
  return bytes;
}
