//===- Trainer.cpp - A rank's training run --------------------------------===//

#include "runtime/src/common/Trainer.h"
#include "runtime/src/common/Interrupt.h"
#include "runtime/src/common/RankReport.h"
#include <algorithm>
#include <cmath>
#include <utility>

using namespace mgq::rt;

static constexpr size_t traceEvents = 1 << 18;

Trainer::Trainer(const mgq_program &program, const Options &options,
                 Group &group)
    : program(program), options(options), group(group),
      view(program, group.rank()), orders(ordersOf(options)), clipping(options),
      lossScale(options) {
  if (group.rank() == 0)
    chief.emplace(program, options);
}

Trainer::~Trainer() {
  if (accelerator)
    accelerator->end();
}

void Trainer::setUp() {
  checkSameProgram(program, group);
  checkSameOptions(options, group);
  group.fromFirst(orders);
  group.agree([&] { microBatches.emplace(program, options); });
  Host host = findHost(arenaBytes(), group);
  clockOffset = host.clockOffset;
  pool.emplace(options.threads ? options.threads : host.threads);
  pool->makeCurrent();
  trace.emplace(orders.trace ? traceEvents : 0);
  openDevice(host);
  makeArena(host);
  if (timesMessages())
    accelerator->timeMessages();
  group.agree([&] { makeParts(); });
  group.agree([&] { openData(); });
  if (data)
    checkSameData(*data, "--data", group);
  if (data && !options.cacheFrozen.empty() && !options.dryRun) {
    Variant &only = variants->now();
    cache.emplace(only.view, options, *weights, *data, group, arena->device());
    only.runner.setCache(&*cache);
  }
  if (evalData)
    checkSameData(*evalData, "--eval-data", group);
  resume();
  if (options.dryRun)
    return;
  if (accelerator) {
    group.agree([&] {
      variants->now().executor.rehearse(*accelerator);
      if (recordsWork())
        record();
    });
    accelerator->connect();
  }
  group.agree([&] {
    variants->now().executor.runPrepareFrozen();
    variants->now().executor.prepareShards();
    variants->now().executor.runPrepareTrainable();
    arena->device().synchronize();
    if (orders.trace || orders.profile)
      variants->now().executor.timeDevice();
    if (timesMessages())
      variants->now().runner.timeDevice();
  });
}

/// The summary tells of them; one rank has none.
bool Trainer::timesMessages() const {
  return accelerator && orders.summary && group.size() > 1;
}

/// Work that is timed call by call is enqueued call by call.
bool Trainer::recordsWork() const {
  return accelerator && options.cudaGraphs.value_or(true) && !orders.trace &&
         !orders.profile;
}

/// Records what steps and evaluations enqueue from this step on.
void Trainer::record() {
  Executor &executor = variants->now().executor;
  executor.setStep(state.step);
  accelerator->record(true);
  executor.recordCommon();
  variants->now().runner.record();
  evaluator->record();
  accelerator->record(false);
}

/// A dry run warns where there is no device, and goes on without.
void Trainer::openDevice(const Host &host) {
  group.agree([&] { checkAccelerated(program, options); });
  if (!program.open_device)
    return;
  auto open = [&] { accelerator = openAccelerator(program, group, host); };
  if (!options.dryRun)
    return open();
  try {
    open();
  } catch (const Error &error) {
    if (chief)
      printError("warning: {}", error.what());
  }
}

std::string Trainer::memoryShortage(int64_t bytes, const std::string &what) {
  if (accelerator)
    return accelerator->memoryShortage(bytes);
  return program.open_device ? "" : rt::memoryShortage(bytes, what);
}

void Trainer::makeArena(const Host &host) {
  auto check = [&](int64_t bytes, const std::string &what, bool speaks) {
    std::string shortage = memoryShortage(bytes, what);
    if (shortage.empty())
      return;
    if (!options.dryRun)
      throw Error(shortage);
    if (speaks)
      printError("warning: {}", shortage);
  };
  bool isFirst = group.rank() == host.firstHere;
  // All look before one takes.
  group.agree(
      [&] { check(arenaBytes(), "the plan needs", isFirst || accelerator); });
  group.agree([&] {
    if (host.ranksHere > 1 && !program.open_device)
      check(host.bytesHere,
            fmt::format("the {} ranks on this machine need", host.ranksHere),
            isFirst);
  });
  group.agree([&] {
    if (accelerator && !options.dryRun)
      arena.emplace(arenaBytes(), *accelerator);
    else
      arena.emplace(arenaBytes(),
                    options.dryRun ? ArenaUse::Little : ArenaUse::Whole);
  });
}

