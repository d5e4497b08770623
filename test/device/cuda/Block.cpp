//===- Block.cpp - The threads of a block, as fibres ----------------------===//
//
// A fibre is a stack and a saved stack pointer; switching pushes the registers
// that a call preserves, changes the stack and pops those of the other side.
// Ready fibres stand in a queue, so a barrier costs one switch a thread.
//
// Stacks lie an odd number of cache lines apart: at a power of two they would
// share the same few sets of the caches.
//
//===----------------------------------------------------------------------===//

#include "test/device/cuda/Block.h"
#include "test/device/cuda/Memory.h"
#include "test/device/cuda/Report.h"
#include <algorithm>
#include <cstring>
#include <cuda.h>
#include <sys/mman.h>

using namespace mgq::device;

extern "C" {
__attribute__((tls_model("initial-exec"),
               visibility("default"))) __thread mgq_twin_position mgq_twin_here;
__attribute__((tls_model("initial-exec"),
               visibility("default"))) __thread char *mgq_twin_shared;
void mgq_twin_switch(void **save, void *to);
}

asm(R"(
  .text
  .hidden mgq_twin_switch
  .globl mgq_twin_switch
  .type mgq_twin_switch, @function
mgq_twin_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size mgq_twin_switch, . - mgq_twin_switch
)");

Block *mgq::device::runningBlock = nullptr;

static constexpr int64_t sharedSlack = 1 << 20;
static constexpr int64_t sharedLimit = 227 << 10;
static constexpr int64_t baseStack = 24 << 10;
static constexpr uint64_t canary = 0x7477696e73746163;
static constexpr unsigned ringSize = 2048; // above the threads of a block

namespace mgq::device {
void fiberMain() {
  Block &block = *runningBlock;
  if (!block.kernel->collective) {
    block.runLoop();
    block.switchToMain();
  }
  block.kernel->entry(block.params);
  Fiber &me = block.fiber();
  if (!me.copies.empty())
    block.note("copies", "thread " + block.where() +
                             " ends with copies (cp.async) that it has not "
                             "waited for");
  me.state = Fiber::Done;
  block.warps[block.current / 32].live &= ~(1u << block.lane());
  --block.live;
  block.releaseBarrier();
  void *unused;
  block.next(&unused);
  __builtin_unreachable();
}
} // namespace mgq::device

//===----------------------------------------------------------------------===//
// Scheduling
//===----------------------------------------------------------------------===//

void Block::push(int fiber) { queue[tail++ % ringSize] = fiber; }

int Block::pop() {
  if (head == tail)
    return -1;
  if (order > 1) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    unsigned pick = unsigned(random >> 33) % (tail - head);
    std::swap(queue[head % ringSize], queue[(head + pick) % ringSize]);
  }
  return queue[head++ % ringSize];
}

void Block::place(int thread) {
  current = thread;
  int32_t size0 = shape.block[0], size1 = shape.block[1];
  mgq_twin_here.thread[0] = thread % size0;
  mgq_twin_here.thread[1] = thread / size0 % size1;
  mgq_twin_here.thread[2] = thread / size0 / size1;
}

/// Leaves the running fibre for the next that can go on, or for run().
void Block::next(void **save) {
  int fiber = pop();
  if (fiber < 0) {
    mgq_twin_switch(save, mainStack);
    return;
  }
  if (fiber == current)
    return;
  place(fiber);
  mgq_twin_switch(save, fibers[fiber].stackPointer);
}

void Block::switchToMain() {
  void *unused;
  mgq_twin_switch(&unused, mainStack);
}

void Block::stop(int fault, const std::string &text) {
  code = fault;
  stopped = true;
  report("kernel " + std::string(kernel->name) + ": " + text);
  switchToMain();
  __builtin_unreachable();
}

void Block::note(const std::string &kind, const std::string &text) {
  reportOnce(std::string(kernel->name) + "/" + kind,
             "kernel " + std::string(kernel->name) + ": " + text);
}

void Block::releaseBarrier() {
  if (atBarrier == 0 || atBarrier != live)
    return;
  atBarrier = 0;
  ++epoch;
  for (int i = 0; i < threads; ++i)
    if (fibers[i].state == Fiber::AtBarrier) {
      fibers[i].state = Fiber::Ready;
      push(i);
    }
}

