//===- Staging.h - From the host to a device --------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_STAGING_H
#define MGQ_RUNTIME_CUDA_STAGING_H

#include "runtime/src/cuda/Driver.h"
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace mgq::rt {

/// Page-locked host memory.
class PinnedMemory {
public:
  explicit PinnedMemory(int64_t bytes);
  PinnedMemory(const PinnedMemory &) = delete;
  PinnedMemory &operator=(const PinnedMemory &) = delete;
  ~PinnedMemory() { cuGiveBack(cuMemFreeHost, memory); }
  std::byte *data() const { return static_cast<std::byte *>(memory); }

private:
  void *memory = nullptr;
};

/// A ring of page-locked memory through which the host hands bytes to a
/// stream, without waiting for earlier ones until the ring is full. It has four
/// times the largest write; growing waits for the GPU.
class Staging {
public:
  /// `wait` returns when an event has happened.
  Staging(CUstream stream, std::function<void(CUevent)> wait);

  /// Makes room for writes of `bytes`.
  void reserve(int64_t bytes);

  /// Room for a write.
  std::byte *begin(int64_t bytes);
  /// Enqueues the copy of that room to the device.
  void end(CUdeviceptr to);

private:
  /// A write whose copy may not have run.
  struct Write {
    int64_t begin = 0, end = 0;
    Event copied;
  };
  void finishOldest();
  bool isFree(int64_t first, int64_t last) const;

  CUstream stream;
  std::function<void(CUevent)> wait;
  std::unique_ptr<PinnedMemory> ring;
  int64_t size = 0, next = 0;
  int64_t first = 0, count = 0; ///< Of the write that is being made.
  /// Those from `oldest` on, up to `newest`, may not have run; by their numbers
  /// modulo how many there are.
  std::vector<Write> writes;
  size_t oldest = 0, newest = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_STAGING_H
