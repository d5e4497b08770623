//===- Step.cpp - Runs one optimizer step ---------------------------------===//
//
// For a loss that is a sum over a count, valid targets are counted first, over
// all micro-batches of all replicas, since each backward pass is seeded with
// 1 / count. A micro-batch without any valid target is not run: it adds exact
// zeros. Ranks of one replica read the same labels, so they agree on it without
// a message.
//
// All ranks meet twice in a step: for the counts, and before the update, for
// norms and losses. Both sums are made by every rank alike.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Step.h"
#include <algorithm>
#include <cmath>

using namespace mgq::rt;

bool mgq::rt::reducesByTokens(const mgq_program &program,
                              const Options &options) {
  bool byTokens =
      options.reduction == ReductionKind::Tokens ||
      (options.reduction == ReductionKind::Default && program.loss_is_sum);
  if (byTokens && !program.loss_is_sum)
    failUsage("--loss-reduction=tokens needs a loss that is recognised as a "
              "cross-entropy; this model's is not");
  return byTokens;
}

StepRunner::StepRunner(const RankView &view, const Options &options,
                       const Parts &parts)
    : view(view), program(view.program), parts(parts),
      times(Reducer::mostMessages(view) + view.tables.op_count,
            view.tables.op_count + 2),
      compressed(view, parts.arena, parts.group),
      reducer(view, view.tables.ops, view.tables.op_count, parts.executor,
              parts.group, parts.trace, &times, &compressed),
      slowdown(view),
      ops(view, view.tables.ops, view.tables.op_count, parts.executor,
          parts.group, parts.trace, &reducer, &times),
      compressionWarmup(options.compressionWarmup),
      countCells(parts.arena.device(), view.program.micro_batches),
      lossCells(parts.arena.device(), view.program.micro_batches),
      byTokens(reducesByTokens(view.program, options)),
      skipNonfinite(options.skipNonfinite),
      scaled(options.lossScale != LossScaleKind::Off), seed(options.seed),
      lossRank(lossStage(view.program)) {
  Slots none(view.tables.chunk_count, -1);
  count = &parts.executor.prepare(view.tables.count, -1, none);
  countPlace = reinterpret_cast<float *>(parts.executor.resolve(
      view.tables.count_place, sizeof(float), none, "the count of targets"));
  if (program.loss_is_sum && !countPlace)
    fail("the program's tables are damaged: the count of targets");
  auto ranks = static_cast<size_t>(rankCount(program));
  size_t trained = trainableParams(program).size();
  counts.resize(1 + program.micro_batches);
  allCounts.resize(ranks * counts.size());
  results.resize(trained + program.micro_batches + 3);
  allResults.resize(ranks * results.size());
  norms.resize(trained);
  records.resize(recordsPerMicroBatch(program));
  for (int32_t param : trainableParams(program))
    owners.push_back(program.params[param].owner);
  hasAhead =
      std::any_of(view.tables.ops, view.tables.ops + view.tables.op_count,
                  [](const mgq_op &op) { return op.ahead != 0; });
  findFirstReady();
  int32_t mostCalls = 0;
  for (int32_t c = 0; c < view.tables.chunk_count; ++c)
    for (const mgq_sequence *sequence :
         {&view.tables.chunks[c].backward, &view.tables.chunks[c].weight})
      mostCalls = std::max(mostCalls, sequence->call_count);
  additions.reserve(parts.optimizer.mostAdditions());
  additionsAfter.resize(mostCalls);
}

/// The last backward and the last weight op of a chunk leave final gradients.
void StepRunner::findFirstReady() {
  firstReady.assign(ops.entries().size(), -1);
  for (int32_t c = 0; c < view.tables.chunk_count; ++c)
    for (int32_t kind : {MGQ_OP_BACKWARD, MGQ_OP_WEIGHT}) {
      int32_t first = -1, last = -1;
      const mgq_chunk &chunk = view.tables.chunks[c];
      for (int32_t i = 0; i < chunk.grad_count; ++i) {
        const mgq_grad &grad = chunk.grads[i];
        if (program.params[grad.param].owner == view.stage &&
            (grad.of_weight != 0) == (kind == MGQ_OP_WEIGHT) &&
            (first < 0 || grad.after < first))
          first = grad.after;
      }
      for (int32_t i = 0; i < view.tables.op_count; ++i)
        if (view.tables.ops[i].kind == kind && view.tables.ops[i].chunk == c)
          last = i;
      if (last >= 0 && program.replicas > 1)
        firstReady[last] = first;
    }
}

