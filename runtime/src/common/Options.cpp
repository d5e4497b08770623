//===- Options.cpp - The executable's command line ------------------------===//

#include "runtime/src/common/Options.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Glob.h"
#include <CLI/CLI.hpp>
#include <cmath>

using namespace mgq::rt;

namespace {
/// Text of options that are parsed further once all are known.
struct RawOptions {
  std::string shuffle = "on", schedule = "constant", clip = "0";
  std::string reduction, lossScale = "off", nonfinite, cudaGraphs;
  std::vector<std::string> noDecay, learningRateOf;
};
} // namespace

static void addDataOptions(CLI::App &app, Options &o, RawOptions &raw) {
  app.add_option("--data", o.data,
                 "safetensors files, one tensor per input of the model, with "
                 "a leading axis of records; several are read as one")
      ->type_name("FILE...");
  app.add_option("--weights", o.weights, "folder that holds the weights now")
      ->type_name("DIR");
  auto *steps =
      app.add_option("--steps", o.steps, "length in all, in optimizer steps")
          ->type_name("N");
  app.add_option("--epochs", o.epochs, "length in all, in epochs")
      ->type_name("N")
      ->excludes(steps);
  app.add_option("--shuffle", raw.shuffle,
                 "permute the records of every epoch (on)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--seed", o.seed, "seed of the permutations (42)")
      ->type_name("N");
  app.add_option("--eval-data", o.evalData, "files to evaluate on")
      ->type_name("FILE...");
  app.add_option("--eval-steps", o.evalSteps,
                 "evaluate every N steps; default: at the end only")
      ->type_name("N");
}

static void addOptimizerOptions(CLI::App &app, Options &o, RawOptions &raw) {
  app.add_option("--learning-rate", o.learningRate, "AdamW's (1e-4)")
      ->type_name("X");
  app.add_option("--weight-decay", o.weightDecay, "AdamW's (0.05)")
      ->type_name("X");
  app.add_option("--adam-beta1", o.beta1, "AdamW's (0.9)")->type_name("X");
  app.add_option("--adam-beta2", o.beta2, "AdamW's (0.99)")->type_name("X");
  app.add_option("--adam-epsilon", o.epsilon, "AdamW's (1e-8)")->type_name("X");
  app.add_option("--no-decay", raw.noDecay,
                 "parameters without weight decay; may be repeated")
      ->type_name("GLOB")
      ->expected(1)
      ->take_all();
  app.add_option("--learning-rate-of", raw.learningRateOf,
                 "learning rate of some parameters; may be repeated, the last "
                 "match holds")
      ->type_name("GLOB=X")
      ->expected(1)
      ->take_all();
  app.add_option("--lr-scheduler-type", raw.schedule,
                 "constant, linear or cosine (constant)")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}));
  app.add_option("--warmup-steps", o.warmupSteps, "steps of linear warmup (0)")
      ->type_name("N");
  app.add_option("--warmup-ratio", o.warmupRatio,
                 "the same as a share of all steps (0)")
      ->type_name("X");
  app.add_option("--min-learning-rate", o.minLearningRate,
                 "where linear and cosine end (0)")
      ->type_name("X");
  app.add_option("--max-grad-norm", raw.clip,
                 "clip gradients to a norm: X, tanh or history[:FACTOR] (0: "
                 "off)")
      ->type_name("X");
  app.add_option("--loss-reduction", raw.reduction,
                 "tokens: mean over the valid targets of the global batch; "
                 "micro-batch: mean of the micro-batches' losses")
      ->check(CLI::IsMember({"tokens", "micro-batch"}));
  app.add_option("--loss-scale", raw.lossScale,
                 "factor on the gradients of the backward pass: off, dynamic "
                 "or X (off)")
      ->type_name("off|dynamic|X");
  app.add_option("--on-nonfinite", raw.nonfinite,
                 "what to do about gradients that are not finite (stop; skip "
                 "with --loss-scale=dynamic)")
      ->check(CLI::IsMember({"stop", "skip"}));
  app.add_option("--compression-warmup", o.compressionWarmup,
                 "first steps whose gradients are sent as f32, where the "
                 "program compresses them (100)")
      ->type_name("N");
  app.add_option("--adapt-every", o.adaptEvery,
                 "steps after which the number of micro-batches may change, "
                 "where several were compiled (200); 0: never")
      ->type_name("N");
  app.add_option("--replay", o.replay,
                 "numbers of micro-batches as in this log of an earlier run")
      ->type_name("FILE.jsonl");
  app.add_option("--cache-frozen", o.cacheFrozen,
                 "keep what the frozen prefix gives for each record, in a "
                 "folder of files or in memory")
      ->type_name("DIR|memory");
  app.add_option("--cache-limit", o.cacheLimit,
                 "bytes that it may take in all (16 GiB)")
      ->type_name("BYTES");
}

