//===- Trainer.cpp - A whole training run ---------------------------------===//

#include "runtime/src/common/Trainer.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>

using namespace mgq::rt;

static constexpr size_t recentSteps = 4096;
static constexpr size_t traceEvents = 1 << 18;

static volatile sig_atomic_t caughtSignal = 0;

void mgq::rt::catchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int number) { caughtSignal = number; };
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Faults of files come back as errno, with a message, not as a signal.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

int mgq::rt::interruptSignal() { return caughtSignal; }

RunTimes::RunTimes() { recent.reserve(recentSteps); }

void RunTimes::add(double seconds) {
  total += seconds;
  if (++steps == 1)
    return; // Counted, but it warms up.
  if (recent.size() < recentSteps)
    recent.push_back(seconds);
  else
    recent[steps % recentSteps] = seconds;
}

double RunTimes::median() const {
  if (recent.empty())
    return total;
  std::vector<double> sorted = recent;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

const mgq_program &mgq::rt::checkProgram(const mgq_program &program) {
  if (program.abi_version != MGQ_ABI_VERSION)
    fail("the program was made for version {} of the runtime, this is {}; "
         "compile it again",
         program.abi_version, MGQ_ABI_VERSION);
  if (trainableParams(program).empty())
    fail("the program trains no parameter");
  // One process is one rank here; a launcher with more would train copies.
  const char *world = getenv("OMPI_COMM_WORLD_SIZE");
  if (world && strcmp(world, "1") != 0)
    fail("the program was compiled for 1 rank, it was launched with {}", world);
  return program;
}

Trainer::Trainer(const mgq_program &program, const Options &options)
    : program(checkProgram(program)), options(options), clipping(options),
      pool(options.threads ? options.threads : availableThreads()),
      trace(options.trace.empty() ? 0 : traceEvents),
      arena(program.arena_bytes), weights(program, options.weights, arena),
      executor(program, arena, weights, trace),
      optimizer(program, options, arena),
      runner(program, options, arena, executor, optimizer, clipping, trace) {
  pool.makeCurrent();
  if (!options.data.empty()) {
    data = std::make_unique<DataReader>(program, options.data);
    order.emplace(data->records(), program.micro_batches, options.shuffle,
                  options.seed);
  }
  if (!options.evalData.empty())
    evalData = std::make_unique<DataReader>(program, options.evalData);
  totalSteps = options.steps.value_or(0);
  if (options.epochs && order)
    totalSteps = static_cast<int64_t>(std::ceil(
        *options.epochs * static_cast<double>(order->stepsPerEpoch())));
  schedule.emplace(options, totalSteps);

  state.seed = options.seed;
  state.shuffle = options.shuffle;
  state.records = data ? data->records() : 0;
  state.microBatches = program.micro_batches;
  if (!options.outputDir.empty())
    cleanTemporary(options.outputDir);
  resume();
  executor.runPrepareFrozen();
  executor.runPrepareTrainable();
}

Trainer::~Trainer() = default;

void Trainer::resume() {
  std::string path = options.resume;
  if (path == "latest") {
    path = latestCheckpoint(options.outputDir);
    if (path.empty())
      printError("note: no checkpoint in '{}', starting anew",
                 options.outputDir);
  }
  if (path.empty())
    return;
  TrainerState loaded = loadCheckpoint(path, program, arena);
  if (loaded.step > totalSteps && !options.dryRun)
    fail("'{}' is at step {}, beyond the {} steps asked for", path, loaded.step,
         totalSteps);
  warnAboutOrder(loaded);
  clipping.setHistory(loaded.clipHistory);
  state.step = firstStep = savedStep = loaded.step;
  state.updates = loaded.updates;
  state.emptySteps = loaded.emptySteps;
  state.nonfiniteSteps = loaded.nonfiniteSteps;
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
  int64_t trained = 0;
  for (int32_t i : trainableParams(program))
    trained += elementCount(shapeOf(program.params[i].stored)).value();
  fmt::print("records: {}\n", state.records);
  if (order)
    fmt::print("steps per epoch: {}\n", order->stepsPerEpoch());
  fmt::print("parameters: {} tensors, {} trainable with {} elements\n",
             program.param_count, trainableParams(program).size(), trained);
  fmt::print("memory: {}\nranks: 1\nthreads: {}\n",
             bytesText(program.arena_bytes, text), pool.threads());
}

double Trainer::epochAfter(int64_t steps) const {
  return order ? static_cast<double>(steps) /
                     static_cast<double>(order->stepsPerEpoch())
               : 0;
}

/// Finds out now, not after the training, that results cannot be written.
void Trainer::checkOutputs() const {
  for (const std::string *path : {&options.dumpGradients, &options.trace,
                                  &options.profile, &options.summary})
    if (!path->empty())
      checkWritable(*path);
  if (!options.outputDir.empty())
    checkCheckpointFolder(options.outputDir);
}

int Trainer::run() {
  if (options.dryRun) {
    describe();
    return 0;
  }
  checkOutputs();
  if (!options.logFile.empty())
    log.open(options.logFile, options.resume.empty() ? -1 : state.step);
  if (!options.dumpGradients.empty())
    runner.onGradients(
        [&] { writeGradients(options.dumpGradients, program, arena); });
  progress.emplace(totalSteps, state.step);
  while (state.step < totalSteps && !interruptSignal()) {
    trainOne();
    if (options.saveSteps && state.step % options.saveSteps == 0)
      save();
  }
  if (state.step == totalSteps && evaluatedStep != state.step)
    evaluateNow();
  finish();
  return interruptSignal() ? 128 + interruptSignal() : 0;
}

void Trainer::trainOne() {
  double start = secondsNow();
  trace.setStep(state.step + 1);
  StepInput input{state.step, state.updates, epochAfter(state.step),
                  schedule->factor(state.step)};
  StepResult result = runner.run(input, *data, *order);
  ++state.step;
  state.emptySteps += result.empty;
  state.nonfiniteSteps += result.nonfinite;
  state.updates += !result.empty && !result.nonfinite;
  double seconds = secondsNow() - start;
  times.add(seconds);
  if (times.steps == 1) {
    arena.samplePeak();
    if (state.step < totalSteps)
      executor.resetTimes();
  }

  StepRecord record{state.step,
                    epochAfter(state.step),
                    result.loss,
                    result.gradNorm,
                    options.learningRate * input.learningFactor,
                    int64_t{program.micro_batches} * program.micro_batch_size,
                    seconds};
  line.add("step", record.step);
  line.add("epoch", record.epoch);
  line.add("loss", record.loss);
  line.add("grad_norm", record.gradNorm);
  line.add("learning_rate", record.learningRate);
  line.add("samples", record.samples);
  line.add("step_seconds", record.stepSeconds);
  bool evaluated =
      evalData && ((options.evalSteps && state.step % options.evalSteps == 0) ||
                   state.step == totalSteps);
  bool logged = state.step % options.loggingSteps == 0;
  progress->step(record, logged);
  if (evaluated)
    evaluateNow();
  std::string_view text = line.finish();
  if (logged || evaluated)
    log.write(text);
}

/// Evaluates; the values go into the running line of the log.
void Trainer::evaluateNow() {
  if (!evalData)
    return;
  lastEvaluation = runner.evaluate(*evalData);
  evaluatedStep = state.step;
  line.add("eval_loss", lastEvaluation->loss);
  std::string text = fmt::format("evaluation after step {}: loss {:.6f}",
                                 state.step, lastEvaluation->loss);
  const std::vector<int32_t> &outputs = runner.scalarOutputs();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const char *name = program.outputs[outputs[i]].name;
    line.add(std::string("eval_") + name, lastEvaluation->scalars[i]);
    text += fmt::format("  {} {:.6f}", name, lastEvaluation->scalars[i]);
  }
  progress->note(text);
}

void Trainer::save() {
  state.clipHistory = clipping.history();
  state.epoch = epochAfter(state.step);
  log.sync();
  saveCheckpoint(options.outputDir, program, arena, state,
                 options.saveTotalLimit);
  savedStep = state.step;
}

void Trainer::finish() {
  arena.samplePeak();
  if (!options.outputDir.empty() && savedStep != state.step)
    save();
  log.sync();
  progress.reset();
  if (state.emptySteps || state.nonfiniteSteps)
    printError("note: {} steps had no valid target, {} were skipped for "
               "gradients that are not finite",
               state.emptySteps, state.nonfiniteSteps);
  if (!options.trace.empty())
    trace.write(options.trace, 0);
  if (!options.profile.empty())
    writeProfile();
  if (!options.summary.empty())
    writeSummary();
}