/// A call of the running backward or weight op has run.
void StepRunner::afterCall(int32_t call) {
  const mgq_op &op = *running->op;
  parts.optimizer.accumulate(op.chunk, op.kind == MGQ_OP_WEIGHT, call,
                             running->grads);
  finish(call);
}

void StepRunner::plan(int32_t call, WorkKey &key) {
  const mgq_op &op = *running->op;
  size_t first = additions.size();
  parts.optimizer.planAdditions(op.chunk, op.kind == MGQ_OP_WEIGHT, call,
                                running->grads, additions);
  additionsAfter[call] = {first, additions.size()};
  for (size_t i = first; i < additions.size(); ++i) {
    key.push_back(reinterpret_cast<uintptr_t>(additions[i].sum));
    key.push_back(reinterpret_cast<uintptr_t>(additions[i].values));
    key.push_back(additions[i].adds);
  }
}

void StepRunner::enqueue(int32_t call) {
  auto [first, end] = additionsAfter[call];
  parts.optimizer.add(additions.data() + first, end - first);
}

void StepRunner::finish(int32_t call) {
  int32_t index = ops.indexOf(*running);
  if (firstReady[index] == call) {
    if (deviceTimes)
      deviceTimes->gradientReady();
    else
      times.gradientReady(secondsNow());
  }
  reducer.afterCall(index, call);
}

bool StepRunner::enqueuesMore(int32_t call) const {
  return reducer.beginsAfter(ops.indexOf(*running), call);
}

void StepRunner::record() {
  parts.executor.record(*count);
  parts.optimizer.startStep();
  for (OpList::Entry &entry : ops.entries()) {
    int32_t kind = entry.op->kind;
    running = &entry;
    additions.clear();
    if (kind == MGQ_OP_FORWARD)
      parts.executor.record(*entry.runnable, nullptr,
                            cache ? cache->filter(entry.op->chunk,
                                                  entry.op->micro_batch,
                                                  /*record=*/0, /*step=*/0)
                                  : nullptr);
    else if (kind == MGQ_OP_BACKWARD || kind == MGQ_OP_WEIGHT)
      parts.executor.record(*entry.runnable, this);
  }
  if (view.replica == 0)
    parts.optimizer.recordNorms();
}

RandomKey StepRunner::keyOf(const StepInput &input, int32_t microBatch) const {
  int64_t before = int64_t{view.replica} * program.micro_batches + microBatch;
  return {seed, input.step, before * program.micro_batch_size, false};
}

RecordList StepRunner::recordsOf(const StepInput &input, int32_t microBatch,
                                 RecordOrder &order) {
  auto count = static_cast<int32_t>(records.size());
  int64_t before = int64_t{view.replica} * program.micro_batches + microBatch;
  for (int32_t i = 0; i < count; ++i)
    records[i] = order.recordOf(input.step, before * count + i);
  return {records.data(), count};
}

void StepRunner::countTargets(const StepInput &input, const DataReader &data,
                              RecordOrder &order) {
  std::fill(counts.begin() + 1, counts.end(), 1.0);
  if (!program.loss_is_sum)
    return;
  Device &device = parts.arena.device();
  for (int32_t i = 0; i < program.micro_batches; ++i) {
    parts.executor.load(*count, data, recordsOf(input, i, order),
                        keyOf(input, i));
    parts.executor.run(*count, Phase::Count, i);
    device.read(&countCells[i], countPlace, sizeof(float));
  }
  device.synchronize();
  std::copy(countCells.begin(), countCells.end(), counts.begin() + 1);
}

