//===- Schedule.cpp - Learning rate over steps ----------------------------===//

#include "runtime/src/common/Schedule.h"
#include <algorithm>
#include <cmath>

using namespace mgq::rt;

Schedule::Schedule(const Options &options, int64_t totalSteps)
    : kind(options.schedule), warmup(options.warmupSteps), total(totalSteps),
      minimum(options.learningRate > 0
                  ? options.minLearningRate / options.learningRate
                  : 0) {
  if (!warmup)
    warmup = static_cast<int64_t>(
        std::ceil(options.warmupRatio * static_cast<double>(totalSteps)));
}

double Schedule::factor(int64_t finished) const {
  auto length = [](int64_t steps) {
    return static_cast<double>(std::max<int64_t>(1, steps));
  };
  if (finished < warmup)
    return static_cast<double>(finished) / length(warmup);
  double factor = 1;
  if (kind == ScheduleKind::Linear)
    factor = static_cast<double>(total - finished) / length(total - warmup);
  if (kind == ScheduleKind::Cosine)
    factor = 0.5 * (1 + std::cos(M_PI * static_cast<double>(finished - warmup) /
                                 length(total - warmup)));
  if (kind != ScheduleKind::Constant)
    factor = std::max(0.0, factor) * (1 - minimum) + minimum;
  return factor;
}
