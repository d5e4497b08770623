//===- Progress.h - What a person sees while training -----------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_PROGRESS_H
#define MGQ_RUNTIME_COMMON_PROGRESS_H

#include "runtime/src/common/Log.h"

namespace mgq::rt {

/// On a terminal one bar that is redrawn, else one plain line per logged step.
/// Both go to standard output. Allocates nothing after construction.
class Progress {
public:
  /// `total`: steps in all, `done`: before this run.
  Progress(int64_t total, int64_t done);
  ~Progress();

  /// After each step; `logged`: whether it is a logged one.
  void step(const StepRecord &record, bool logged);

  /// A line of its own, above the bar.
  void note(std::string_view text);

private:
  void drawBar(const StepRecord &record);

  bool terminal;
  bool barShown = false;
  int64_t total, done;
  double start, lastDrawn = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_PROGRESS_H