/// Returns the signal that some rank has seen, or 0.
int StepRunner::exchangeCounts(int signal) {
  double start = secondsNow();
  counts[0] = signal;
  parts.group.allGather(counts.data(),
                        static_cast<int64_t>(counts.size() * sizeof(double)),
                        allCounts.data());
  total = 0;
  for (int32_t replica = 0; replica < program.replicas; ++replica) {
    const double *first =
        allCounts.data() + replica * program.stages * counts.size();
    double sum = 0;
    for (int32_t i = 0; i < program.micro_batches; ++i)
      sum += first[1 + i];
    total += sum;
  }
  double seen = 0;
  for (size_t rank = 0; rank < allCounts.size(); rank += counts.size())
    seen = std::max(seen, allCounts[rank]);
  if (parts.group.size() > 1)
    parts.trace.add(Phase::Exchange, "counts", start, secondsNow() - start, -1);
  return static_cast<int>(seen);
}

/// The scale is a factor in f64: a power of two changes no bit but exponents.
float StepRunner::seedOf(const StepInput &input, int32_t microBatch) const {
  double divisor = total;
  if (!byTokens)
    divisor = counts[1 + microBatch] * program.replicas * program.micro_batches;
  return static_cast<float>(input.lossScale / divisor);
}

void StepRunner::compute(OpList::Entry &entry, const StepInput &input,
                         const DataReader &data, RecordOrder &order) {
  static constexpr Phase phases[] = {Phase::Forward, Phase::Backward,
                                     Phase::Weight, Phase::Evaluate};
  const mgq_op &op = *entry.op;
  bool hasGradients = op.kind == MGQ_OP_BACKWARD || op.kind == MGQ_OP_WEIGHT;
  if (op.kind == MGQ_OP_EVALUATE)
    fail("the program's tables are damaged: a step evaluates");
  if (entry.runnable->sequence->load_count)
    parts.executor.load(*entry.runnable, data,
                        recordsOf(input, op.micro_batch, order),
                        keyOf(input, op.micro_batch));
  if (entry.seed) {
    float value = seedOf(input, op.micro_batch);
    parts.arena.device().write(entry.seed, &value, sizeof value);
  }
  running = &entry;
  additions.clear();
  parts.executor.setStep(input.step);
  double start = secondsNow();
  if (deviceTimes)
    deviceTimes->beginOp();
  CallFilter *filter = nullptr;
  if (cache && op.kind == MGQ_OP_FORWARD)
    filter = cache->filter(op.chunk, op.micro_batch,
                           *recordsOf(input, op.micro_batch, order).begin(),
                           input.step);
  parts.executor.run(*entry.runnable, phases[op.kind], op.micro_batch,
                     hasGradients ? this : nullptr, filter);
  slowdown.sleep();
  double end = secondsNow();
  if (deviceTimes) {
    deviceTimes->endOp(op);
  } else {
    if (!op.ahead)
      busy += end - start;
    times.addBusy(start, end);
    if (hasGradients)
      ended = end + clockOffset;
  }
  if (entry.loss)
    parts.arena.device().read(&lossCells[op.micro_batch], entry.loss,
                              sizeof(float));
}

/// The next step's records come from the disk while this one computes.
void StepRunner::prefetchNext(StepInput input, const DataReader &data,
                              RecordOrder &order) {
  ++input.step;
  if (!order.isFree(input.step))
    return;
  for (int32_t i = 0; i < program.micro_batches; ++i)
    for (int64_t record : recordsOf(input, i, order))
      data.prefetch(record);
}

/// Runs one op of the program, but for the optimizer, when what it waits for is
/// there.
void StepRunner::runOp(OpList::Entry &entry, const StepInput &input,
                       const DataReader &data, RecordOrder &order) {
  switch (entry.op->kind) {
  case MGQ_OP_SEND:
  case MGQ_OP_RECEIVE:
  case MGQ_OP_ALL_REDUCE:
  case MGQ_OP_ALL_GATHER:
    return ops.begin(entry);
  case MGQ_OP_COMBINE:
    return parts.optimizer.combineUses();
  default:
    return compute(entry, input, data, order);
  }
}

