//===- DeviceTimes.h - When an accelerator computed -------------*- C++ -*-===//
//
// Where times are asked for (--summary): when a rank's accelerator computed in
// a step, and when its messages travelled, which began when both sides had. So
// ranks exchange, once a step, when theirs began.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_DEVICETIMES_H
#define MGQ_RUNTIME_COMMON_DEVICETIMES_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/common/HiddenTime.h"

namespace mgq::rt {

/// Of a program's steps; nothing is counted that an op does for the next step.
/// Allocates nothing after the first step.
class DeviceTimes {
public:
  DeviceTimes(const RankView &view, Accelerator &accelerator, Group &group);

  void startStep();
  /// Around what an op computes.
  void beginOp() { opBegan = accelerator.mark(); }
  void endOp(const mgq_op &op);
  /// A gradient has its final value, where it is enqueued.
  void gradientReady();

  /// Seconds, of this rank's clock.
  struct Computed {
    double began, ended; ///< The first start; the end of the last gradient.
    double busy;
  };
  /// All ranks, after synchronize(): tells `times` of the step so far.
  /// `spanOf` says when the message or sum of an op travelled by this rank's
  /// events; negative: it is not known. `clockOffset` makes its clock rank 0's.
  template <typename SpanOf>
  Computed read(HiddenTime &times, double clockOffset, SpanOf spanOf) {
    for (int32_t i = 0; i < view.tables.op_count; ++i) {
      mgq_span span = counts(view.tables.ops[i]) ? spanOf(i) : unknown;
      mine[2 * i] = span.begin < 0 ? -1 : span.begin + clockOffset;
      mine[2 * i + 1] = span.end < 0 ? -1 : span.end + clockOffset;
    }
    exchange(times, clockOffset);
    return computed(times);
  }
  /// Forgets what was read; for a moment in which nothing is enqueued.
  void clear() { accelerator.clearMarks(); }

  /// Where a side of a message is in what ranks exchange.
  struct Side {
    int32_t rank, op;
  };

private:
  static constexpr mgq_span unknown = {-1, -1};
  /// What an op computed, between two marks.
  struct Computation {
    int32_t begin, end;
    bool isAhead, hasGradients;
  };
  static bool counts(const mgq_op &op);
  std::vector<Side> sidesOf(int32_t op) const;
  void exchange(HiddenTime &times, double clockOffset);
  Computed computed(HiddenTime &times) const;

  const RankView &view;
  Accelerator &accelerator;
  Group &group;
  int32_t opBegan = -1, ready = -1; ///< Marks.
  std::vector<Computation> computations;
  std::vector<std::vector<Side>> sides; ///< Of each op.
  size_t width = 0;                     ///< Values of a rank.
  std::vector<double> mine, all;        ///< Begin and end of each op.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_DEVICETIMES_H