static void addOutputOptions(CLI::App &app, Options &o, RawOptions &raw) {
  app.add_option("--output-dir", o.outputDir, "folder of checkpoints")
      ->type_name("DIR");
  app.add_option("--save-steps", o.saveSteps,
                 "save a checkpoint every N steps; default: at the end only")
      ->type_name("N");
  app.add_option("--save-total-limit", o.saveTotalLimit,
                 "keep the last N checkpoints (all)")
      ->type_name("N");
  app.add_option("--resume-from-checkpoint", o.resume,
                 "go on from a checkpoint's folder, or from the latest one in "
                 "--output-dir (from the start if there is none)")
      ->type_name("DIR|latest");
  app.add_option("--initial-parameters", o.initialParameters,
                 "start from these values of the trainable parameters, not "
                 "from the model's")
      ->type_name("FILE.safetensors");
  app.add_option("--log-file", o.logFile, "one JSON object a step")
      ->type_name("FILE.jsonl");
  app.add_option("--logging-steps", o.loggingSteps, "log every N steps (1)")
      ->type_name("N");
  app.add_option("--dump-gradients", o.dumpGradients,
                 "write the first step's gradients, before clipping")
      ->type_name("FILE.safetensors");
  app.add_option("--trace", o.trace, "write a Chrome/Perfetto trace")
      ->type_name("FILE.json");
  app.add_option("--profile", o.profile,
                 "write seconds per layer, for mgq-compile --profile")
      ->type_name("FILE.json");
  app.add_option("--summary", o.summary, "write measurements at the end")
      ->type_name("FILE.json");
  app.add_option("--threads", o.threads,
                 "compute threads of a rank (cores / ranks on this machine)")
      ->type_name("N");
  app.add_option("--cuda-graphs", raw.cudaGraphs,
                 "give a GPU layers at once, as CUDA graphs (on)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--timeout", o.timeoutSeconds,
                 "seconds after which a silent peer is an error (300)")
      ->type_name("SECONDS");
  app.add_flag("--dry-run", o.dryRun,
               "check data, weights and memory, train nothing");
}

static std::optional<double> parseNumber(const std::string &text) {
  double value = 0;
  if (text.empty() || !CLI::detail::lexical_cast(text, value))
    return std::nullopt;
  return value;
}

static void parseClip(const std::string &text, Options &o) {
  if (text == "tanh") {
    o.clip = ClipKind::Tanh;
    return;
  }
  bool history = text.rfind("history", 0) == 0;
  std::string number = history ? text.substr(7) : text;
  if (history && number.empty())
    number = ":2";
  if (history && number[0] == ':')
    number.erase(0, 1);
  else if (history)
    number.clear();
  std::optional<double> value = parseNumber(number);
  if (!value || !(*value >= 0) || std::isinf(*value) ||
      (history && *value == 0))
    failUsage("--max-grad-norm is '{}', expected a number from 0, tanh or "
              "history[:FACTOR]",
              text);
  o.clipValue = *value;
  o.clip = history ? ClipKind::History
                   : (*value > 0 ? ClipKind::Value : ClipKind::Off);
}

static void parseLossScale(const std::string &text, Options &o) {
  // Beyond these a seed, or what undoes it, is no normal f32.
  constexpr double low = 1e-30, high = 1e30;
  if (text == "off")
    return;
  o.lossScale = LossScaleKind::Dynamic;
  if (text == "dynamic")
    return;
  std::optional<double> value = parseNumber(text);
  if (!value || !(*value >= low) || *value > high)
    failUsage("--loss-scale is '{}', expected off, dynamic or a number from {} "
              "to {}",
              text, low, high);
  o.lossScale = LossScaleKind::Static;
  o.lossScaleValue = *value;
}