void Trainer::makeParts() {
  auto pulse = [this] {
    if (variants)
      variants->now().runner.pulse();
    else
      group.pulse();
    if (evaluator)
      evaluator->progress();
  };
  weights.emplace(view, options.weights);
  if (!options.dryRun)
    weights->load(*arena, pulse);
  variants.emplace(
      program, options,
      Variant::Shared{*arena, *weights, clipping, *trace, group, pulse});
  variants->setClockOffset(clockOffset);
  // Whatever number steps have, evaluations are alike.
  Variant &finest = variants->finest();
  evaluator.emplace(finest.view, reducesByTokens(program, options),
                    finest.executor, group, *trace);
  transfer.emplace(view, *arena, group);
}

void Trainer::openData() {
  std::vector<bool> loaded = loadedInputs(program, view.tables);
  // The cache knows records by what the prefix reads of them.
  for (int32_t i = 0; i < program.prefix_input_count; ++i)
    if (!options.cacheFrozen.empty())
      loaded.at(program.prefix_inputs[i]) = true;
  if (!options.data.empty()) {
    data.emplace(program, options.data, loaded);
    order.emplace(data->records(), recordsPerStep(program), options.shuffle,
                  options.seed,
                  program.by_sample ? "samples" : "micro-batches");
  }
  if (!options.evalData.empty()) {
    evalData.emplace(program, options.evalData, loaded);
    checkEvalData();
  }
  totalSteps = options.steps.value_or(0);
  if (options.epochs && order)
    totalSteps = static_cast<int64_t>(std::ceil(
        *options.epochs * static_cast<double>(order->stepsPerEpoch())));
  schedule.emplace(options, totalSteps);
  state.seed = options.seed;
  state.shuffle = options.shuffle;
  state.records = data ? data->records() : 0;
  state.microBatches = recordsPerStep(program);
}

void Trainer::checkEvalData() const {
  const mgq_program &finest = *variantsOf(program).back();
  int64_t size = recordsPerMicroBatch(finest);
  if (evalData->records() % size)
    fail(
        "--eval-data has {} samples, expected a multiple of {}, the samples of "
        "each of {} micro-batches",
        evalData->records(), size, finest.micro_batches);
}

int64_t Trainer::arenaBytes() const {
  return largestTables(program, view.stage).arena_bytes;
}

namespace {
/// Where the trainable parameters come from.
enum class Source : int64_t { Model, Parameters, Checkpoint };
} // namespace

/// Rank 0: the state of the checkpoint to go on from, whose tensors go to all
/// ranks; step -1: there is none. Then initial parameters go to all.
TrainerState Trainer::loadState() {
  TrainerState none;
  none.step = -1;
  if (!options.outputDir.empty())
    cleanTemporary(options.outputDir);
  std::string path = options.resume;
  if (path == "latest") {
    path = latestCheckpoint(options.outputDir);
    if (path.empty())
      printError("note: no checkpoint in '{}', starting anew",
                 options.outputDir);
    else if (!options.initialParameters.empty())
      printError("note: going on from '{}', not from --initial-parameters",
                 path);
  }
  // Others wait for tensors or for this.
  Source source = !path.empty()                       ? Source::Checkpoint
                  : options.initialParameters.empty() ? Source::Model
                                                      : Source::Parameters;
  group.fromFirst(source);
  if (source == Source::Parameters)
    loadParameters(options.initialParameters, *transfer);
  if (source != Source::Checkpoint)
    return none;
  TrainerState loaded =
      loadCheckpoint(path, *transfer, &variants->now().runner.residuals());
  if (loaded.step > totalSteps && !options.dryRun)
    fail("'{}' is at step {}, beyond the {} steps asked for", path, loaded.step,
         totalSteps);
  warnAboutOrder(loaded);
  return loaded;
}

