//===- Plan.cpp - Cuts a model over devices -------------------------------===//
//
// Candidates differ in stages and replicas, in the placement of stages, in the
// schedule, in chunks per rank, in whether a frozen prefix is spread, and in
// how much memory is made by recomputation. Each is cut by the programme of
// PartitionBounds.cpp, refined by simulation, and the best few are scheduled in
// full. All searches are bounded by counts: a plan depends on its inputs only.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Plan.h"
#include "passes/Planner/Partition.h"
#include "passes/Planner/PlanText.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

#include <algorithm>
#include <cassert>
#include <memory>

using namespace mgq::planner;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

/// Layouts that a candidate may rate, first to be compared, then as one of the
/// best.
static constexpr int kQuickEvaluations = 250;
static constexpr int kDeepEvaluations = 4000;
/// Candidates that are refined in depth, and scheduled in full.
static constexpr int kFinalists = 4;
/// A plan must be better by this share than one of a simpler kind.
static constexpr double kWorthwhile = 1e-3;

static Error error(const Twine &text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

namespace {
/// A candidate on its devices.
struct Entry {
  std::shared_ptr<CostModel> costs;
  Candidate candidate;
  /// Seconds per micro-batch of all replicas: comparable between numbers of
  /// replicas.
  double score = 0;
  int number = 0; ///< Simpler candidates come first.
};
} // namespace

/// Gradient sync and optimizer, of the slowest rank.
static void addSteps(const CostModel &costs, const Layout &layout,
                     double &sync, double &optimizer) {
  sync = optimizer = 0;
  for (int rank = 0; rank < costs.stages(); ++rank) {
    int64_t gradients = 0, states = 0;
    for (int c = 0; c < layout.chunks(); ++c) {
      if (layout.ranks[c].front() != rank)
        continue;
      for (int l = layout.bounds[c]; l < layout.bounds[c + 1]; ++l) {
        gradients += costs.model.layers[l].gradientBytes;
        states += costs.model.layers[l].optimizerBytes;
      }
    }
    sync = std::max(sync, costs.syncSeconds(rank, gradients));
    optimizer = std::max(optimizer,
                         costs.optimizerSeconds(rank, gradients, states));
  }
}

static void score(Entry &entry) {
  double sync, optimizer;
  addSteps(*entry.costs, entry.candidate.layout, sync, optimizer);
  entry.score = (entry.candidate.seconds + sync + optimizer) /
                (double(entry.candidate.judgement.microBatches) *
                 entry.costs->stageDevices.replicas());
}

/// Micro-batches in flight, by rank, that the schedule would have if memory
/// had no end.
static std::vector<double> wantedInFlight(const CostModel &costs,
                                          const Candidate &candidate) {
  Judgement free = candidate.judgement;
  free.ignoresMemory = true;
  free.microBatches = std::min(free.microBatches, 4 * costs.stages());
  LayoutMemory memory = layoutMemory(costs, candidate.layout, free);
  ScheduleProblem problem =
      layoutProblem(costs, candidate.layout, memory, free);
  std::vector<double> result(costs.stages(), 1);
  Orders orders;
  if (free.kind == ScheduleKind::Interleaved ||
      free.kind == ScheduleKind::ZeroBubble) {
    ListScheduler scheduler(problem);
    scheduler.run(candidate.settings, &orders);
  } else {
    orders = llvm::cantFail(makeSchedule(free.kind, problem));
  }
  Simulation simulation = llvm::cantFail(simulate(problem, orders));
  for (int rank = 0; rank < costs.stages(); ++rank)
    if (int64_t bytes = microBatchBytes(problem, rank))
      result[rank] = std::max(
          1.0, double(simulation.ranks[rank].peakResidualBytes) / bytes);
  // All micro-batches are in flight under gpipe, also those not simulated.
  if (free.kind == ScheduleKind::GPipe)
    std::fill(result.begin(), result.end(), candidate.judgement.microBatches);
  return result;
}

/// Bounds that the partition kind or forced cuts give; empty: to be searched.
static std::vector<int> givenBounds(const CostModel &costs,
                                    const Layout &layout,
                                    const PlanRequest &request) {
  int n = costs.layerCount();
  if (!request.cuts.empty()) {
    std::vector<int> bounds = {0};
    bounds.insert(bounds.end(), request.cuts.begin(), request.cuts.end());
    bounds.push_back(n);
    return bounds;
  }
  std::vector<double> weights;
  for (const LayerCosts &layer : costs.model.layers)
    weights.push_back(layer.trainableParameters);
  switch (request.partition) {
  case PartitionKind::FrozenAware:
    return {};
  case PartitionKind::Uniform:
    return uniformBounds(n, layout.chunks());
  case PartitionKind::Parameters:
    return balancedBounds(weights, layout.chunks());
  case PartitionKind::Flops: {
    Judgement judgement;
    judgement.ignoresMemory = true;
    CutWeights blind;
    blind.blind = true;
    return programmedBounds(costs, layout, judgement, blind);
  }
  }
  llvm_unreachable("unknown partition");
}

/// Cuts a candidate: programmes with several weights, each refined a little.
static bool cut(const CostModel &costs, const PlanRequest &request,
                Candidate &candidate) {
  candidate.layout.bounds = givenBounds(costs, candidate.layout, request);
  if (!candidate.layout.bounds.empty()) {
    tune(costs, candidate);
    return true;
  }
  if (request.partition != PartitionKind::FrozenAware)
    return false;
  Candidate best;
  bool found = false;
  for (CutWeights weights :
       {CutWeights{1, 1, false}, CutWeights{1, 0, false},
        CutWeights{2, 1, false}, CutWeights{0.5, 1, false}}) {
    Candidate tried = candidate;
    tried.layout.bounds =
        programmedBounds(costs, tried.layout, tried.judgement, weights);
    if (tried.layout.bounds.empty())
      continue;
    if (found && tried.layout.bounds == best.layout.bounds)
      continue;
    tune(costs, tried);
    if (!found || tried.seconds < best.seconds)
      best = tried;
    found = true;
  }
  if (!found) {
    // Memory is too small by the programme's estimate; start anywhere.
    Judgement free = candidate.judgement;
    free.ignoresMemory = true;
    candidate.layout.bounds =
        programmedBounds(costs, candidate.layout, free, {});
    if (candidate.layout.bounds.empty())
      return false;
    tune(costs, candidate);
    best = candidate;
  }
  refineCuts(costs, best, kQuickEvaluations);
  candidate = best;
  return true;
}

/// The candidate with as much recomputation as serves it best.
static void addCandidate(const std::shared_ptr<CostModel> &costs,
                         const PlanRequest &request, Candidate candidate,
                         std::vector<Entry> &entries) {
  auto add = [&](Candidate &&cut) {
    entries.push_back({costs, std::move(cut), 0, int(entries.size())});
    score(entries.back());
  };
  Candidate free = candidate;
  free.judgement.ignoresMemory = true;
  if (!cut(*costs, request, free))
    return;
  Candidate first = free;
  first.judgement.ignoresMemory = false;
  std::vector<double> wanted = wantedInFlight(*costs, first);
  first.judgement.inFlight = wanted;
  LayoutMemory memory =
      layoutMemory(*costs, first.layout, first.judgement);
  bool scarce = costs->hasLimits() && memory.lack > 0;
  for (int rank = 0; !scarce && rank < costs->stages(); ++rank)
    scarce = first.judgement.recompute == RecomputeKind::Auto
                 ? llvm::is_contained(memory.recomputed, true)
                 : !memory.limits.empty() && wanted[rank] > 1.0;
  if (!scarce) {
    rate(*costs, first);
    return add(std::move(first));
  }
  for (double share : {1.0, 0.5, 0.0}) {
    Candidate tried = candidate;
    tried.settings = first.settings;
    for (double each : wanted)
      tried.judgement.inFlight.push_back(std::max(1.0, each * share));
    if (cut(*costs, request, tried))
      add(std::move(tried));
    if (request.recompute != RecomputeKind::Auto)
      break;
  }
}

/// Adds candidates of a schedule on devices.
static void addCandidates(const std::shared_ptr<CostModel> &costs,
                          const PlanRequest &request, ScheduleKind kind,
                          int perRank, bool spread,
                          std::vector<Entry> &entries) {
  int stages = costs->stages();
  Candidate candidate;
  candidate.judgement.kind = kind;
  candidate.judgement.microBatches = request.microBatches;
  candidate.judgement.recompute = request.recompute;
  candidate.judgement.splitsWeight = request.splitsWeight;
  candidate.judgement.overlapsSteps = request.overlapsSteps;
  candidate.layout = Layout::roundRobin(stages, stages * perRank, spread);
  if (candidate.layout.chunks() > costs->layerCount())
    return;
  addCandidate(costs, request, std::move(candidate), entries);
}

/// Something of the model has weight gradients that can run apart.
static bool hasWeightWork(const ModelCosts &model) {
  return llvm::any_of(model.layers, [](const LayerCosts &layer) {
    return layer.hasBackward && layer.weightFlops > 0;
  });
}

static void addSchedules(const std::shared_ptr<CostModel> &costs,
                         const PlanRequest &request,
                         std::vector<Entry> &entries) {
  int stages = costs->stages();
  bool forced = !request.cuts.empty();
  bool searched = request.partition == PartitionKind::FrozenAware && !forced;
  bool maySpread = request.mayReplicatePrefix && costs->prefixEnd() > 0 &&
                   costs->prefixEnd() < costs->layerCount() && stages > 1;
  int chunks = request.cuts.size() + 1;
  // Forced cuts say how many chunks there are; one more than the ranks can
  // share evenly is a spread prefix.
  bool forcedSpread = forced && stages > 1 && chunks % stages == 1;
  auto add = [&](ScheduleKind kind, int perRank) {
    if (forced)
      return addCandidates(costs, request, kind, chunks / stages, forcedSpread,
                           entries);
    addCandidates(costs, request, kind, perRank, false, entries);
    if (searched && maySpread)
      addCandidates(costs, request, kind, perRank, true, entries);
  };

  if (request.schedule || stages == 1) {
    ScheduleKind kind = request.schedule.value_or(ScheduleKind::OneFOneB);
    if (kind != ScheduleKind::Interleaved || stages == 1)
      return add(kind, 1);
    if (request.chunksPerRank)
      return add(kind, request.chunksPerRank);
    for (int perRank : searched ? std::vector<int>{2, 3, 4}
                                : std::vector<int>{2})
      add(kind, perRank);
    return;
  }
  if (request.chunksPerRank > 1)
    return add(ScheduleKind::Interleaved, request.chunksPerRank);
  if (forced && chunks / stages > 1)
    return add(ScheduleKind::Interleaved, chunks / stages);
  add(ScheduleKind::OneFOneB, 1);
  if (request.splitsWeight && hasWeightWork(costs->model))
    add(ScheduleKind::ZeroBubble, 1);
  if (searched && request.chunksPerRank != 1) {
    add(ScheduleKind::Interleaved, 1);
    for (int perRank : {2, 3, 4})
      add(ScheduleKind::Interleaved, perRank);
  }
}

/// Schedules a candidate in full and writes it down.
static Expected<Plan> finish(const Entry &entry) {
  const CostModel &costs = *entry.costs;
  const Candidate &candidate = entry.candidate;
  const Layout &layout = candidate.layout;
  Plan plan;
  plan.schedule = candidate.judgement.kind;
  plan.stages = costs.stages();
  plan.replicas = costs.stageDevices.replicas();
  plan.microBatches = candidate.judgement.microBatches;
  plan.devices = costs.stageDevices.devices;
  for (int c = 0; c < layout.chunks(); ++c)
    plan.chunks.push_back(
        {layout.bounds[c], layout.bounds[c + 1], layout.ranks[c]});

  LayoutMemory memory = layoutMemory(costs, layout, candidate.judgement);
  plan.recomputed = memory.recomputed;
  plan.problem = layoutProblem(costs, layout, memory, candidate.judgement);
  if (memory.lack > 0)
    return error(lackText(costs, layout, memory, candidate.judgement));
  Expected<Orders> orders = makeSchedule(plan.schedule, plan.problem);
  if (!orders)
    return orders.takeError();
  Expected<Simulation> simulation = simulate(plan.problem, *orders);
  if (!simulation)
    return simulation.takeError();
  plan.orders = std::move(*orders);
  plan.simulation = std::move(*simulation);

  for (int rank = 0; rank < plan.stages; ++rank) {
    const StaticBytes &bytes = memory.ranks[rank];
    RankPlan result;
    result.device = plan.devices.front()[rank];
    result.weightBytes = bytes.weights;
    result.gradientBytes = bytes.gradients;
    result.optimizerBytes = bytes.optimizer;
    result.transientBytes = bytes.transient;
    result.fixedBytes = bytes.fixed;
    result.residualBytes = plan.simulation.ranks[rank].peakResidualBytes;
    for (const TimedTask &timed : plan.simulation.ranks[rank].timeline) {
      const Task &task = timed.task;
      (task.kind == TaskKind::Forward ? result.forwardSeconds
                                      : result.backwardSeconds) +=
          timed.end - timed.begin;
      int c = task.chunk, i = task.microBatch;
      if (task.kind == TaskKind::Forward && c + 1 < layout.chunks() &&
          plan.problem.rankOf(c + 1, i) != rank)
        result.activationBytesSent +=
            costs.model.cuts[layout.bounds[c + 1] - 1].activationBytes;
      if (task.kind == TaskKind::Backward &&
          plan.problem.chunks[c].sendsGradient &&
          plan.problem.rankOf(c - 1, i) != rank)
        result.gradientBytesSent +=
            costs.model.cuts[layout.bounds[c] - 1].gradientBytes;
    }
    plan.ranks.push_back(result);
  }
  addSteps(costs, layout, plan.syncSeconds, plan.optimizerSeconds);
  plan.stepSeconds = (candidate.judgement.overlapsSteps
                          ? plan.simulation.span
                          : plan.simulation.makespan) +
                     plan.syncSeconds + plan.optimizerSeconds;
  return plan;
}

/// Checks a request and settles on numbers of stages and replicas to try.
static Expected<std::vector<std::pair<int, int>>>
shapes(const ModelCosts &model, const Cluster &cluster,
       const PlanRequest &request) {
  int devices = cluster.devices.size(), layers = model.layers.size();
  assert(int(model.cuts.size()) == std::max(0, layers - 1) && "cuts of layers");
  if (layers == 0)
    return error("the model has no layers");
  if (request.microBatches < 1)
    return error("a step needs at least one micro-batch");
  int stages = request.stages, replicas = request.replicas;
  int ranks = std::max(1, request.ranks);
  if (stages && !replicas)
    replicas = ranks > stages && ranks % stages == 0 ? ranks / stages : 1;
  if (stages)
    ranks = stages * replicas;
  if (!stages && replicas) {
    if (ranks < replicas)
      ranks = replicas;
    if (ranks % replicas)
      return error(Twine(ranks) + " ranks cannot be shared by " +
                   Twine(replicas) + " replicas");
    stages = ranks / replicas;
  }
  if (ranks > devices)
    return error("the plan needs " + Twine(ranks) + " devices, the cluster has " +
                 Twine(devices));
  if (stages > layers)
    return error(Twine(stages) + " stages for " + Twine(layers) +
                 " layers; a stage has at least one");
  std::vector<std::pair<int, int>> result;
  if (stages) {
    result.emplace_back(stages, replicas);
  } else {
    for (int count = 1; count <= std::min(ranks, layers); ++count)
      if (ranks % count == 0)
        result.emplace_back(count, ranks / count);
  }

  const std::vector<int> &cuts = request.cuts;
  for (size_t k = 0; k < cuts.size(); ++k)
    if (cuts[k] <= (k ? cuts[k - 1] : 0) || cuts[k] >= layers)
      return error("cut " + Twine(k + 1) + " is before layer " +
                   Twine(cuts[k]) + ", expected one after layer " +
                   Twine(k ? cuts[k - 1] : 0) + " of " + Twine(layers));
  if (!cuts.empty() && stages) {
    int chunks = cuts.size() + 1, over = chunks % stages;
    bool spread = over == 1 && stages > 1 && request.mayReplicatePrefix;
    for (int l = 0; spread && l < cuts.front(); ++l)
      spread = !model.layers[l].hasBackward &&
               !model.layers[l].outputNeedsGradient;
    if (chunks < stages || (over && !spread))
      return error(Twine(cuts.size()) + " cuts give " + Twine(chunks) +
                   " chunks for " + Twine(stages) +
                   " stages; expected " + Twine(stages - 1) +
                   " cuts, or those of a multiple of the stages");
    if (over == 1 && spread && chunks < stages + 1)
      return error("a spread prefix needs a chunk on each stage behind it");
  }
  return result;
}

/// Adds what a reader would ask about a plan.
static void addNotes(Plan &plan, const ModelCosts &model,
                     const PlanRequest &request) {
  bool trains = false, weightWork = hasWeightWork(model);
  double backward = 0, weight = 0;
  for (const LayerCosts &layer : model.layers) {
    trains |= layer.trainableParameters > 0;
    if (!layer.hasBackward)
      continue;
    backward += layer.backwardFlops;
    weight += layer.weightFlops;
  }
  if (!trains)
    plan.notes.push_back("nothing trains: the step has no backward pass");
  else if (!weightWork)
    plan.notes.push_back("zero_bubble cannot help: no layer has weight "
                         "gradients that could fill gaps");
  else if (weight < 0.05 * (backward + weight))
    plan.notes.push_back(
        ("zero_bubble can hardly help: little but adapters trains, weight "
         "gradients are " +
         percent(weight / (backward + weight)) + " of the backward pass"));
  else if (!request.splitsWeight && plan.stages > 1)
    plan.notes.push_back("zero_bubble is not considered: weight gradients are "
                         "not split off here");
  if (plan.chunks.front().ranks.size() > 1)
    plan.notes.push_back(
        ("the frozen prefix (layers up to " +
         Twine(model.layers[plan.chunks.front().endLayer - 1].name) +
         ") is spread over all ranks and fills gaps")
            .str());
  int again = llvm::count(plan.recomputed, true);
  if (again)
    plan.notes.push_back((Twine(again) + " of " + Twine(model.layers.size()) +
                          " layers are recomputed" +
                          (request.recompute == RecomputeKind::Full
                               ? ""
                               : ": memory does not hold their activations"))
                             .str());
}

/// Candidates of a request, the best first.
static std::vector<Entry> search(const ModelCosts &model,
                                 const Cluster &cluster,
                                 const PlanRequest &request,
                                 llvm::ArrayRef<std::pair<int, int>> shapes) {
  std::vector<Entry> entries;
  for (auto [stages, replicas] : shapes)
    for (StageDevices &devices :
         placements(model, cluster, stages, replicas))
      addSchedules(std::make_shared<CostModel>(model, cluster, devices),
                   request, entries);
  auto better = [](const Entry &a, const Entry &b) {
    return a.score != b.score ? a.score < b.score : a.number < b.number;
  };
  llvm::sort(entries, better);
  if (request.partition == PartitionKind::FrozenAware && request.cuts.empty())
    for (int k = 0; k < std::min<int>(kFinalists, entries.size()); ++k) {
      refineDeeply(*entries[k].costs, entries[k].candidate, kDeepEvaluations);
      score(entries[k]);
    }
  llvm::sort(entries, better);
  return entries;
}

Expected<Plan> mgq::planner::makePlan(const ModelCosts &model,
                                      const Cluster &cluster,
                                      const PlanRequest &request) {
  Expected<std::vector<std::pair<int, int>>> tried =
      shapes(model, cluster, request);
  if (!tried)
    return tried.takeError();
  std::vector<Entry> entries = search(model, cluster, request, *tried);
  if (entries.empty())
    return error("no layout has that many chunks: the model has " +
                 Twine(model.layers.size()) + " layers");

  std::optional<Plan> best;
  double bestScore = 0;
  std::string failure;
  for (const Entry &entry : entries) {
    int done = &entry - entries.data();
    if (done >= kFinalists && best)
      break;
    Expected<Plan> plan = finish(entry);
    if (!plan) {
      std::string text = llvm::toString(plan.takeError());
      if (failure.empty())
        failure = text;
      continue;
    }
    double score = plan->stepSeconds / (plan->microBatches * plan->replicas);
    bool simpler = best && plan->schedule < best->schedule;
    double factor = simpler ? 1 + kWorthwhile : 1;
    if (!best || score < bestScore * factor) {
      bestScore = score;
      best = std::move(*plan);
    }
  }
  if (!best)
    return error(failure);
  addNotes(*best, model, request);
  return std::move(*best);
}
