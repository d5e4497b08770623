//===- MicroBatchControl.cpp - The number of micro-batches of a step ------===//

#include "runtime/src/common/MicroBatchControl.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <algorithm>
#include <nlohmann/json.hpp>

using namespace mgq::rt;

static constexpr int64_t defaultEvery = 200;

static std::string countsText(const std::vector<AdaptChoice> &choices) {
  std::string text;
  for (const AdaptChoice &choice : choices)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", choice.count);
  return text;
}

static bool isChoice(const std::vector<AdaptChoice> &choices, int64_t count) {
  return std::any_of(
      choices.begin(), choices.end(),
      [&](const AdaptChoice &choice) { return choice.count == count; });
}

MicroBatchControl::MicroBatchControl(const mgq_program &program,
                                     const Options &options)
    : program(program), options(options) {
  for (const mgq_program *variant : variantsOf(program))
    choices.push_back(
        {variant->micro_batches, variant->predicted_step_seconds});
  if (options.adaptEvery && !hasChoice())
    failUsage("--adapt-every needs a program that was compiled with "
              "--micro-batches=MIN:MAX and --global-batch; this one has {} "
              "micro-batches a step",
              program.micro_batches);
  if (hasChoice() && !reducesByTokens(program, options))
    failUsage("--loss-reduction=micro-batch: the number of micro-batches "
              "adapts, and the mean of their losses would change with it");
}

/// One JSON object a line: "step", from 1, and "micro_batches", for that step
/// and those that follow up to the next line's. A --log-file is such a file.
void MicroBatchControl::readReplay() {
  MappedFile file(options.replay);
  std::string_view text(reinterpret_cast<const char *>(file.data()),
                        static_cast<size_t>(file.size()));
  int64_t line = 0, last = 0;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    ++line;
    auto json = nlohmann::json::parse(text.begin() + begin, text.begin() + end,
                                      nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") ||
        !json["step"].is_number_integer())
      fail("--replay: '{}': line {} is no JSON object with a \"step\"",
           options.replay, line);
    int64_t step = json["step"];
    // A line of an evaluation alone repeats the last step.
    if (!json.contains("micro_batches") && json.contains("eval_loss"))
      continue;
    if (!json.contains("micro_batches") ||
        !json["micro_batches"].is_number_integer())
      fail("--replay: '{}': line {} has no \"micro_batches\": it is the log of "
           "a run whose micro-batches do not adapt",
           options.replay, line);
    int64_t count = json["micro_batches"];
    if (step <= last)
      fail("--replay: '{}': step {} stands behind step {}", options.replay,
           step, last);
    if (!isChoice(choices, count))
      fail("--replay: '{}': step {} has {} micro-batches, which this program "
           "was not compiled for; it has {}",
           options.replay, step, count, countsText(choices));
    if (replay.empty() || replay.back().count != count)
      replay.push_back({step - 1, count});
    last = step;
  }
  if (replay.empty())
    fail("--replay: '{}' has no steps", options.replay);
}

void MicroBatchControl::shareReplay(Group &group) {
  group.agree([&] {
    if (group.rank() == 0)
      readReplay();
  });
  auto size = static_cast<int64_t>(replay.size());
  group.fromFirst(size);
  replay.resize(size);
  for (Recorded &recorded : replay)
    group.fromFirst(recorded);
}

std::string MicroBatchControl::start(Group &group, bool isReplay,
                                     const AdaptState &loaded) {
  if (isReplay)
    shareReplay(group);
  if (!hasChoice())
    return "";
  // Without the list, whose size varies.
  struct Numbers {
    int64_t count, steps, rejected;
    double busy, span, samples, rateBefore;
  };
  Numbers numbers{loaded.count,
                  loaded.steps,
                  static_cast<int64_t>(loaded.rejected.size()),
                  loaded.busy,
                  loaded.span,
                  loaded.samples,
                  loaded.rateBefore};
  group.fromFirst(numbers);
  AdaptState state{program.micro_batches, 0, 0, 0, 0, 0, {}};
  std::string note;
  if (numbers.count && isChoice(choices, numbers.count))
    state = {numbers.count,
             numbers.steps,
             numbers.busy,
             numbers.span,
             numbers.samples,
             numbers.rateBefore,
             {}};
  else if (numbers.count)
    state.count = nearestChoice(choices, numbers.count);
  if (numbers.count && state.count != numbers.count && !isReplay)
    note = fmt::format("note: the checkpoint's steps had {} micro-batches, "
                       "going on with {}; this program has {}",
                       numbers.count, state.count, countsText(choices));
  state.rejected = loaded.rejected;
  state.rejected.resize(numbers.rejected);
  for (AdaptState::Rejection &rejection : state.rejected)
    group.fromFirst(rejection);
  int64_t every = isReplay ? 0 : options.adaptEvery.value_or(defaultEvery);
  policy.emplace(choices, every, std::move(state));
  return note;
}

int64_t MicroBatchControl::countOf(int64_t step) const {
  if (replay.empty())
    return policy ? policy->state().count : program.micro_batches;
  int64_t count = replay.front().count;
  for (const Recorded &recorded : replay)
    if (recorded.step <= step)
      count = recorded.count;
  return count;
}

std::string MicroBatchControl::stepped(int64_t step, const StepResult &result) {
  if (!policy)
    return "";
  auto change = policy->step(result.busy, result.span,
                             static_cast<double>(samplesPerStep(program)));
  if (!change)
    return "";
  std::string text = fmt::format(
      "micro-batches {} -> {} after step {}: bubble {:.1f} %, {:.4g} samples "
      "per busy second",
      change->from, change->to, step + 1, 100 * change->bubble, change->rate);
  if (change->to < change->from)
    text += fmt::format(", {:.4g} before", change->rateBefore);
  return text;
}

AdaptState MicroBatchControl::state(int64_t steps) const {
  AdaptState state = policy ? policy->state() : AdaptState();
  if (!replay.empty())
    state.count = countOf(steps);
  return state;
}