void Block::barrier(uint32_t site) {
  Warp &warp = warps[current / 32];
  if (warp.barrierEpoch == epoch + 1 && warp.barrierSite != site)
    note("barriers", "threads of one warp wait at different barriers, thread " +
                         where() +
                         " is one: the barrier is in a branch that "
                         "not all take");
  warp.barrierEpoch = epoch + 1;
  warp.barrierSite = site;
  ++atBarrier;
  fiber().state = Fiber::AtBarrier;
  releaseBarrier();
  next(&fiber().stackPointer);
}

/// True in the lane that comes last, which computes for all.
bool Block::arriveInWarp(uint32_t mask, const char *what, uint32_t site) {
  Warp &warp = warps[current / 32];
  if (!(mask >> lane() & 1))
    stop(CUDA_ERROR_ILLEGAL_INSTRUCTION,
         std::string(what) + ": thread " + where() + " is not in its own mask");
  if (warp.arrived && (warp.mask != mask || warp.site != site))
    stop(CUDA_ERROR_ILLEGAL_INSTRUCTION,
         std::string("threads of one warp meet in different operations (") +
             warp.what + " and " + what + ") or with different masks, thread " +
             where() + " is one: it is in a branch that not all take");
  warp.mask = mask;
  warp.site = site;
  warp.what = what;
  warp.arrived |= 1u << lane();
  if (warp.arrived == mask)
    return true;
  fiber().state = Fiber::InWarp;
  next(&fiber().stackPointer);
  return false;
}

void Block::leaveWarp() {
  Warp &warp = warps[current / 32];
  warp.arrived = 0;
  for (int other = 0; other < 32; ++other)
    if (warp.mask >> other & 1 && other != lane()) {
      int thread = current / 32 * 32 + other;
      fibers[thread].state = Fiber::Ready;
      push(thread);
    }
}

void Block::passWarpBarrier(uint32_t mask) {
  Warp &warp = warps[current / 32];
  if ((warp.live & ~mask) == 0)
    ++warp.epoch;
}

//===----------------------------------------------------------------------===//
// Access checks
//===----------------------------------------------------------------------===//

Moment Block::now() const {
  uint32_t warpEpoch = kernel->collective ? warps[current / 32].epoch : 0;
  return {blockNumber, epoch, uint16_t(current), uint16_t(warpEpoch)};
}

static std::string triple(int64_t x, int64_t y, int64_t z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " +
         std::to_string(z) + ")";
}

std::string Block::threadName(uint32_t thread) const {
  if (thread & Moment::ManyOfWarp)
    return "several threads";
  int64_t x = shape.block[0], y = shape.block[1];
  return "thread " + triple(thread % x, thread / x % y, thread / x / y);
}

std::string Block::where() const {
  const mgq_twin_position &at = mgq_twin_here;
  return triple(at.thread[0], at.thread[1], at.thread[2]) + " of block " +
         triple(at.block[0], at.block[1], at.block[2]);
}

void Block::tellHazard(Hazard hazard, const char *memory,
                       const std::string &place, mgq_twin_access_kind kind,
                       const Moment &other) {
  std::string me = "thread " + where();
  if (hazard == Hazard::Uninitialized) {
    note("uninitialized " + std::string(memory),
         me + " reads " + place + ", which nobody has written");
    return;
  }
  std::string them = threadName(other.thread);
  if (other.block != blockNumber)
    them += other.block == Moment::ManyBlocks ? " of several blocks"
                                              : " of another block";
  const char *mine = kind == MGQ_TWIN_READ    ? " reads "
                     : kind == MGQ_TWIN_WRITE ? " writes "
                                              : " changes ";
  const char *theirs = hazard == Hazard::WriteAfterRead ? " reads" : " writes";
  note(std::string("race ") + memory, "race: " + me + mine + place +
                                          ", which " + them + theirs +
                                          " with no barrier between");
}

