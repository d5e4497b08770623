//===- ThreadPool.h - Compute threads of a rank -----------------*- C++ -*-===//
//
// A caller hands out indices by tickets and works along; it waits for started
// indices only, never for a worker that has not woken up. Between jobs workers
// spin for 20 us, then sleep on a futex.
//
// One 64-bit word holds (job << 32 | next index). A ticket is taken by
// compare-and-swap on the whole word, so a worker that comes late with the word
// of an older job gets nothing: before the fields of a new job are written, the
// word is closed (next index = all ones).
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_LOCAL_THREADPOOL_H
#define MGQ_RUNTIME_LOCAL_THREADPOOL_H

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace mgq::rt {

/// The first index fault since the last check. Compute threads write it; the
/// rank's executor reads it after a call, when all of them are done.
struct IndexFault {
  std::atomic<bool> taken{false};
  std::atomic<bool> complete{false};
  const char *what = nullptr;
  int64_t index = 0, size = 0;
};

class ThreadPool {
public:
  using Body = void (*)(void *context, int64_t index);

  /// `threads` includes the caller's; at least 1.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;
  ~ThreadPool();

  int threads() const { return threadCount; }

  /// Runs body(context, i) for i in [0, count). Only the thread that owns the
  /// pool calls it; from inside a body it runs in place.
  void run(Body body, void *context, int64_t count);

  /// Makes this the pool of the calling thread: what mgq_parallel_for uses.
  void makeCurrent();

  /// The pool of the calling thread, a worker's included; null: none.
  static ThreadPool *current();

  /// What this pool's rank has met.
  IndexFault indexFault;

private:
  void worker();
  void takeTickets();
  template <typename Ready>
  static bool spinUntil(Ready ready);

  int threadCount;
  std::vector<std::thread> workers;
  alignas(64) std::atomic<uint64_t> ticket{~uint64_t{0}};
  alignas(64) std::atomic<uint32_t> finished{0};
  alignas(64) std::atomic<uint32_t> job{0};
  std::atomic<int> sleepers{0}, callerSleeps{0}, callerCpu{-1};
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> jobCount{0};
  std::atomic<Body> jobBody{nullptr};
  std::atomic<void *> jobContext{nullptr};
};

/// mgq_parallel_for over a callable body(index). It allocates nothing.
template <typename Callable>
void parallelFor(int64_t count, Callable &&body);

} // namespace mgq::rt

extern "C" void mgq_parallel_for(void (*body)(void *, int64_t), void *context,
                                 int64_t count);

template <typename Callable>
void mgq::rt::parallelFor(int64_t count, Callable &&body) {
  using Plain = std::remove_reference_t<Callable>;
  mgq_parallel_for(
      [](void *context, int64_t index) {
        (*static_cast<Plain *>(context))(index);
      },
      &body, count);
}

#endif // MGQ_RUNTIME_LOCAL_THREADPOOL_H
