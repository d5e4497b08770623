//===- Trainer.cpp - A rank's training run --------------------------------===//

#include "runtime/src/common/Trainer.h"
#include "runtime/src/common/Interrupt.h"
#include "runtime/src/common/RankReport.h"
#include <algorithm>
#include <cmath>

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

Trainer::~Trainer() = default;

void Trainer::setUp() {
  checkSameProgram(program, group);
  checkSameOptions(options, group);
  group.fromFirst(orders);
  Host host = findHost(view.tables.arena_bytes, group);
  clockOffset = host.clockOffset;
  pool.emplace(options.threads ? options.threads : host.threads);
  pool->makeCurrent();
  trace.emplace(orders.trace ? traceEvents : 0);
  makeArena(host);
  group.agree([&] { makeParts(); });
  group.agree([&] { openData(); });
  if (data)
    checkSameData(*data, "--data", group);
  if (data && !options.cacheFrozen.empty() && !options.dryRun) {
    cache.emplace(view, options, *weights, *data, group);
    runner->setCache(&*cache);
  }
  if (evalData)
    checkSameData(*evalData, "--eval-data", group);
  resume();
  if (options.dryRun)
    return;
  group.agree([&] {
    executor->runPrepareFrozen();
    executor->runPrepareTrainable();
  });
}

void Trainer::makeArena(const Host &host) {
  auto check = [&](int64_t bytes, const std::string &what) {
    std::string shortage = memoryShortage(bytes, what);
    if (shortage.empty())
      return;
    if (!options.dryRun)
      throw Error(shortage);
    if (group.rank() == host.firstHere)
      printError("warning: {}", shortage);
  };
  // All look before one takes.
  group.agree([&] { check(view.tables.arena_bytes, "the plan needs"); });
  group.agree([&] {
    if (host.ranksHere > 1)
      check(host.bytesHere,
            fmt::format("the {} ranks on this machine need", host.ranksHere));
  });
  group.agree([&] {
    arena.emplace(view.tables.arena_bytes,
                  options.dryRun ? ArenaUse::Little : ArenaUse::Whole);
  });
}

void Trainer::makeParts() {
  auto pulse = [this] {
    if (runner)
      runner->pulse();
    else
      group.pulse();
  };
  weights.emplace(view, options.weights);
  if (!options.dryRun)
    weights->load(*arena, pulse);
  executor.emplace(view, *arena, *weights, *trace, pulse);
  optimizer.emplace(view, options, *arena);
  runner.emplace(view, options,
                 StepRunner::Parts{*arena, *executor, *optimizer, clipping,
                                   *trace, group});
  runner->setClockOffset(clockOffset);
  evaluator.emplace(view, reducesByTokens(program, options), *executor, group,
                    *trace);
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
    order.emplace(data->records(),
                  int64_t{program.micro_batches} * program.replicas,
                  options.shuffle, options.seed);
  }
  if (!options.evalData.empty())
    evalData.emplace(program, options.evalData, loaded);
  totalSteps = options.steps.value_or(0);
  if (options.epochs && order)
    totalSteps = static_cast<int64_t>(std::ceil(
        *options.epochs * static_cast<double>(order->stepsPerEpoch())));
  schedule.emplace(options, totalSteps);
  state.seed = options.seed;
  state.shuffle = options.shuffle;
  state.records = data ? data->records() : 0;
  state.microBatches = int64_t{program.micro_batches} * program.replicas;
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
  TrainerState loaded = loadCheckpoint(path, *transfer, &runner->residuals());
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
  Numbers numbers = {-1, 0, 0, 0, 0, {}, {}};
  if (chief) {
    TrainerState loaded = loadState();
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
      acceptCheckpoint(*transfer, &runner->residuals());
  }
  group.fromFirst(numbers);
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
               bytesText(view.tables.arena_bytes, text), threads[0]);
    return;
  }
  fmt::print("ranks: {} ({} stages, {} replicas)\n", group.size(),
             program.stages, program.replicas);
  for (int32_t rank = 0; rank < group.size(); ++rank)
    fmt::print(
        "rank {}: stage {}, replica {}, memory {}, threads {}\n", rank,
        rank % program.stages, rank / program.stages,
        bytesText(program.ranks[rank % program.stages].arena_bytes, text),
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
  if (orders.gradients)
    runner->onGradients([&] {
      if (chief)
        writeGradients(options.dumpGradients, *transfer);
      else
        serveGradients(*transfer);
    });
  while (state.step < totalSteps && trainOne())
    if (orders.saveSteps && state.step % orders.saveSteps == 0)
      save();
  if (!endSignal && state.step == totalSteps && evaluatedStep != state.step)
    evaluateOnly();
  finish();
  return endSignal ? 128 + endSignal : 0;
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
  StepResult result = runner->run(input, *data, *order);
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
      executor->resetTimes();
  }
  if (chief)
    chief->stepped(
        {state.step, epochAfter(state.step), result.loss, result.gradNorm,
         options.learningRate * input.learningFactor,
         state.microBatches * program.micro_batch_size, secondsNow() - start,
         lossScale.isOn() ? input.lossScale : 0, result.nonfinite},
        result.bubble);
  bool evaluated =
      evalData && ((options.evalSteps && state.step % options.evalSteps == 0) ||
                   state.step == totalSteps);
  if (evaluated)
    evaluateNow();
  if (chief)
    chief->logStep(state.step, evaluated);
  return true;
}

/// Evaluates; the values go into the running line of the log.
void Trainer::evaluateNow() {
  if (!evalData)
    return;
  Evaluation evaluation = evaluator->run(*evalData);
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
    return serveCheckpoint(*transfer, &runner->residuals());
  state.clipHistory = clipping.history();
  state.lossScale = lossScale.saved();
  state.epoch = epochAfter(state.step);
  chief->syncLog();
  saveCheckpoint(options.outputDir, *transfer, state, options.saveTotalLimit,
                 &runner->residuals());
}

void Trainer::finish() {
  arena->samplePeak();
  if (orders.save && savedStep != state.step)
    save();
  if (chief)
    chief->close(state);
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
    std::vector<std::string> texts =
        group.gatherText(profileOf(view, *executor, pool->threads()));
    if (chief)
      chief->writeProfile(texts);
  }
  if (orders.summary) {
    // Threads share a process, whose growth says nothing about one of them.
    bool shared = group.inProcess() && group.size() > 1;
    int64_t peak = shared ? view.tables.arena_bytes : arena->peakBytes();
    std::vector<std::string> texts = group.gatherText(summaryOf(
        view, peak, runner->sent(), runner->communication(),
        runner->dataSeconds(), pool->threads(), cache ? cache->hits() : -1));
    if (chief)
      chief->writeSummary(state, texts);
  }
}
