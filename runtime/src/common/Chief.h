//===- Chief.h - What rank 0 alone does -------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_CHIEF_H
#define MGQ_RUNTIME_COMMON_CHIEF_H

#include "runtime/src/common/Checkpoint.h"
#include "runtime/src/common/Evaluate.h"
#include "runtime/src/common/Log.h"
#include "runtime/src/common/Options.h"
#include "runtime/src/common/Progress.h"
#include <optional>

namespace mgq::rt {

/// Numbers of a run's steps; a median leaves the first out, which warms up.
class StepNumbers {
public:
  StepNumbers();
  void add(double number);
  double median() const;
  double sum() const { return total; }
  int64_t count() const { return added; }

private:
  int64_t added = 0;
  double total = 0;
  std::vector<double> recent; ///< The last ones, a ring.
};

/// Log, progress, reports: all that a user sees of a run.
class Chief {
public:
  Chief(const mgq_program &program, const Options &options);

  /// Finds out now, not after the training, that results cannot be written;
  /// opens the log. Throws Error.
  void open(int64_t totalSteps, const TrainerState &state);

  /// Instead of stepped(), where an evaluation follows no step.
  void started(int64_t step, double epoch);

  /// After each step, in this order; an evaluation is optional. Allocate
  /// nothing but in evaluated().
  void stepped(const StepRecord &record, double bubble);
  void evaluated(int64_t step, const Evaluation &evaluation,
                 const std::vector<int32_t> &outputs);
  void logStep(int64_t step, bool wasEvaluated);

  /// Before a step, from 0: says which layers change to bf16 with it.
  void noteLayers(int64_t step);

  void syncLog() { log.sync(); }

  /// Ends the bar's line: an error follows.
  void endBar() { progress.reset(); }

  /// A line about the run, above the bar.
  void note(const std::string &text) { progress->note(text); }

  /// The end of a run: the bar is closed, notes are printed. `last`: the
  /// program of the last step.
  void close(const mgq_program &last, const TrainerState &state);

  /// Reports, from what the ranks say of themselves (see RankReport).
  void writeSummary(const mgq_program &last, const TrainerState &state,
                    const std::vector<std::string> &ranks) const;
  void writeProfile(const mgq_program &last,
                    const std::vector<std::string> &ranks) const;

private:
  void checkOutputs() const;
  double bubble() const;

  const mgq_program &program;
  const Options &options;
  LogFile log;
  JsonLine line;
  std::optional<Progress> progress;
  StepNumbers seconds, bubbles;
  int64_t loggedMicroBatches = 0;
  bool isChange = false; ///< Of it, in the running line.
  std::optional<Evaluation> lastEvaluation;
  std::vector<int32_t> scalarOutputs;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_CHIEF_H
