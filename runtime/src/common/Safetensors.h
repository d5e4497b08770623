//===- Safetensors.h - Reader and writer of safetensors files ---*- C++ -*-===//
//
// A file is: u64 header length, JSON header, data. The reader trusts nothing:
// every length and offset is checked before use.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_SAFETENSORS_H
#define MGQ_RUNTIME_COMMON_SAFETENSORS_H

#include "runtime/src/common/Files.h"
#include "runtime/src/common/Types.h"
#include <functional>
#include <map>

namespace mgq::rt {

/// A tensor in a mapped file. `data` need not be aligned.
struct TensorView {
  mgq_type type;
  Shape shape;
  const std::byte *data;
  int64_t bytes;
};

/// An opened file. Throws Error that names the file and the fault: shorter than
/// its header says, not JSON, unknown type, bytes that do not match the shape,
/// ranges that overlap, leave gaps or exceed the file.
class SafetensorsFile {
public:
  explicit SafetensorsFile(const std::string &path);

  /// See MappedFile.
  void release(const std::byte *begin, const std::byte *end) const {
    file.release(begin, end);
  }
  void prefetch(const std::byte *begin, const std::byte *end) const {
    file.prefetch(begin, end);
  }

  const std::string &path() const { return file.path(); }
  const std::map<std::string, TensorView> &tensors() const { return views; }
  const std::map<std::string, std::string> &metadata() const { return pairs; }

  /// Null if there is no such tensor.
  const TensorView *find(const std::string &name) const;

private:
  void parse();

  MappedFile file;
  std::map<std::string, TensorView> views;
  std::map<std::string, std::string> pairs;
};

/// A tensor of f32 values to write.
struct TensorSource {
  std::string name;
  Shape shape;
  const float *data;
  /// The written layout is `shape` transposed by this; null: as it is.
  const int64_t *permutation = nullptr;
  /// If set, `data` is not used: this fetches elements [begin, begin + count)
  /// of the written layout, front to back in pieces of Transfer's size.
  std::function<void(int64_t begin, int64_t count, float *to)> fetch = nullptr;
  /// Written in this type: F32, BF16 or F16 (rounded to nearest even).
  mgq_type type = MGQ_F32;
};

/// Writes tensors and metadata, atomically (see AtomicFile). Throws Error
/// that names the file.
void writeSafetensors(const std::string &path,
                      const std::vector<TensorSource> &tensors,
                      const std::map<std::string, std::string> &metadata);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_SAFETENSORS_H
