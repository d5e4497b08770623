//===- HiddenTime.h - Communication while a rank computes -------*- C++ -*-===//
//
// Per step: the union of the times in which messages of this rank travelled,
// its part while the rank computed, and the largest part that could be:
//
//   largest = min(communication, computation after the first thing to send)
//
// Computation counts from when the first message begins or the first owned
// gradient has its final value (whichever is earlier) to the optimizer, which
// needs all sums. docs/Overlap.md explains the figures.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_HIDDENTIME_H
#define MGQ_RUNTIME_COMMON_HIDDENTIME_H

#include "runtime/include/rt.h"
#include <cmath>
#include <vector>

namespace mgq::rt {

/// Seconds in all steps together.
struct CommunicationTime {
  double total = 0, hidden = 0, largest = 0;
};

class HiddenTime {
public:
  /// `messages`, `computations`: at most, in a step; more allocate.
  HiddenTime(size_t messages, size_t computations) {
    spans.reserve(messages);
    busy.reserve(computations);
  }

  void startStep();
  /// A message travelled. One whose begin is not known does not count.
  void addMessage(const mgq_span &span) {
    if (span.begin >= 0 && span.end > span.begin)
      spans.push_back(span);
  }
  /// The rank computed; in order of time.
  void addBusy(double begin, double end) { busy.push_back({begin, end}); }
  /// A gradient has its final value.
  void gradientReady(double time) { ready = std::fmin(ready, time); }
  /// The optimizer begins.
  void optimizerBegins(double time) { limit = time; }
  void endStep();
  /// Forgets what was measured: after the first step, which warms up.
  void reset() { sum = {}; }

  const CommunicationTime &time() const { return sum; }

private:
  std::vector<mgq_span> spans, busy;
  double ready = HUGE_VAL, limit = HUGE_VAL;
  CommunicationTime sum;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_HIDDENTIME_H
