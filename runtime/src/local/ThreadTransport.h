//===- ThreadTransport.h - Ranks as threads of one process ------*- C++ -*-===//
//
// A message is one memcpy, made by the side that comes second: the sender if
// the receiver has posted its place, else the receiver. Nothing is allocated
// once a rank has had its largest number of messages open at a time.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_LOCAL_THREADTRANSPORT_H
#define MGQ_RUNTIME_LOCAL_THREADTRANSPORT_H

#include "runtime/include/rt.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mgq::rt {

/// All ends of a group of threads.
class ThreadTransport {
public:
  /// `timeoutSeconds`: how long a rank that others wait for may be silent; 0:
  /// as long as it likes.
  ThreadTransport(int32_t size, double timeoutSeconds);
  ThreadTransport(const ThreadTransport &) = delete;
  ThreadTransport &operator=(const ThreadTransport &) = delete;
  ~ThreadTransport();

  /// A rank's end, named "threads".
  mgq_transport &end(int32_t rank);

  /// The rank that aborted first, -1: none.
  int32_t abortedBy() const { return aborter.load(std::memory_order_acquire); }
  /// Its message; valid once abortedBy() names it.
  const std::string &abortMessage() const { return message; }

private:
  class End;

  void abort(int32_t rank, const char *text);

  std::chrono::steady_clock::duration timeout;
  std::atomic<int32_t> aborter{-1};
  std::mutex abortMutex;
  std::string message;
  std::vector<std::unique_ptr<End>> ends;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_THREADTRANSPORT_H
