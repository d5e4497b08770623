//===- Block.h - The threads of a block, as fibres --------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUDA_BLOCK_H
#define MGQ_TEST_DEVICE_CUDA_BLOCK_H

#include "test/device/cuda/KernelShadow.h"
#include "test/device/twin/Twin.h"
#include <cstdint>
#include <string>
#include <vector>

namespace mgq::device {

struct LaunchShape {
  uint32_t grid[3];
  uint32_t block[3];
  int64_t dynamicShared; ///< Bytes.
};

/// A copy to shared memory that a thread has begun.
struct PendingCopy {
  void *to;
  const void *from;
  int64_t bytes;
  int32_t group; ///< Of its thread.
};

/// A GPU thread. What it brings to a meeting of its warp, and takes away.
struct Fiber {
  enum State { Ready, AtBarrier, InWarp, Done };
  void *stackPointer;
  int32_t position[3];
  State state;
  uint64_t given, taken;
  bool predicate;
  uint32_t words[8];
  float sums[4];
  std::vector<PendingCopy> copies;
  int32_t copyGroup;
};

/// Threads of a warp that have arrived at a meeting.
struct Warp {
  uint32_t arrived, mask, site;
  const char *what;
  uint32_t live;         ///< Lanes that have not ended.
  uint32_t epoch;        ///< Full barriers of the warp that have been passed.
  uint32_t barrierEpoch; ///< Of the block, when barrierSite was set.
  uint32_t barrierSite;
};

/// Runs blocks of one kernel after another on the calling OS thread. Each GPU
/// thread has a stack of its own; at barriers and warp operations the next one
/// that can go on is switched to. One kernel runs at a time in a process.
class Block {
public:
  /// What a GPU would say of such a launch, 0: nothing. Reported.
  static int check(const mgq_twin_kernel &kernel, const LaunchShape &shape);

  /// Runs all blocks of a launch that check() accepts. Faults are reported;
  /// returns the CUresult that a GPU would have met, 0: none.
  int run(const mgq_twin_kernel &kernel, const LaunchShape &shape,
          void *const *params);

  /// The kernel ends here, with a fault.
  [[noreturn]] void stop(int code, const std::string &text);
  /// A fault with which a GPU would go on. Each kind is told once per kernel.
  void note(const std::string &kind, const std::string &text);

  void access(uintptr_t address, int64_t bytes, mgq_twin_access_kind kind,
              int64_t align);

  /// Waits until all live threads of the block are here.
  void barrier(uint32_t site);
  /// Waits for the lanes of `mask`; the last one calls `meet` with the fibres
  /// of the warp.
  template <typename Meet>
  void warp(uint32_t mask, const char *what, uint32_t site, Meet meet) {
    if (!arriveInWarp(mask, what, site))
      return;
    meet(&fibers[current / 32 * 32]);
    leaveWarp();
  }
  /// A warp barrier orders memory if all live lanes took part.
  void passWarpBarrier(uint32_t mask);

  Fiber &fiber() { return fibers[current]; }
  int lane() const { return current & 31; }
  std::string where() const;

private:
  friend void fiberMain();
  const mgq_twin_kernel *kernel = nullptr;
  LaunchShape shape{};
  void *const *params = nullptr;
  int threads = 0;
  int code = 0;

  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  char *stacks = nullptr;
  int64_t stackBytes = 0, stacksBytes = 0;
  std::vector<int> queue; // of fibres that can go on, a ring
  unsigned head = 0, tail = 0;
  int current = -1;
  int live = 0, atBarrier = 0;
  uint32_t epoch = 0, blockNumber = 0;
  void *mainStack = nullptr;
  bool stopped = false;
  uint64_t random = 0;
  int order = 0;

  char *sharedRegion = nullptr; // shared memory with room on both sides
  int64_t sharedBytes = 0;
  KernelShadow sharedShadow, globalShadow;

  void prepare();
  void runBlock(uint32_t number);
  void runLoop();
  void runFibers();
  void checkEnd();
  void push(int fiber);
  int pop();
  void next(void **save);
  void switchToMain();
  void releaseBarrier();
  bool arriveInWarp(uint32_t mask, const char *what, uint32_t site);
  void leaveWarp();
  void place(int thread);
  void tellHazard(Hazard hazard, const char *memory, const std::string &place,
                  mgq_twin_access_kind kind, const Moment &other);
  std::string threadName(uint32_t thread) const;
  Moment now() const;
};

/// The block that the process' one running kernel is in, or null.
extern Block *runningBlock;

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_CUDA_BLOCK_H
