//===- HiddenTime.cpp - Communication while a rank computes ---------------===//

#include "runtime/src/common/HiddenTime.h"
#include <algorithm>

using namespace mgq::rt;

void HiddenTime::startStep() {
  spans.clear();
  busy.clear();
  ready = limit = HUGE_VAL;
}

void HiddenTime::endStep() {
  std::sort(
      spans.begin(), spans.end(),
      [](const mgq_span &a, const mgq_span &b) { return a.begin < b.begin; });
  double total = 0, hidden = 0, first = ready;
  size_t next = 0; // The first computation that may overlap what is left.
  for (size_t i = 0; i < spans.size();) {
    mgq_span joined = spans[i];
    for (++i; i < spans.size() && spans[i].begin <= joined.end; ++i)
      joined.end = std::max(joined.end, spans[i].end);
    first = std::min(first, joined.begin);
    total += joined.end - joined.begin;
    while (next < busy.size() && busy[next].end <= joined.begin)
      ++next;
    for (size_t b = next; b < busy.size() && busy[b].begin < joined.end; ++b)
      hidden += std::min(busy[b].end, joined.end) -
                std::max(busy[b].begin, joined.begin);
  }
  double after = 0;
  for (const mgq_span &one : busy)
    after +=
        std::max(0.0, std::min(one.end, limit) - std::max(one.begin, first));
  sum.total += total;
  sum.hidden += hidden;
  sum.largest += std::max(hidden, std::min(total, after));
}
