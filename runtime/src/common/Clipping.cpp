//===- Clipping.cpp - Limits on the gradients' norm -----------------------===//

#include "runtime/src/common/Clipping.h"
#include <algorithm>
#include <cmath>

using namespace mgq::rt;

Clipping::Clipping(const Options &options)
    : kind(options.clip), value(options.clipValue) {
  norms.reserve(clipHistoryLength + 1);
  sorted.reserve(clipHistoryLength);
}

void Clipping::setHistory(std::vector<double> history) {
  size_t drop = history.size() - std::min(history.size(), clipHistoryLength);
  norms.assign(history.begin() + static_cast<ptrdiff_t>(drop), history.end());
}

/// FACTOR times the median; infinity until the history is full.
double Clipping::historyLimit() {
  if (norms.size() < clipHistoryLength)
    return HUGE_VAL;
  sorted.assign(norms.begin(), norms.end());
  std::sort(sorted.begin(), sorted.end());
  constexpr size_t half = clipHistoryLength / 2;
  return value * (sorted[half - 1] + sorted[half]) / 2;
}

double Clipping::factor(double norm, double epoch) {
  double limit = HUGE_VAL;
  if (kind == ClipKind::Value)
    limit = value;
  if (kind == ClipKind::Tanh)
    limit =
        std::max(0.1, std::min(1.0, 0.5 * (1 + std::tanh(0.1 * (epoch - 20)))));
  if (kind == ClipKind::History) {
    limit = historyLimit();
    if (norms.size() == clipHistoryLength)
      norms.erase(norms.begin());
    norms.push_back(norm);
  }
  return std::min(1.0, limit / (norm + 1e-6));
}
