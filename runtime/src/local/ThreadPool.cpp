//===- ThreadPool.cpp - Compute threads of a rank -------------------------===//

#include "runtime/src/local/ThreadPool.h"
#include <algorithm>
#include <chrono>
#include <climits>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace mgq::rt;

static thread_local ThreadPool *currentPool = nullptr;
static thread_local bool insideBody = false;

// Long enough to span the gap between two kernels, short enough to leave the
// core to others while the caller reads data or writes a checkpoint.
static constexpr std::chrono::microseconds spinTime{20};

static void futexWait(std::atomic<uint32_t> &word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT_PRIVATE,
          value, nullptr, nullptr, 0);
}

static void futexWake(std::atomic<uint32_t> &word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE_PRIVATE,
          count, nullptr, nullptr, 0);
}

static void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <typename Ready>
bool ThreadPool::spinUntil(Ready ready) {
  auto limit = std::chrono::steady_clock::now() + spinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready())
        return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < limit);
  return ready();
}

ThreadPool::ThreadPool(int threads) : threadCount(std::max(1, threads)) {
  for (int i = 1; i < threadCount; ++i)
    workers.emplace_back([this] { worker(); });
}

ThreadPool::~ThreadPool() {
  stopping = true;
  job.fetch_add(1);
  futexWake(job, INT_MAX);
  for (std::thread &thread : workers)
    thread.join();
  if (currentPool == this)
    currentPool = nullptr;
}

void ThreadPool::makeCurrent() { currentPool = this; }

ThreadPool *ThreadPool::current() { return currentPool; }

void ThreadPool::takeTickets() {
  insideBody = true;
  uint64_t word = ticket.load(std::memory_order_acquire);
  for (;;) {
    uint32_t next = static_cast<uint32_t>(word);
    uint32_t count = jobCount.load(std::memory_order_acquire);
    Body body = jobBody.load(std::memory_order_acquire);
    void *context = jobContext.load(std::memory_order_acquire);
    if (next >= count)
      break;
    if (!ticket.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      continue;
    body(context, next);
    if (finished.fetch_add(1) + 1 == count && callerSleeps.load())
      futexWake(finished, 1);
    word = ticket.load(std::memory_order_acquire);
  }
  insideBody = false;
}

void ThreadPool::worker() {
  makeCurrent();
  cpu_set_t allowed;
  bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  uint32_t seen = 0;
  for (;;) {
    if (!spinUntil(
            [&] { return job.load(std::memory_order_acquire) != seen; })) {
      sleepers.fetch_add(1);
      while (job.load() == seen)
        futexWait(job, seen);
      sleepers.fetch_sub(1);
    }
    seen = job.load();
    if (stopping)
      return;
    // The kernel tends to keep a woken worker on the caller's CPU while another
    // process uses the rest: 2 threads then run like one.
    int cpu = callerCpu.load(std::memory_order_relaxed);
    if (known && cpu >= 0 && sched_getcpu() == cpu) {
      cpu_set_t others = allowed;
      CPU_CLR(cpu, &others);
      if (CPU_COUNT(&others))
        sched_setaffinity(0, sizeof others, &others);
    }
    takeTickets();
  }
}

void ThreadPool::run(Body body, void *context, int64_t count) {
  if (workers.empty() || count == 1 || insideBody || count >= UINT32_MAX) {
    for (int64_t i = 0; i < count; ++i)
      body(context, i);
    return;
  }
  if (count <= 0)
    return;
  uint32_t number = job.load(std::memory_order_relaxed) + 1;
  uint64_t base = uint64_t{number} << 32;
  ticket.store(base | UINT32_MAX, std::memory_order_release); // Closed.
  finished.store(0);
  jobCount.store(static_cast<uint32_t>(count), std::memory_order_release);
  jobBody.store(body, std::memory_order_release);
  jobContext.store(context, std::memory_order_release);
  callerCpu.store(sched_getcpu(), std::memory_order_relaxed);
  ticket.store(base, std::memory_order_release); // Open.
  job.store(number);
  if (sleepers.load())
    futexWake(job, threadCount - 1);
  takeTickets();

  auto all = static_cast<uint32_t>(count);
  if (spinUntil(
          [&] { return finished.load(std::memory_order_acquire) == all; }))
    return;
  callerSleeps.store(1);
  for (uint32_t done; (done = finished.load()) != all;)
    futexWait(finished, done);
  callerSleeps.store(0);
}

extern "C" void mgq_parallel_for(void (*body)(void *context, int64_t index),
                                 void *context, int64_t count) {
  if (currentPool && !insideBody)
    return currentPool->run(body, context, count);
  for (int64_t i = 0; i < count; ++i)
    body(context, i);
}
