//===- ArenaLayout.h - Offsets for values by lifetime ---------------------===//
#ifndef MGQ_PASSES_PIPE_ARENALAYOUT_H
#define MGQ_PASSES_PIPE_ARENALAYOUT_H

#include "llvm/ADT/ArrayRef.h"
#include <cstdint>

namespace mgq::pipe {

/// Alignment of everything in the arena, in bytes (a cache line, and the widest
/// vector).
inline constexpr int64_t kArenaAlignment = 64;

/// Rounds bytes up to the arena's alignment.
inline int64_t alignBytes(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

/// A buffer that is alive from step `begin` to step `end`, both included.
struct Lifetime {
  int64_t bytes = 0;
  int64_t begin = 0;
  int64_t end = 0;
  /// Filled by layOut.
  int64_t offset = -1;
};

/// Gives each buffer an offset such that buffers alive at a common step do not
/// overlap; returns the bytes needed. Greedy by size (Pisarchyk and Lee,
/// arXiv 2001.03288, section 5): largest first, at the lowest free offset.
int64_t layOut(llvm::MutableArrayRef<Lifetime> buffers);

} // namespace mgq::pipe

#endif // MGQ_PASSES_PIPE_ARENALAYOUT_H
