//===- ProcessTransport.h - The rank's side of a plugin ---------*- C++ -*-===//
//
// What transports between processes share: a rank's calls become commands,
// which one communication thread of the process carries out. So messages go on
// while the rank computes. A transport is this and what its thread does.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_PROCESS_PROCESSTRANSPORT_H
#define MGQ_RUNTIME_PROCESS_PROCESSTRANSPORT_H

#include "runtime/include/rt.h"
#include "runtime/src/process/Liveness.h"
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mgq::process {

/// Now, as spans count.
inline double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// What the rank wants of the communication thread.
struct Command {
  enum Kind { Send, Receive, AllGather, Abort, Close } kind = Send;
  const void *from = nullptr; ///< Abort: a text that ends with a null byte.
  void *to = nullptr;
  int64_t bytes = 0;
  int peer = 0, tag = 0;
  int64_t open = 0; ///< The thread's own: what is not done of it.
  bool done = false;
  mgq_span span = {-1, -1}; ///< A receiver does not know when it began.
};

class ProcessTransport {
public:
  ProcessTransport(const char *name, double timeoutSeconds);
  virtual ~ProcessTransport() = default;
  ProcessTransport(const ProcessTransport &) = delete;
  ProcessTransport &operator=(const ProcessTransport &) = delete;

  /// Starts the thread, and returns when this rank has met the others: their
  /// fault or nothing.
  std::string open();

  mgq_transport table = {};

protected:
  //===--- The communication thread ---===//

  /// Meets the others and sets rank and size of `table`. False after fail().
  virtual bool start() = 0;
  /// Carries out commands until it is told to close.
  virtual void loop() = 0;
  /// Called by the rank: there is a command.
  virtual void wake() = 0;

  /// Nothing works any more; the first fault stays.
  void fail(const std::string &text);
  /// The same, told by another rank.
  void failByPeer(const std::string &text);
  /// For a rank that is stuck: ends the process with the text of the fault.
  [[noreturn]] void endProcess();
  /// Fills `taken`, which is empty, with commands, whose addresses stay; calls
  /// `sleep` with the lock held before.
  template <typename Sleep>
  void takeCommands(std::vector<int64_t> &taken, Sleep sleep) {
    std::unique_lock<std::mutex> lock(mutex);
    sleep(lock);
    taken.swap(queue);
  }
  bool hasCommands() const { return !queue.empty(); }
  Command &commandAt(int64_t index);
  /// Commands are done.
  void finish(Command *const *finished, size_t count);

  const double timeout; ///< Seconds; 0: none.
  Liveness liveness;

private:
  int32_t begin(const Command &command, int64_t *request);
  int32_t wait(int64_t request, mgq_span *span);
  int32_t test(int64_t request, int32_t *done, mgq_span *span);
  int32_t waitAny(const int64_t *requests, int32_t count);
  int32_t findSilent();
  int32_t sleepUntilAny(std::unique_lock<std::mutex> &lock,
                        const int64_t *wanted, int32_t count);
  void endCommand(int64_t request, mgq_span *span);
  void enqueue(const Command &command, int64_t *request);
  int32_t fault(std::string text);
  [[noreturn]] void abort(const char *message);
  void close();
  void fillTable();

  std::string errorText; ///< What `error` returns.
  std::thread thread;

  std::mutex mutex;
  std::condition_variable forRank;
  bool started = false, failedByPeer = false;
  std::string failure;
  std::deque<Command> commands; // Addresses stay.
  std::vector<int64_t> unused, queue;
};

/// A plugin's mgq_open_transport: opens `transport`, which lives as long as the
/// process. Null after a fault, whose text is in `error`.
mgq_transport *openTransport(ProcessTransport *transport, int32_t abiVersion,
                             char *error, int64_t errorBytes);

} // namespace mgq::process

#endif // MGQ_RUNTIME_PROCESS_PROCESSTRANSPORT_H