void Trainer::resume() {
  struct Numbers {
    int64_t step, updates, emptySteps, nonfiniteSteps, norms;
    LossScaleState lossScale;
    double history[clipHistoryLength];
  };
  AdaptState adapt;
  Numbers numbers = {-1, 0, 0, 0, 0, {}, {}};
  if (chief) {
    TrainerState loaded = loadState();
    adapt = loaded.adapt;
    auto norms = std::min(loaded.clipHistory.size(), clipHistoryLength);
    numbers = {loaded.step,
               loaded.updates,
               loaded.emptySteps,
               loaded.nonfiniteSteps,
               static_cast<int64_t>(norms),
               loaded.lossScale,
               {}};
    std::copy(loaded.clipHistory.end() - static_cast<ptrdiff_t>(norms),
              loaded.clipHistory.end(), numbers.history);
  } else {
    Source source = Source::Model;
    group.fromFirst(source);
    if (source == Source::Parameters)
      acceptParameters(*transfer);
    else if (source == Source::Checkpoint)
      acceptCheckpoint(*transfer, &variants->now().runner.residuals());
  }
  group.fromFirst(numbers);
  std::string note = microBatches->start(group, orders.replay, adapt);
  if (chief && !note.empty())
    printError("{}", note);
  if (numbers.step < 0)
    return;
  state.step = savedStep = numbers.step;
  state.updates = numbers.updates;
  state.emptySteps = numbers.emptySteps;
  state.nonfiniteSteps = numbers.nonfiniteSteps;
  lossScale.restore(numbers.lossScale);
  clipping.setHistory({numbers.history, numbers.history + numbers.norms});
}

void Trainer::warnAboutOrder(const TrainerState &loaded) const {
  auto warn = [](const char *what, auto now, auto then) {
    if (now != then)
      printError("warning: {} is {}, the checkpoint's is {}: records come in "
                 "another order than without the interruption",
                 what, now, then);
  };
  warn("--seed", state.seed, loaded.seed);
  warn("--shuffle", state.shuffle, loaded.shuffle);
  warn("the number of records", state.records, loaded.records);
  warn("the number of micro-batches", state.microBatches, loaded.microBatches);
}

/// What --dry-run says.
void Trainer::describe() {
  char text[32];
  std::vector<int> threads = group.allGather(pool->threads());
  if (!chief)
    return;
  int64_t trained = 0;
  for (int32_t i : trainableParams(program))
    trained += paramElements(program.params[i]);
  if (order)
    fmt::print("records: {}\nsteps per epoch: {}\n", state.records,
               order->stepsPerEpoch());
  fmt::print("parameters: {} tensors, {} trainable with {} elements\n",
             program.param_count, trainableParams(program).size(), trained);
  if (group.size() == 1) {
    fmt::print("memory: {}\nranks: 1\nthreads: {}\n",
               bytesText(arenaBytes(), text), threads[0]);
    return;
  }
  fmt::print("ranks: {} ({} stages, {} replicas)\n", group.size(),
             program.stages, program.replicas);
  for (int32_t rank = 0; rank < group.size(); ++rank)
    fmt::print(
        "rank {}: stage {}, replica {}, memory {}, threads {}\n", rank,
        rank % program.stages, rank / program.stages,
        bytesText(largestTables(program, rank % program.stages).arena_bytes,
                  text),
        threads[rank]);
}

double Trainer::epochAfter(int64_t steps) const {
  return order ? static_cast<double>(steps) /
                     static_cast<double>(order->stepsPerEpoch())
               : 0;
}

int Trainer::run() {
  setUp();
  if (options.dryRun) {
    describe();
    return 0;
  }
  group.agree([&] {
    if (chief)
      chief->open(totalSteps, state);
  });
  gradientsAreDue = orders.gradients;
  variants->use(microBatches->countOf(state.step));
  while (state.step < totalSteps && trainOne())
    if (orders.saveSteps && state.step % orders.saveSteps == 0)
      save();
  if (!endSignal && state.step == totalSteps && evaluatedStep != state.step)
    evaluateOnly();
  finish();
  return endSignal ? 128 + endSignal : 0;
}

/// Writes the gradients of the first step, which are where its program has
/// them.
void Trainer::dumpGradients() {
  if (!std::exchange(gradientsAreDue, false))
    return;
  Transfer gradients(variants->now().view, *arena, group);
  if (chief)
    writeGradients(options.dumpGradients, gradients);
  else
    serveGradients(gradients);
}

/// Runs a step with as many micro-batches as it should have.
StepResult Trainer::runStep(const StepInput &input) {
  variants->use(microBatches->countOf(input.step));
  if (stepsRun && recordsWork() &&
      variants->now().executor.changesIn(input.step)) {
    accelerator->synchronize(); // No message is under way then.
    record();
  }
  if (gradientsAreDue) // Still: no step had a target.
    variants->now().runner.onGradients([this] { dumpGradients(); });
  return variants->now().runner.run(input, *data, *order);
}

