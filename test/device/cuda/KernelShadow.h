//===- KernelShadow.h - Races between threads of one kernel -----*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUDA_KERNEL_SHADOW_H
#define MGQ_TEST_DEVICE_CUDA_KERNEL_SHADOW_H

#include "test/device/twin/Twin.h"
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

namespace mgq::device {

/// Where a thread is in what orders threads. Two threads are ordered if they
/// are of one block, and a barrier of the block lies between, or, if they are
/// of one warp, a barrier of the warp.
struct Moment {
  static constexpr uint32_t ManyBlocks = ~0u;
  static constexpr uint16_t ManyThreads = 0xffff;
  static constexpr uint16_t ManyOfWarp = 0x8000; ///< A bit: of its warp.
  uint32_t block;                                ///< In the grid.
  uint32_t epoch;     ///< Barriers that the block has passed.
  uint16_t thread;    ///< In the block.
  uint16_t warpEpoch; ///< Barriers that the warp has passed, modulo 2^16.
};

/// What an access met.
enum class Hazard {
  None,
  ReadAfterWrite,
  WriteAfterWrite,
  WriteAfterRead,
  Uninitialized
};

/// Remembers the last write and the last reads of each cell of memory that a
/// kernel has touched. A page's cells have four bytes, or two or one where
/// smaller or unaligned accesses have been seen.
class KernelShadow {
public:
  /// Forgets all: a new kernel, or for shared memory a new block.
  void begin() { ++generation; }

  /// Enters an access. `other` is then the thread met. `needsWrite`: a read of
  /// what was not written since begin() is a hazard.
  Hazard enter(uintptr_t address, int64_t bytes, mgq_twin_access_kind kind,
               const Moment &now, bool needsWrite, Moment &other);

private:
  static constexpr int pageBits = 10; // bytes, as a power of two
  /// The generation's top bit marks atomics.
  static constexpr uint32_t isAtomic = 1u << 31;
  struct Cell {
    uint32_t writeGeneration = 0, readGeneration = 0;
    Moment write{}, read{};
  };
  struct Page {
    uintptr_t number = 0;
    int shift = 2; ///< Bytes of a cell, as a power of two.
    std::vector<Cell> cells;
  };

  uint32_t generation = 0;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
  Page *recent[256] = {};

  Page &find(uintptr_t number);
  static void refine(Page &page, int shift);
  Hazard enterCell(Cell &cell, mgq_twin_access_kind kind, const Moment &now,
                   bool needsWrite, Moment &other);
};

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_CUDA_KERNEL_SHADOW_H
