//===- Adapt.cpp - How many micro-batches a step should have --------------===//

#include "runtime/src/common/Adapt.h"
#include <algorithm>
#include <cstdlib>

using namespace mgq::rt;

AdaptPolicy::AdaptPolicy(std::vector<AdaptChoice> choices, int64_t every,
                         AdaptState state)
    : choices(std::move(choices)), every(every), now(std::move(state)) {}

int64_t mgq::rt::nearestChoice(const std::vector<AdaptChoice> &choices,
                               int64_t count) {
  int64_t best = choices.front().count;
  for (const AdaptChoice &choice : choices)
    if (std::abs(choice.count - count) <= std::abs(best - count))
      best = choice.count;
  return best;
}

/// The first choice from `stride` times the number on; else the largest.
int64_t AdaptPolicy::larger() const {
  double wanted = static_cast<double>(now.count) * stride;
  for (const AdaptChoice &choice : choices)
    if (static_cast<double>(choice.count) >= wanted)
      return choice.count;
  return choices.back().count;
}

/// Undoes larger(): the last choice up to a `stride`-th of the number, else the
/// smallest.
int64_t AdaptPolicy::smaller() const {
  double wanted = static_cast<double>(now.count) / stride;
  int64_t found = choices.front().count;
  for (const AdaptChoice &choice : choices)
    if (static_cast<double>(choice.count) <= wanted)
      found = choice.count;
  return found;
}

/// Whether the simulator expects a shorter step of some larger number.
bool AdaptPolicy::wouldHelp() const {
  double current = -1, best = -1;
  for (const AdaptChoice &choice : choices) {
    double seconds = choice.predictedSeconds;
    if (choice.count == now.count)
      current = seconds;
    else if (choice.count > now.count && seconds >= 0 &&
             (best < 0 || seconds < best))
      best = seconds;
  }
  return best >= 0 && best < current;
}

bool AdaptPolicy::isRejected(int64_t count) const {
  return std::any_of(
      now.rejected.begin(), now.rejected.end(),
      [&](const AdaptState::Rejection &r) { return r.count == count; });
}

std::optional<AdaptChange> AdaptPolicy::endWindow() {
  for (AdaptState::Rejection &rejection : now.rejected)
    --rejection.windows;
  now.rejected.erase(std::remove_if(now.rejected.begin(), now.rejected.end(),
                                    [](const AdaptState::Rejection &r) {
                                      return r.windows <= 0;
                                    }),
                     now.rejected.end());
  if (now.busy <= 0 || now.span <= 0)
    return std::nullopt;
  double bubble = 1 - now.busy / now.span, rate = now.samples / now.busy;
  int64_t from = now.count, to = from;
  if (now.rateBefore > 0 && rate < (1 - mostLoss) * now.rateBefore) {
    to = smaller();
    if (to != from)
      now.rejected.push_back({from, rejectedWindows});
  } else if (bubble > mostBubble && wouldHelp() && !isRejected(larger())) {
    to = larger();
  }
  if (to == from)
    return std::nullopt;
  AdaptChange change{from, to, bubble, rate, now.rateBefore};
  now.count = to;
  now.rateBefore = rate;
  return change;
}

std::optional<AdaptChange> AdaptPolicy::step(double busy, double span,
                                             double samples) {
  if (every == 0)
    return std::nullopt;
  // The first step with a number touches memory that no other did.
  if (!isCold && span > 0) {
    now.busy += busy;
    now.span += span;
    now.samples += samples;
  }
  isCold = false;
  if (++now.steps < every)
    return std::nullopt;
  std::optional<AdaptChange> change = endWindow();
  isCold = change.has_value();
  now.steps = 0;
  now.busy = now.span = now.samples = 0;
  return change;
}