static void parseRaw(const RawOptions &raw, Options &o) {
  o.shuffle = raw.shuffle == "on";
  if (!raw.cudaGraphs.empty())
    o.cudaGraphs = raw.cudaGraphs == "on";
  parseLossScale(raw.lossScale, o);
  o.skipNonfinite = raw.nonfinite.empty()
                        ? o.lossScale == LossScaleKind::Dynamic
                        : raw.nonfinite == "skip";
  o.schedule = raw.schedule == "linear"   ? ScheduleKind::Linear
               : raw.schedule == "cosine" ? ScheduleKind::Cosine
                                          : ScheduleKind::Constant;
  if (!raw.reduction.empty())
    o.reduction = raw.reduction == "tokens" ? ReductionKind::Tokens
                                            : ReductionKind::MicroBatch;
  parseClip(raw.clip, o);
  for (const std::string &list : raw.noDecay)
    for (std::string &glob : splitGlobs(list))
      o.noDecay.push_back(std::move(glob));
  for (const std::string &text : raw.learningRateOf) {
    size_t equals = text.rfind('=');
    std::optional<double> rate;
    if (equals != std::string::npos)
      rate = parseNumber(text.substr(equals + 1));
    if (!rate || !(*rate >= 0) || std::isinf(*rate))
      failUsage("--learning-rate-of is '{}', expected GLOB=X", text);
    for (std::string &glob : splitGlobs(text.substr(0, equals)))
      o.learningRateOf.emplace_back(std::move(glob), *rate);
  }
}

static void checkRange(const char *option, double value, double low,
                       double high, bool openHigh = false) {
  if (!(value >= low) || value > high || (openHigh && value == high))
    failUsage("{} is {}, expected a number from {} to {}{}", option, value, low,
              openHigh ? "below " : "", high);
}

static void checkOptions(const Options &o) {
  constexpr double huge = 1e300;
  if (o.data.empty() && !o.dryRun &&
      (o.evalData.empty() || o.steps.value_or(1) != 0))
    failUsage("--data is required");
  if (!o.steps && !o.epochs && !o.dryRun)
    failUsage("one of --steps and --epochs is required");
  checkRange("--steps", static_cast<double>(o.steps.value_or(0)), 0, 1e15);
  checkRange("--epochs", o.epochs.value_or(0), 0, 1e12);
  checkRange("--learning-rate", o.learningRate, 0, huge);
  checkRange("--weight-decay", o.weightDecay, 0, huge);
  checkRange("--adam-beta1", o.beta1, 0, 1, true);
  checkRange("--adam-beta2", o.beta2, 0, 1, true);
  checkRange("--adam-epsilon", o.epsilon, 0, huge);
  checkRange("--warmup-steps", static_cast<double>(o.warmupSteps), 0, 1e15);
  checkRange("--warmup-ratio", o.warmupRatio, 0, 1);
  checkRange("--min-learning-rate", o.minLearningRate, 0, o.learningRate);
  checkRange("--compression-warmup", static_cast<double>(o.compressionWarmup),
             0, 1e15);
  checkRange("--save-steps", static_cast<double>(o.saveSteps), 0, 1e15);
  checkRange("--save-total-limit", static_cast<double>(o.saveTotalLimit), 0,
             1e9);
  checkRange("--logging-steps", static_cast<double>(o.loggingSteps), 1, 1e15);
  checkRange("--eval-steps", static_cast<double>(o.evalSteps), 0, 1e15);
  checkRange("--adapt-every", static_cast<double>(o.adaptEvery.value_or(0)), 0,
             1e15);
  checkRange("--threads", o.threads, 0, 1024);
  checkRange("--timeout", o.timeoutSeconds, 0, huge);
  checkRange("--cache-limit", static_cast<double>(o.cacheLimit), 0, 1e18);
  if (o.saveSteps && o.outputDir.empty())
    failUsage("--save-steps needs --output-dir");
  if (o.resume == "latest" && o.outputDir.empty())
    failUsage("--resume-from-checkpoint=latest needs --output-dir");
  if (!o.initialParameters.empty() && !o.resume.empty() && o.resume != "latest")
    failUsage(
        "--initial-parameters is for a run from the start, "
        "--resume-from-checkpoint for one that goes on; give one of them");
  if (o.evalSteps && o.evalData.empty())
    failUsage("--eval-steps needs --eval-data");
}

ParsedOptions mgq::rt::parseOptions(int argc, const char *const *argv,
                                    const char *version) {
  ParsedOptions parsed;
  RawOptions raw;
  CLI::App app("Trains the model this program was compiled from.");
  app.set_version_flag("--version", version);
  addDataOptions(app, parsed.options, raw);
  addOptimizerOptions(app, parsed.options, raw);
  addOutputOptions(app, parsed.options, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &done) { // --help, --version
    parsed.exitStatus = app.exit(done);
    return parsed;
  } catch (const CLI::ParseError &error) {
    throw UsageError(error.what());
  }
  parseRaw(raw, parsed.options);
  checkOptions(parsed.options);
  return parsed;
}
