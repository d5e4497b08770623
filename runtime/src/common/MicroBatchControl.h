//===- MicroBatchControl.h - How many micro-batches a step has --*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_MICROBATCHCONTROL_H
#define MGQ_RUNTIME_COMMON_MICROBATCHCONTROL_H

#include "runtime/src/common/Adapt.h"
#include "runtime/src/common/Group.h"
#include "runtime/src/common/Options.h"
#include "runtime/src/common/Program.h"
#include "runtime/src/common/Step.h"

namespace mgq::rt {

/// Says how many micro-batches each step has: as the policy finds best, or as a
/// recorded run had them (--replay). All ranks ask alike and get the same
/// answers: the policy sees gathered times only.
class MicroBatchControl {
public:
  /// Throws UsageError for options that the program cannot follow.
  MicroBatchControl(const mgq_program &program, const Options &options);

  /// All ranks at once: takes up the recorded sequence, which rank 0 reads, and
  /// goes on from rank 0's `loaded` state, where it has one. Returns a note for
  /// the user, or nothing.
  std::string start(Group &group, bool isReplay, const AdaptState &loaded);

  /// Whether there is anything to choose from.
  bool hasChoice() const { return choices.size() > 1; }

  /// For a step, from 0.
  int64_t countOf(int64_t step) const;

  /// After a step. Returns a text about a change that holds from the next one
  /// on, or nothing.
  std::string stepped(int64_t step, const StepResult &result);

  /// For checkpoints.
  AdaptState state(int64_t steps) const;

private:
  struct Recorded {
    int64_t step, count; ///< From this step (from 0) on.
  };

  void readReplay();
  void shareReplay(Group &group);

  const mgq_program &program;
  const Options &options;
  std::vector<AdaptChoice> choices;
  std::optional<AdaptPolicy> policy;
  std::vector<Recorded> replay;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_MICROBATCHCONTROL_H