/// Before the first step, and after one that did not run.
void StepRunner::runAhead(StepInput input, const DataReader &data,
                          RecordOrder &order) {
  times.startStep();
  reducer.startStep();
  for (OpList::Entry &entry : ops.entries())
    if (entry.op->ahead) {
      ops.waitBefore(entry);
      runOp(entry, input, data, order);
    }
  ops.waitAll();
}

/// All ranks: what is known of the records whose prefix comes first in this
/// step: those of the next one where it runs ahead.
void StepRunner::decideCached(StepInput input, RecordOrder &order) {
  if (cache->looksAhead() && input.last)
    return;
  input.step += cache->looksAhead();
  cacheRecords.resize(program.micro_batches);
  for (int32_t i = 0; i < program.micro_batches; ++i)
    cacheRecords[i] = *recordsOf(input, i, order).begin();
  cache->decide(input.step, cacheRecords, parts.group);
}

StepResult StepRunner::runOps(const StepInput &input, const DataReader &data,
                              RecordOrder &order) {
  StepResult result;
  countTargets(input, data, order);
  if (cache) // Before ranks meet: they know the same then.
    cache->flush();
  prefetchNext(input, data, order);
  result.signal = exchangeCounts(input.signal);
  if (result.signal)
    return result;
  if (total == 0) {
    result.empty = true;
    return result;
  }
  if (hasAhead && aheadStep != input.step)
    runAhead(input, data, order);
  if (cache)
    decideCached(input, order);
  std::fill(results.begin(), results.end(), 0.0);
  std::fill(lossCells.begin(), lossCells.end(), 0.0F);
  optimized = updated = false;
  busy = ended = 0;
  began = secondsNow() + clockOffset;
  parts.optimizer.startStep();
  compressed.startStep(compresses(input),
                       static_cast<float>(1 / input.lossScale));
  reducer.startStep();
  times.startStep();
  if (deviceTimes)
    deviceTimes->startStep();
  if (std::all_of(counts.begin() + 1, counts.end(),
                  [](double count) { return count == 0; }))
    parts.optimizer.zeroGradients();

  StepInput next = input;
  ++next.step;
  for (OpList::Entry &entry : ops.entries()) {
    const mgq_op &op = *entry.op;
    // Whether a micro-batch of the next step counts is not known yet.
    if (op.ahead ? input.last
                 : op.micro_batch >= 0 && counts[1 + op.micro_batch] == 0)
      continue;
    ops.waitBefore(entry);
    parts.trace.setStep(op.ahead ? next.step + 1 : input.step + 1);
    if (op.kind == MGQ_OP_OPTIMIZER)
      optimize(input, result);
    else
      runOp(entry, op.ahead ? next : input, data, order);
  }
  aheadStep = input.last ? -1 : next.step;
  if (!optimized) // A stage without parameters takes part all the same.
    optimize(input, result);
  ops.waitAll();
  times.endStep();
  if (runs == 0)
    times.reset();
  if (updated)
    parts.executor.runPrepareTrainable();
  return result;
}

/// Gathers what ranks know of the step: norms, losses, times.
void StepRunner::exchangeResults(StepResult &result) {
  double start = secondsNow();
  double *times = results.data() + norms.size() + program.micro_batches;
  times[0] = began;
  times[1] = ended;
  times[2] = busy;
  parts.group.allGather(results.data(),
                        static_cast<int64_t>(results.size() * sizeof(double)),
                        allResults.data());
  double first = HUGE_VAL, last = 0, allBusy = 0;
  for (int32_t rank = 0; rank < parts.group.size(); ++rank) {
    const double *of = allResults.data() + (rank + 1) * results.size() - 3;
    first = std::min(first, of[0]);
    last = std::max(last, of[1]);
    allBusy += of[2];
  }
  result.busy = allBusy;
  result.span = parts.group.size() * std::max(0.0, last - first);
  if (parts.group.size() == 1)
    result.bubble = 0; // It waits for nobody.
  else if (parts.arena.device().accelerator() && !deviceTimes)
    result.bubble = -1; // The host's times say nothing of it.
  else if (last > first)
    result.bubble = 1 - allBusy / result.span;
  if (parts.group.size() > 1)
    parts.trace.add(Phase::Exchange, "norms", start, secondsNow() - start, -1);
}

