//===- PlanSearch.cpp - Candidates of plans -------------------------------===//
//
// Candidates differ in stages and replicas, in the placement of stages, in the
// schedule, in chunks per rank, in whether a frozen prefix is spread, and in
// how much memory is made by recomputation. Each is cut by the programme of
// PartitionBounds.cpp and refined by simulation, the best few in depth. All
// searches are bounded by counts: a plan depends on its inputs only.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/PlanSearch.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

using namespace mgq::planner;
using llvm::Expected;

/// Layouts that a candidate may rate, first to be compared, then as one of the
/// best; fewer where a simulated step has more tasks than `kUsualTasks`.
static constexpr int kQuickEvaluations = 250;
static constexpr int kDeepEvaluations = 4000;
static constexpr double kUsualTasks = 2000;
/// Stages, replicas and placements that are searched in full: those whose plain
/// 1F1B is not slower by this factor than the best one's, and so many of them.
static constexpr double kPromising = 2;
static constexpr size_t kMostSites = 4;

static bool isBetter(const Entry &a, const Entry &b) {
  return a.score != b.score ? a.score < b.score : a.number < b.number;
}

static void score(Entry &entry) {
  StepEnd end =
      stepEnd(*entry.costs, entry.candidate.layout, entry.candidate.judgement);
  entry.score = (entry.candidate.seconds + end.seconds()) /
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
  } else if (Expected<Orders> made = makeSchedule(free.kind, problem)) {
    orders = std::move(*made);
  } else {
    llvm::consumeError(made.takeError());
  }
  Expected<Simulation> simulated = simulate(problem, orders);
  if (!simulated) {
    llvm::consumeError(simulated.takeError());
    return result;
  }
  const Simulation &simulation = *simulated;
  for (int rank = 0; rank < costs.stages(); ++rank)
    if (int64_t bytes = microBatchBytes(problem, rank))
      result[rank] = std::max(
          1.0, double(simulation.ranks[rank].peakResidualBytes) / bytes);
  // All micro-batches are in flight under gpipe, also those not simulated.
  if (free.kind == ScheduleKind::GPipe)
    std::fill(result.begin(), result.end(), candidate.judgement.microBatches);
  return result;
}

