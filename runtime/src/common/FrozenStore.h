//===- FrozenStore.h - Values by record, in memory or files -----*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_FROZENSTORE_H
#define MGQ_RUNTIME_COMMON_FROZENSTORE_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mgq::rt {

/// Values of one chunk's records, all of one size. What is stored stays as it
/// is; when the limit is reached, more is not stored.
class FrozenStore {
public:
  virtual ~FrozenStore() = default;
  /// Copies a record's values to `to`, if they are there and whole. `content`:
  /// hash of all that they depend on.
  virtual bool read(int64_t record, uint64_t content, std::byte *to) = 0;
  virtual void write(int64_t record, uint64_t content,
                     const std::byte *from) = 0;
};

/// Memory that all ranks of this process share. `chunk`: whose values; records
/// are known by their numbers. At most `limit` bytes.
std::unique_ptr<FrozenStore> makeMemoryStore(int32_t chunk, int64_t records,
                                             int64_t bytes, int64_t limit);

/// A file for each record in `folder`, named by its content, with a checksum. A
/// damaged one is told of and removed. `limit`: bytes that this store may add.
std::unique_ptr<FrozenStore> makeFileStore(const std::string &folder,
                                           int64_t bytes, int64_t limit);

/// Bytes of the files of caches in a folder, which is made if need be. Throws
/// Error if it cannot be written.
int64_t openCacheFolder(const std::string &folder);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_FROZENSTORE_H