/// All ranks know the same norms and losses, and decide alike. Throws where a
/// step that is not finite is an error.
bool StepRunner::skipsNonfinite(const StepInput &input, StepResult &result,
                                const GradientNorm &norm) const {
  static constexpr const char *advice = "--on-nonfinite=skip skips such steps";
  if (norm.firstNonfinite >= 0) {
    if (!skipNonfinite)
      throw CommonError(fmt::format(
          "the gradient of parameter '{}' is not finite in step {}; {}",
          program.params[norm.firstNonfinite].name, input.step + 1, advice));
    result.nonfinite = "gradients";
  } else if (scaled && !std::isfinite(result.loss)) {
    if (!skipNonfinite)
      throw CommonError(fmt::format("the loss is not finite in step {}; {}",
                                    input.step + 1, advice));
    result.nonfinite = "loss";
  }
  return result.nonfinite;
}

void StepRunner::timeDevice() {
  if (Accelerator *accelerator = parts.arena.device().accelerator())
    deviceTimes.emplace(view, *accelerator, parts.group).clear();
}

void StepRunner::readDeviceTimes() {
  DeviceTimes::Computed computed =
      deviceTimes->read(times, clockOffset, [&](int32_t index) {
        return isCollective(view.tables.ops[index]) ? reducer.span(index)
                                                    : ops.span(index);
      });
  began = computed.began + clockOffset;
  ended = computed.ended + clockOffset;
  busy = computed.busy;
}

void StepRunner::optimize(const StepInput &input, StepResult &result) {
  optimized = true;
  reducer.finishAll(); // A table without an optimizer op waits here.
  if (!deviceTimes)
    times.optimizerBegins(secondsNow());
  if (input.lossScale != 1 && !compresses(input))
    parts.optimizer.unscale(input.lossScale);
  if (gradientHook) {
    gradientHook();
    gradientHook = nullptr;
  }
  // After the reduction replicas have the same gradients.
  if (view.replica == 0)
    parts.optimizer.squaredNorms(results.data());
  parts.arena.device().synchronize(); // Losses are there.
  if (deviceTimes)
    readDeviceTimes();
  parts.executor.collectTimes();
  if (deviceTimes)
    deviceTimes->clear();
  std::copy(lossCells.begin(), lossCells.end(),
            results.begin() + static_cast<ptrdiff_t>(norms.size()));
  exchangeResults(result);
  sumLosses(result);
  for (size_t i = 0; i < norms.size(); ++i)
    norms[i] = allResults[owners[i] * results.size() + i];
  GradientNorm norm = parts.optimizer.total(norms.data());
  result.gradNorm = norm.total;
  if (skipsNonfinite(input, result, norm))
    return;
  double start = secondsNow();
  parts.optimizer.update(parts.clipping.factor(norm.total, input.epoch),
                         input.learningFactor, input.updates + 1);
  compressed.commit();
  if (!deviceTimes)
    times.addBusy(start, secondsNow());
  updated = true;
  parts.trace.add(Phase::Optimizer, "adamw", start, secondsNow() - start, -1);
}

/// In the order of micro-batches in the step: replica after replica.
void StepRunner::sumLosses(StepResult &result) const {
  for (int32_t replica = 0; replica < program.replicas; ++replica) {
    size_t first = replica * program.stages;
    const double *losses =
        allResults.data() + (first + lossRank) * results.size() + norms.size();
    const double *replicaCounts = allCounts.data() + first * counts.size() + 1;
    for (int32_t i = 0; i < program.micro_batches; ++i)
      if (byTokens)
        result.loss += losses[i];
      else if (replicaCounts[i] != 0)
        result.loss += losses[i] / replicaCounts[i];
  }
  result.loss /= byTokens ? total : program.replicas * program.micro_batches;
}
