//===- Arena.h - The one block of memory of a rank --------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_ARENA_H
#define MGQ_RUNTIME_COMMON_ARENA_H

#include "runtime/src/common/Device.h"
#include <cstddef>
#include <cstdint>
#include <string>

namespace mgq::rt {

/// Says how much is needed and how much there is, if this machine has not
/// `bytes` left; else empty. `what`: "the plan needs".
std::string memoryShortage(int64_t bytes, const std::string &what);

/// Whether an arena is all used, or only addresses, little of it used.
enum class ArenaUse { Whole, Little };

/// Memory of the device that layer functions run on, zero-filled. Of the host:
/// anonymous memory in huge pages where the system has them; a whole one is
/// touched once, so that running out of memory shows at the start.
class Arena {
public:
  /// Throws Error if the system gives no such range.
  explicit Arena(int64_t bytes, ArenaUse use = ArenaUse::Whole);
  /// Memory of `device`, which must live longer. Throws Error if it has less.
  Arena(int64_t bytes, Accelerator &device);
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;
  ~Arena();

  /// What its addresses are of.
  Device &device() const { return owner; }

  int64_t size() const { return bytes; }
  std::byte *at(int64_t offset) { return base + offset; }
  float *floatsAt(int64_t offset) {
    return reinterpret_cast<float *>(base + offset);
  }

  /// Measures anonymous resident memory; keeps the largest value. Allocates
  /// nothing.
  void samplePeak();

  /// Largest growth of anonymous resident bytes since before the arena was
  /// mapped, over all samples; of an accelerator its size.
  int64_t peakBytes() const { return peak; }

private:
  Device &owner;
  int64_t bytes, mappedBytes = 0, before, peak = 0;
  void *mapping = nullptr;
  std::byte *base = nullptr;
};

/// "1.5 GiB".
const char *bytesText(int64_t bytes, char (&buffer)[32]);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_ARENA_H
