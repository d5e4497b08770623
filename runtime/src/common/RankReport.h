//===- RankReport.h - What a rank tells of itself ---------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_RANKREPORT_H
#define MGQ_RUNTIME_COMMON_RANKREPORT_H

#include "runtime/src/common/OpList.h"

namespace mgq::rt {

/// A rank's part of --summary, as JSON. `peakBytes`: see cli.md; `sent`: over
/// all training steps of the run; `communication`: of the steps but the first;
/// `dataSeconds`: of a step, spent on reading
/// data; `threads`: of compute.
std::string summaryOf(const RankView &view, int64_t peakBytes,
                      const SentBytes &sent,
                      const CommunicationTime &communication,
                      double dataSeconds, int threads, int64_t cacheHits);

/// A rank's part of --profile, as JSON: mean seconds per micro-batch of the
/// layers that it runs.
std::string profileOf(const RankView &view, const Executor &executor,
                      int threads);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_RANKREPORT_H