/// A budget for a candidate's size.
static int evaluations(const CostModel &costs, const Candidate &candidate,
                       int usual) {
  double tasks = 2.0 * candidate.layout.chunks() *
                 simulatedMicroBatches(costs, candidate.judgement);
  return int(usual * std::min(1.0, kUsualTasks / tasks));
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
  // Where the programme finds no room for that many micro-batches, room for as
  // many as can be.
  for (double share : {0.6, 0.35, 0.2, 0.0}) {
    if (found || candidate.judgement.inFlight.empty())
      break;
    Candidate tried = candidate;
    for (double &each : tried.judgement.inFlight)
      each = std::max(1.0, each * share);
    candidate.layout.bounds =
        programmedBounds(costs, tried.layout, tried.judgement, {});
    if (candidate.layout.bounds.empty())
      continue;
    tune(costs, candidate);
    best = candidate;
    found = true;
  }
  if (!found) {
    // Not by the programme's estimate; start anywhere.
    Judgement free = candidate.judgement;
    free.ignoresMemory = true;
    candidate.layout.bounds =
        programmedBounds(costs, candidate.layout, free, {});
    if (candidate.layout.bounds.empty())
      return false;
    tune(costs, candidate);
    best = candidate;
  }
  refineCuts(costs, best, evaluations(costs, best, kQuickEvaluations));
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
  LayoutMemory memory = layoutMemory(*costs, first.layout, first.judgement);
  bool scarce = costs->hasLimits() && memory.lack > 0;
  for (int rank = 0; !scarce && rank < costs->stages(); ++rank)
    scarce = first.judgement.recompute == RecomputeKind::Auto
                 ? llvm::is_contained(memory.recomputed, true)
                 : !memory.limits.empty() && wanted[rank] > 1.0;
  if (!scarce) {
    rate(*costs, first);
    return add(std::move(first));
  }
  // Less in flight, less recomputed: times fall, then rise.
  double least = std::numeric_limits<double>::infinity();
  for (double share : {1.0, 0.7, 0.5, 0.35, 0.25, 0.12, 0.0}) {
    Candidate tried = candidate;
    tried.settings = first.settings;
    for (double each : wanted)
      tried.judgement.inFlight.push_back(std::max(1.0, each * share));
    if (cut(*costs, request, tried)) {
      double seconds = tried.seconds;
      add(std::move(tried));
      if (seconds > least)
        break;
      if (seconds < kLacking)
        least = seconds;
    }
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
  candidate.judgement.sync = request.sync;
  candidate.layout = Layout::roundRobin(stages, stages * perRank, spread);
  if (candidate.layout.chunks() > costs->layerCount())
    return;
  addCandidate(costs, request, std::move(candidate), entries);
}

double mgq::planner::weightWork(const ModelCosts &model) {
  double weight = 0, all = 0;
  for (const LayerCosts &layer : model.layers) {
    if (!layer.hasBackward)
      continue;
    double own = layer.weightSeconds.value_or(layer.weightFlops);
    weight += own;
    all += own + (layer.weightSeconds ? layer.backwardSeconds.value_or(0)
                                      : layer.backwardFlops);
  }
  return all > 0 ? weight / all : 0;
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
  int over = chunks % stages;
  bool forcedSpread = stages > 1 && over == 1 && maySpread && forced &&
                      request.cuts.front() <= costs->prefixEnd();
  if (forced && (chunks - over < stages || (over && !forcedSpread)))
    return;
  auto add = [&](ScheduleKind kind, int perRank) {
    if (forced)
      return addCandidates(costs, request, kind, chunks / stages, forcedSpread,
                           entries);
    if (!request.mustReplicatePrefix || stages == 1)
      addCandidates(costs, request, kind, perRank, false, entries);
    if (searched && maySpread)
      addCandidates(costs, request, kind, perRank, true, entries);
  };

  if (request.schedule || stages == 1) {
    ScheduleKind kind = request.schedule.value_or(ScheduleKind::OneFOneB);
    if (stages > 1 && kind == ScheduleKind::ZeroBubble)
      return add(kind, std::max(1, request.chunksPerRank));
    if (kind != ScheduleKind::Interleaved || stages == 1)
      return add(kind, 1);
    if (request.chunksPerRank)
      return add(kind, request.chunksPerRank);
    // A short model may not have two layers a rank.
    if (costs->layerCount() < 2 * stages)
      return add(kind, 1);
    for (int perRank :
         searched ? std::vector<int>{2, 3, 4} : std::vector<int>{2})
      add(kind, perRank);
    return;
  }
  if (request.chunksPerRank > 1)
    return add(ScheduleKind::Interleaved, request.chunksPerRank);
  if (forced && chunks / stages > 1)
    return add(ScheduleKind::Interleaved, chunks / stages);
  add(ScheduleKind::OneFOneB, 1);
  double weightShare = request.splitsWeight ? weightWork(costs->model) : 0;
  if (weightShare > 0)
    add(ScheduleKind::ZeroBubble, 1);
  if (searched && request.chunksPerRank != 1) {
    // Both ways at once pay where there is much to move.
    if (weightShare > kAdapters)
      for (int perRank : {2, 3})
        add(ScheduleKind::ZeroBubble, perRank);
    add(ScheduleKind::Interleaved, 1);
    for (int perRank : {2, 3, 4})
      add(ScheduleKind::Interleaved, perRank);
  }
}

/// Stages on devices that are worth a full search, the best by plain 1F1B
/// first.
static std::vector<std::shared_ptr<CostModel>>
sites(const ModelCosts &model, const Cluster &cluster,
      const PlanRequest &request, llvm::ArrayRef<std::pair<int, int>> shapes) {
  std::vector<std::shared_ptr<CostModel>> all;
  for (auto [stages, replicas] : shapes)
    for (StageDevices &devices : placements(model, cluster, stages, replicas))
      all.push_back(std::make_shared<CostModel>(model, cluster, devices));
  if (all.size() <= 1 || !request.cuts.empty())
    return all;
  std::vector<Entry> probes;
  for (const std::shared_ptr<CostModel> &costs : all)
    addCandidates(costs, request, ScheduleKind::OneFOneB, 1, false, probes);
  llvm::sort(probes, isBetter);
  std::vector<std::shared_ptr<CostModel>> result;
  for (const Entry &probe : probes)
    if (probe.score <= kPromising * probes.front().score &&
        result.size() < kMostSites && !llvm::is_contained(result, probe.costs))
      result.push_back(probe.costs);
  return result;
}

/// Candidates of a request, the best first.
std::vector<Entry>
mgq::planner::searchPlans(const ModelCosts &model, const Cluster &cluster,
                          const PlanRequest &request,
                          llvm::ArrayRef<std::pair<int, int>> shapes) {
  std::vector<Entry> entries;
  for (const std::shared_ptr<CostModel> &site :
       sites(model, cluster, request, shapes))
    addSchedules(site, request, entries);
  llvm::sort(entries, isBetter);
  if (request.partition == PartitionKind::FrozenAware && request.cuts.empty()) {
    // The best of each kind: a kind may gain more in depth than another.
    std::map<std::tuple<ScheduleKind, int, int>, int> taken;
    int finalists = 0;
    for (Entry &entry : entries) {
      const Candidate &candidate = entry.candidate;
      if (finalists == kFinalists || candidate.seconds >= kLacking)
        break;
      if (++taken[{candidate.judgement.kind, candidate.layout.chunks(),
                   entry.costs->stages()}] > 1)
        continue;
      ++finalists;
      refineDeeply(
          *entry.costs, entry.candidate,
          evaluations(*entry.costs, entry.candidate, kDeepEvaluations));
      score(entry);
    }
  }
  llvm::sort(entries, isBetter);
  return entries;
}
