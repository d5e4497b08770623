//===- Trace.h - What ran when -------------------------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_COMMON_TRACE_H
#define MGQ_RUNTIME_COMMON_TRACE_H

#include <cstdint>
#include <string>
#include <vector>

namespace mgq::rt {

enum class Phase : uint8_t {
  Count,
  Forward,
  Backward,
  Optimizer,
  Prepare,
  Evaluate
};

/// Seconds of a steady clock.
double secondsNow();

/// A ring of events in memory; the last ones stay. Off without a capacity.
class Trace {
public:
  explicit Trace(size_t capacity) : events(capacity) {}

  /// `name` must live as long as the trace; times in seconds of secondsNow().
  /// Allocates nothing.
  void add(Phase phase, const char *name, double start, double seconds,
           int32_t microBatch) {
    if (!events.empty())
      events[added++ % events.size()] = {name, start,      seconds,
                                         step, microBatch, phase};
  }

  /// The step that later events belong to.
  void setStep(int64_t number) { step = number; }

  /// Writes Chrome's JSON, one process per rank. Throws Error naming the file.
  void write(const std::string &path, int rank) const;

private:
  struct Event {
    const char *name;
    double start, seconds;
    int64_t step;
    int32_t microBatch;
    Phase phase;
  };

  std::vector<Event> events;
  uint64_t added = 0;
  int64_t step = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_TRACE_H
