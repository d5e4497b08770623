//===- Schedule.h - Learning rate over steps --------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_SCHEDULE_H
#define MGQ_RUNTIME_COMMON_SCHEDULE_H

#include "runtime/src/common/Options.h"

namespace mgq::rt {

/// Factor on the learning rate, with the values of transformers.get_scheduler:
/// `constant_with_warmup`, `linear`, `cosine`, and `cosine_with_min_lr` where
/// there is a minimum (linear goes down to it in the same way).
class Schedule {
public:
  /// `totalSteps`: length of the run. --warmup-steps wins over --warmup-ratio.
  Schedule(const Options &options, int64_t totalSteps);

  /// `finished`: optimizer steps before this one, 0 for the first.
  double factor(int64_t finished) const;

  int64_t warmupSteps() const { return warmup; }

private:
  ScheduleKind kind;
  int64_t warmup, total;
  double minimum; ///< As a share of --learning-rate.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_SCHEDULE_H
