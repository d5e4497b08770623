//===- Variants.h - A rank's programs for several micro-batches -*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_VARIANTS_H
#define MGQ_RUNTIME_COMMON_VARIANTS_H

#include "runtime/src/common/Step.h"
#include <deque>

namespace mgq::rt {

/// A program of an executable, ready to run on one rank.
struct Variant {
  /// What all programs of a rank work with.
  struct Shared {
    Arena &arena;
    const Weights &weights;
    Clipping &clipping;
    Trace &trace;
    Group &group;
    std::function<void()> pulse; ///< See Group.
  };

  Variant(const mgq_program &program, const Options &options,
          const Shared &shared);

  RankView view;
  Executor executor;
  Optimizer optimizer;
  StepRunner runner;
};

/// All programs that a run may change between: one, unless micro-batches adapt.
/// They are made before the first step, so that a change allocates nothing.
class Variants {
public:
  /// Starts with `program`.
  Variants(const mgq_program &program, const Options &options,
           const Variant::Shared &shared);

  /// The one that runs.
  Variant &now() { return *current; }
  /// The one with the most micro-batches: the smallest.
  Variant &finest() { return list.back(); }

  /// Goes on with the program that has `count` micro-batches.
  void use(int64_t count);

  void setClockOffset(double seconds);
  /// Bytes sent in all steps so far.
  SentBytes sent() const;
  /// The same of its times.
  CommunicationTime communication() const;

private:
  std::deque<Variant> list; // Addresses stay.
  Variant *current = nullptr;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_VARIANTS_H
