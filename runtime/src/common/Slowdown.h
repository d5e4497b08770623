//===- Slowdown.h - Artificially slow stages --------------------*- C++ -*-===//
//
// For tests and measurements: what small kernels take is noise, so ranks sleep
// for as long as larger ones would compute. docs/AdaptiveMicroBatches.md says
// how to use it.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_SLOWDOWN_H
#define MGQ_RUNTIME_COMMON_SLOWDOWN_H

#include "runtime/src/common/Program.h"

namespace mgq::rt {

/// How much longer a rank takes over each op that computes.
class Slowdown {
public:
  /// Of the environment variable MGQ_TEST_SLOW; none without it. Throws
  /// UsageError.
  explicit Slowdown(const RankView &view);

  /// Sleeps, as long as an op of one micro-batch takes longer.
  void sleep() const;

private:
  double seconds = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_SLOWDOWN_H