/// Returns false if a signal asked some rank to end: no step was run.
bool Trainer::trainOne() {
  double start = secondsNow();
  trace->setStep(state.step + 1);
  StepInput input{state.step,
                  state.updates,
                  epochAfter(state.step),
                  schedule->factor(state.step),
                  interruptSignal(),
                  lossScale.scale(),
                  state.step + 1 >= totalSteps};
  if (chief)
    chief->noteLayers(state.step);
  StepResult result = runStep(input);
  if (result.signal) {
    endSignal = result.signal;
    return false;
  }
  ++state.step;
  state.emptySteps += result.empty;
  state.nonfiniteSteps += result.nonfinite != nullptr;
  state.updates += !result.empty && !result.nonfinite;
  if (!result.empty)
    lossScale.stepped(result.nonfinite);
  if (++stepsRun == 1) {
    arena->samplePeak();
    if (state.step < totalSteps)
      variants->now().executor.resetTimes();
  }
  if (chief)
    chief->stepped(
        {state.step, epochAfter(state.step), result.loss, result.gradNorm,
         options.learningRate * input.learningFactor, samplesPerStep(program),
         secondsNow() - start, lossScale.isOn() ? input.lossScale : 0,
         result.nonfinite,
         microBatches->hasChoice() ? variants->now().view.program.micro_batches
                                   : 0},
        result.bubble);
  bool evaluated =
      evalData && ((options.evalSteps && state.step % options.evalSteps == 0) ||
                   state.step == totalSteps);
  if (evaluated)
    evaluateNow();
  if (chief)
    chief->logStep(state.step, evaluated);
  std::string change = microBatches->stepped(input.step, result);
  if (chief && !change.empty())
    chief->note(change);
  return true;
}

/// Evaluates; the values go into the running line of the log.
void Trainer::evaluateNow() {
  if (!evalData)
    return;
  // As the step that comes next would compute.
  variants->finest().executor.setStep(state.step);
  Evaluation evaluation = evaluator->run(*evalData);
  if (&variants->now() != &variants->finest())
    variants->now().runner.forgetAhead(); // Its slots were used otherwise.
  evaluatedStep = state.step;
  if (chief)
    chief->evaluated(state.step, evaluation, evaluator->scalarOutputs());
}

/// Evaluates where no step did: a line of the log for itself.
void Trainer::evaluateOnly() {
  if (!evalData)
    return;
  if (chief)
    chief->started(state.step, epochAfter(state.step));
  evaluateNow();
  if (chief)
    chief->logStep(state.step, /*wasEvaluated=*/true);
}

void Trainer::save() {
  savedStep = state.step;
  if (!chief)
    return serveCheckpoint(*transfer, &variants->now().runner.residuals());
  state.clipHistory = clipping.history();
  state.lossScale = lossScale.saved();
  state.adapt = microBatches->state(state.step);
  state.epoch = epochAfter(state.step);
  chief->syncLog();
  saveCheckpoint(options.outputDir, *transfer, state, options.saveTotalLimit,
                 &variants->now().runner.residuals());
}

void Trainer::finish() {
  arena->device().synchronize(); // Of the last update.
  if (cache)
    cache->flush();
  arena->samplePeak();
  if (orders.save && savedStep != state.step)
    save();
  else if (orders.save && chief)
    removeOldCheckpoints(options.outputDir, state.step, options.saveTotalLimit);
  if (chief)
    chief->close(variants->now().view.program, state);
  report();
  // Nobody leaves before rank 0 has written all.
  std::vector<int> signals = group.allGather(interruptSignal());
  endSignal =
      std::max(endSignal, *std::max_element(signals.begin(), signals.end()));
}

void Trainer::report() {
  if (orders.trace) {
    std::vector<double> starts =
        group.allGather(trace->firstStart() + clockOffset);
    double origin = *std::min_element(starts.begin(), starts.end());
    std::vector<std::string> texts =
        group.gatherText(trace->text(view.index, origin - clockOffset));
    if (chief)
      writeTrace(options.trace, texts);
  }
  if (orders.profile) {
    const Variant &now = variants->now();
    std::vector<std::string> texts =
        group.gatherText(profileOf(now.view, now.executor, pool->threads()));
    if (chief)
      chief->writeProfile(now.view.program, texts);
  }
  if (orders.summary) {
    // Threads share a process, whose growth says nothing about one of them.
    bool shared = group.inProcess() && group.size() > 1 && !accelerator;
    int64_t peak = shared ? arenaBytes() : arena->peakBytes();
    const Variant &now = variants->now();
    std::vector<std::string> texts = group.gatherText(summaryOf(
        now.view, peak, variants->sent(), variants->communication(),
        now.runner.dataSeconds(), pool->threads(), cache ? cache->hits() : -1));
    if (chief)
      chief->writeSummary(now.view.program, state, texts);
  }
}
