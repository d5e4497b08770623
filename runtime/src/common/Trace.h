//===- Trace.h - What ran when ----------------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_TRACE_H
#define MGQ_RUNTIME_COMMON_TRACE_H

#include <cstdint>
#include <string>
#include <vector>

namespace mgq::rt {

enum class Phase : uint8_t {
  Load, ///< Copying inputs out of the data.
  Count,
  Forward,
  Backward,
  Weight,
  Optimizer,
  Prepare,
  Evaluate,
  Send,      ///< Beginning a message; what is copied at once counts.
  Receive,   ///< The same.
  Wait,      ///< Asleep until a message is done.
  AllReduce, ///< Summing over replicas.
  AllGather, ///< Frozen weights that are spread over ranks.
  Exchange   ///< Counts, norms and losses of all ranks.
};

/// Seconds of a steady clock.
double secondsNow();

/// A message, for its event.
struct TraceMessage {
  int64_t bytes = 0;
  int32_t peer = -1;    ///< Rank; -1: the event is of no message.
  int32_t traffic = -1; ///< mgq_traffic.
};

/// The name of a kind of traffic: "activation".
const char *trafficName(int32_t traffic);

/// A ring of events in memory; the last ones stay. Off without a capacity.
class Trace {
public:
  explicit Trace(size_t capacity) : events(capacity) {}

  /// `name` must live as long as the trace; times in seconds of secondsNow().
  /// Allocates nothing.
  void add(Phase phase, const char *name, double start, double seconds,
           int32_t microBatch, const TraceMessage &message = {}) {
    if (!events.empty())
      events[added++ % events.size()] = {name, start,      seconds, message,
                                         step, microBatch, phase};
  }

  /// The step that later events belong to.
  void setStep(int64_t number) { step = number; }

  /// When the oldest event began, infinity without one.
  double firstStart() const;

  /// The events of a rank as lines of Chrome's JSON, each with a comma before
  /// it. Times in microseconds since `origin`.
  std::string text(int32_t rank, double origin) const;

private:
  struct Event {
    const char *name;
    double start, seconds;
    TraceMessage message;
    int64_t step;
    int32_t microBatch;
    Phase phase;
  };

  std::vector<Event> events;
  uint64_t added = 0;
  int64_t step = 0;
};

/// Writes the texts of all ranks as one file of Chrome's JSON, one process per
/// rank. Throws Error naming the file.
void writeTrace(const std::string &path, const std::vector<std::string> &ranks);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_TRACE_H
