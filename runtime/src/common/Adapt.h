//===- Adapt.h - How many micro-batches a step should have ------*- C++ -*-===//
//
// The policy alone: measurements in, numbers of micro-batches out. More
// micro-batches fill a pipeline better; smaller ones are computed less
// efficiently.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_ADAPT_H
#define MGQ_RUNTIME_COMMON_ADAPT_H

#include <cstdint>
#include <optional>
#include <vector>

namespace mgq::rt {

/// A number of micro-batches that steps may have.
struct AdaptChoice {
  int64_t count;
  double predictedSeconds; ///< Of a step; negative: not known.
};

/// What the policy remembers; part of checkpoints.
struct AdaptState {
  struct Rejection {
    int64_t count, windows; ///< Not tried for so many more windows.
  };

  int64_t count = 0; ///< The number now.
  // Of the running window: steps, and sums over those that were measured.
  int64_t steps = 0;
  double busy = 0; ///< Seconds of computing, ranks added up.
  double span = 0; ///< Seconds from start to last gradient, times ranks.
  double samples = 0;
  /// Samples per busy second of the window before the last change; 0: there
  /// was no change.
  double rateBefore = 0;
  std::vector<Rejection> rejected;
};

/// A change, and what it was made for.
struct AdaptChange {
  int64_t from, to;
  double bubble, rate, rateBefore;
};

/// Looks back after each window of steps.
class AdaptPolicy {
public:
  static constexpr double mostBubble = 0.3;
  static constexpr double mostLoss = 0.05; ///< Of samples per busy second.
  static constexpr double stride = 1.25;
  static constexpr int64_t rejectedWindows = 5;

  /// `choices`: ascending; the state's number is one of them. `every`: steps of
  /// a window; 0: nothing ever changes.
  AdaptPolicy(std::vector<AdaptChoice> choices, int64_t every,
              AdaptState state);

  /// After a step; a step without `span` was not measured. Returns a change
  /// that holds from the next step on.
  std::optional<AdaptChange> step(double busy, double span, double samples);

  const AdaptState &state() const { return now; }

private:
  std::optional<AdaptChange> endWindow();
  int64_t larger() const;
  int64_t smaller() const;
  bool wouldHelp() const;
  bool isRejected(int64_t count) const;

  std::vector<AdaptChoice> choices;
  int64_t every;
  AdaptState now;
  bool isCold = true; ///< The next step is the first with its number.
};

/// The choice nearest to `count`, the larger of two.
int64_t nearestChoice(const std::vector<AdaptChoice> &choices, int64_t count);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_ADAPT_H
