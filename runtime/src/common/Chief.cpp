//===- Chief.cpp - What rank 0 alone does ---------------------------------===//

#include "runtime/src/common/Chief.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <algorithm>

using namespace mgq::rt;

static constexpr size_t recentSteps = 4096;

StepNumbers::StepNumbers() { recent.reserve(recentSteps); }

void StepNumbers::add(double number) {
  total += number;
  if (++added == 1)
    return; // Counted, but it warms up.
  if (recent.size() < recentSteps)
    recent.push_back(number);
  else
    recent[added % recentSteps] = number;
}

double StepNumbers::median() const {
  if (recent.empty())
    return total;
  std::vector<double> sorted = recent;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

Chief::Chief(const mgq_program &program, const Options &options)
    : program(program), options(options) {}

void Chief::checkOutputs() const {
  for (const std::string *path : {&options.dumpGradients, &options.trace,
                                  &options.profile, &options.summary})
    if (!path->empty())
      checkWritable(*path);
  if (!options.outputDir.empty())
    checkCheckpointFolder(options.outputDir);
}

void Chief::open(int64_t totalSteps, const TrainerState &state) {
  checkOutputs();
  if (!options.logFile.empty())
    log.open(options.logFile, options.resume.empty() ? -1 : state.step);
  progress.emplace(totalSteps, state.step);
}

void Chief::started(int64_t step, double epoch) {
  line.add("step", step);
  line.add("epoch", epoch);
}

void Chief::stepped(const StepRecord &record, double bubble) {
  seconds.add(record.stepSeconds);
  if (bubble >= 0)
    bubbles.add(bubble);
  line.add("step", record.step);
  line.add("epoch", record.epoch);
  line.add("loss", record.loss);
  line.add("grad_norm", record.gradNorm);
  line.add("learning_rate", record.learningRate);
  line.add("samples", record.samples);
  line.add("step_seconds", record.stepSeconds);
  if (record.lossScale > 0)
    line.add("loss_scale", record.lossScale);
  if (record.skipped)
    line.add("skipped", record.skipped);
  if (record.microBatches)
    line.add("micro_batches", record.microBatches);
  isChange = record.microBatches != loggedMicroBatches;
  loggedMicroBatches = record.microBatches;
  progress->step(record, record.step % options.loggingSteps == 0);
}

void Chief::evaluated(int64_t step, const Evaluation &evaluation,
                      const std::vector<int32_t> &outputs) {
  lastEvaluation = evaluation;
  scalarOutputs = outputs;
  line.add("eval_loss", evaluation.loss);
  std::string text = fmt::format("evaluation after step {}: loss {:.6f}", step,
                                 evaluation.loss);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const char *name = program.outputs[outputs[i]].name;
    line.add(std::string("eval_") + name, evaluation.scalars[i]);
    text += fmt::format("  {} {:.6f}", name, evaluation.scalars[i]);
  }
  progress->note(text);
}

void Chief::logStep(int64_t step, bool wasEvaluated) {
  std::string_view text = line.finish();
  // Each change is in the log, so that it can be replayed.
  if (step % options.loggingSteps == 0 || wasEvaluated || isChange)
    log.write(text);
}

double Chief::bubble() const { return bubbles.median(); }

/// "step 0.61 s (predicted 0.58), bubble 12.3 % (predicted 11.0 %)". How long
/// it is depends on the time: a string would allocate more in some runs.
static fmt::memory_buffer timesText(const mgq_program &program, double seconds,
                                    double bubble) {
  fmt::memory_buffer text;
  auto add = std::back_inserter(text);
  fmt::format_to(add, "step {:.3g} s", seconds);
  if (program.predicted_step_seconds >= 0)
    fmt::format_to(add, " (predicted {:.3g})", program.predicted_step_seconds);
  fmt::format_to(add, ", bubble {:.1f} %", 100 * bubble);
  if (program.predicted_bubble >= 0)
    fmt::format_to(add, " (predicted {:.1f} %)",
                   100 * program.predicted_bubble);
  return text;
}

void Chief::noteLayers(int64_t step) {
  int32_t count = 0, total = 0;
  const char *first = nullptr, *last = nullptr;
  for (int32_t i = 0; i < program.layer_count; ++i) {
    const mgq_layer &layer = program.layers[i];
    total += layer.late_from > 0;
    if (step == 0 || layer.late_from != step)
      continue;
    ++count;
    first = first ? first : layer.name;
    last = layer.name;
  }
  if (count)
    progress->note(
        fmt::format("step {}: {} of {} layers change to bf16, {} to {}",
                    step + 1, count, total, first, last));
}

void Chief::close(const mgq_program &last, const TrainerState &state) {
  log.sync();
  // One rank waits for nobody: its steps have no bubble to tell of.
  if (rankCount(program) > 1 && seconds.count() > 0 && bubbles.count() > 0) {
    fmt::memory_buffer text = timesText(last, seconds.median(), bubble());
    progress->note({text.data(), text.size()});
  }
  progress.reset();
  if (state.emptySteps || state.nonfiniteSteps)
    printError("note: {} steps had no valid target, {} were skipped for "
               "gradients that are not finite",
               state.emptySteps, state.nonfiniteSteps);
}