void Block::access(uintptr_t address, int64_t bytes, mgq_twin_access_kind kind,
                   int64_t align) {
  auto *at = reinterpret_cast<char *>(address);
  const char *verb = kind == MGQ_TWIN_READ ? " reads " : " writes ";
  Moment other{};
  char *shared = sharedRegion + sharedSlack;
  if (at >= sharedRegion && at < shared + sharedLimit + sharedSlack) {
    std::string place =
        "byte " + std::to_string(at - shared) + " of shared memory";
    if (at < shared || at + bytes > shared + sharedBytes)
      stop(CUDA_ERROR_ILLEGAL_ADDRESS,
           "thread " + where() + verb + std::to_string(bytes) +
               " bytes out of bounds, at " + place + " of " +
               std::to_string(sharedBytes));
    if (address % align)
      stop(CUDA_ERROR_MISALIGNED_ADDRESS, "thread " + where() + verb + place +
                                              ", which is not aligned to the " +
                                              std::to_string(align) +
                                              " bytes that the code relies on");
    Hazard hazard = sharedShadow.enter(address, bytes, kind, now(),
                                       /*needsWrite=*/true, other);
    if (hazard != Hazard::None)
      tellHazard(hazard, "shared", place, kind, other);
    return;
  }
  if (at >= stacks && at < stacks + stacksBytes)
    return; // A local variable.
  if (address % align)
    stop(CUDA_ERROR_MISALIGNED_ADDRESS,
         "thread " + where() + verb + describeAddress(at) +
             ", which is not aligned to the " + std::to_string(align) +
             " bytes that the code relies on");
  std::string fault = touch(at, bytes, kind);
  if (!fault.empty())
    stop(CUDA_ERROR_ILLEGAL_ADDRESS, "thread " + where() + verb + fault);
  Hazard hazard = globalShadow.enter(address, bytes, kind, now(),
                                     /*needsWrite=*/false, other);
  if (hazard != Hazard::None)
    tellHazard(hazard, "global", describeAddress(at), kind, other);
}

extern "C" __attribute__((visibility("default"))) void
mgq_twin_access(const volatile void *address, int64_t bytes,
                int32_t kindAndAlign) {
  if (bytes > 0)
    runningBlock->access(reinterpret_cast<uintptr_t>(address), bytes,
                         mgq_twin_access_kind(kindAndAlign & 255),
                         kindAndAlign >> 8);
}

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

/// A launch that a GPU refuses: the fault of the call, not of the kernel.
int Block::check(const mgq_twin_kernel &kernel, const LaunchShape &shape) {
  auto refuse = [&](CUresult code, const std::string &text) {
    report("launch of kernel " + std::string(kernel.name) + ": " + text);
    return int(code);
  };
  const uint32_t *grid = shape.grid, *block = shape.block;
  std::string blockText = triple(block[0], block[1], block[2]);
  uint64_t count = uint64_t(block[0]) * block[1] * block[2];
  if (count == 0 || block[0] > 1024 || block[1] > 1024 || block[2] > 64 ||
      count > 1024)
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  "a block cannot have " + blockText + " threads");
  if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff ||
      grid[1] > 65535 || grid[2] > 65535)
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  "a grid cannot have " + triple(grid[0], grid[1], grid[2]) +
                      " blocks");
  const int32_t *most = kernel.max_threads, *exact = kernel.exact_threads;
  if (most[0] && count > uint64_t(most[0]) * most[1] * most[2])
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  "a block of " + blockText + " threads is larger than " +
                      triple(most[0], most[1], most[2]) +
                      ", for which it was compiled");
  if (exact[0] &&
      (uint32_t(exact[0]) != block[0] || uint32_t(exact[1]) != block[1] ||
       uint32_t(exact[2]) != block[2]))
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  "a block of " + blockText +
                      " threads, where it was compiled "
                      "for " +
                      triple(exact[0], exact[1], exact[2]));
  return 0;
}

void Block::prepare() {
  threads = int(shape.block[0] * shape.block[1] * shape.block[2]);
  if (!sharedRegion) {
    int64_t bytes = sharedLimit + 2 * sharedSlack;
    sharedRegion = static_cast<char *>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    queue.resize(ringSize);
  }
  // One stack runs the threads of a kernel in which they do not meet.
  int64_t lines = (baseStack + kernel->stack_bytes + 63) / 64;
  stackBytes = (lines | 1) * 64;
  int64_t needed = stackBytes * (kernel->collective ? threads : 1);
  if (stacksBytes < needed) {
    if (stacks)
      munmap(stacks, stacksBytes);
    stacks = static_cast<char *>(
        mmap(nullptr, needed, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    stacksBytes = needed;
  }
  fibers.resize(size_t((threads + 31) / 32 * 32));
  for (int i = 0; i < 3; ++i) {
    mgq_twin_here.block_size[i] = int32_t(shape.block[i]);
    mgq_twin_here.grid[i] = int32_t(shape.grid[i]);
  }
  mgq_twin_shared = sharedRegion + sharedSlack;
  sharedBytes = kernel->shared_bytes + shape.dynamicShared;
}

/// Threads that never meet: one after another, on one stack.
void Block::runLoop() {
  for (int i = 0; i < threads; ++i) {
    place(order == 1 ? threads - 1 - i : i);
    kernel->entry(params);
  }
}

/// A stack on which fiberMain begins when it is switched to.
static void *freshStack(char *stack, int64_t bytes) {
  std::memcpy(stack, &canary, sizeof canary);
  auto *top = reinterpret_cast<void **>(stack + bytes - 64);
  *--top = nullptr; // what fiberMain would return to
  *--top = reinterpret_cast<void *>(fiberMain);
  for (int i = 0; i < 6; ++i)
    *--top = nullptr;
  return top;
}

void Block::runFibers() {
  head = tail = 0;
  live = threads;
  atBarrier = 0;
  warps.assign(fibers.size() / 32, Warp{});
  for (int i = 0; i < threads; ++i) {
    Fiber &fiber = fibers[i];
    fiber.state = Fiber::Ready;
    fiber.copies.clear();
    fiber.copyGroup = 0;
    fiber.stackPointer = freshStack(stacks + i * stackBytes, stackBytes);
    warps[i / 32].live |= 1u << (i & 31);
  }
  for (int i = 0; i < threads; ++i)
    push(order == 1 ? threads - 1 - i : i);
  current = -1;
  next(&mainStack);
}

void Block::checkEnd() {
  for (int i = 0; i < (kernel->collective ? threads : 1); ++i) {
    uint64_t bottom;
    std::memcpy(&bottom, stacks + i * stackBytes, sizeof bottom);
    if (bottom != canary)
      report("kernel " + std::string(kernel->name) +
             ": the twin's stack was too small");
  }
  if (!kernel->collective || live == 0)
    return;
  int inWarp = 0;
  for (int i = 0; i < threads; ++i)
    inWarp += fibers[i].state == Fiber::InWarp;
  code = CUDA_ERROR_LAUNCH_TIMEOUT;
  report("kernel " + std::string(kernel->name) + ": deadlock in block " +
         triple(mgq_twin_here.block[0], mgq_twin_here.block[1],
                mgq_twin_here.block[2]) +
         ": " + std::to_string(atBarrier) + " threads wait at a barrier, " +
         std::to_string(inWarp) + " in a warp operation, " +
         std::to_string(threads - live) + " have ended");
}

void Block::runBlock(uint32_t number) {
  blockNumber = number;
  mgq_twin_here.block[0] = int32_t(number % shape.grid[0]);
  mgq_twin_here.block[1] = int32_t(number / shape.grid[0] % shape.grid[1]);
  mgq_twin_here.block[2] = int32_t(number / shape.grid[0] / shape.grid[1]);
  std::memset(mgq_twin_shared, 0xff, size_t(sharedBytes));
  sharedShadow.begin();
  epoch = 0;
  if (kernel->collective) {
    runFibers();
  } else {
    mgq_twin_switch(&mainStack, freshStack(stacks, stackBytes));
  }
  if (!stopped)
    checkEnd();
}

int Block::run(const mgq_twin_kernel &which, const LaunchShape &launch,
               void *const *arguments) {
  kernel = &which;
  shape = launch;
  params = arguments;
  code = 0;
  stopped = false;
  order = threadOrder();
  random = uint64_t(order) * 0x9e3779b97f4a7c15u;
  prepare();
  globalShadow.begin();
  runningBlock = this;
  uint32_t blocks = shape.grid[0] * shape.grid[1] * shape.grid[2];
  for (uint32_t i = 0; i < blocks && code == 0; ++i)
    runBlock(order == 1 ? blocks - 1 - i : i);
  runningBlock = nullptr;
  return code;
}
