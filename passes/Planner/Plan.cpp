//===- Plan.cpp - Cuts a model over devices -------------------------------===//
//
// The best candidates of PlanSearch.cpp are scheduled in full; the best of
// those is the plan.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Plan.h"
#include "passes/Planner/PlanSearch.h"
#include "passes/Planner/PlanText.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>

using namespace mgq::planner;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

/// A plan must be better by this share than one of a simpler kind.
static constexpr double kWorthwhile = 1e-3;

static Error error(const Twine &text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

/// Bytes of a rank's slots: each chunk has as many as it has micro-batches in
/// flight at most, whatever the rank's other chunks hold at that time.
static int64_t slotBytes(const Plan &plan, int rank) {
  int64_t bytes = 0;
  const std::vector<int> &inFlight = plan.simulation.ranks[rank].inFlight;
  for (auto [chunk, count] : llvm::zip_equal(plan.problem.chunks, inFlight))
    bytes += chunk.residualBytes * count;
  return bytes;
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
    return error("no plan fits: " + llvm::toString(orders.takeError()) +
                 "; what would help: another schedule, --recompute=full, "
                 "fewer micro-batches");
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
    result.residualBytes = slotBytes(plan, rank);
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
    result.gradientBytesSent +=
        syncBytes(costs, layout, candidate.judgement.sync, rank);
    plan.ranks.push_back(result);
  }
  StepEnd end = stepEnd(costs, layout, candidate.judgement, &plan.simulation);
  plan.syncSeconds = end.sync;
  plan.hiddenSyncSeconds = end.hiddenSync;
  plan.optimizerSeconds = end.optimizer;
  plan.stepSeconds =
      (candidate.judgement.overlapsSteps ? plan.simulation.span
                                         : plan.simulation.makespan) +
      end.seconds();
  return plan;
}

/// Seconds of a schedule as the plan counts them.
static double timeOf(const Plan &plan, const Simulation &simulation) {
  return plan.problem.overlapsSteps ? simulation.span : simulation.makespan;
}

/// Schedules the plan again under `limit` (residual bytes by rank). Null if
/// that takes longer than `longest` seconds, or cannot be.
static std::optional<std::pair<Orders, Simulation>>
scheduleWithin(const Plan &plan, const std::vector<int64_t> &limit,
               double longest) {
  ScheduleProblem tight = plan.problem;
  tight.memoryLimit = limit;
  Expected<Orders> orders = makeSchedule(plan.schedule, tight);
  if (!orders) {
    llvm::consumeError(orders.takeError());
    return std::nullopt;
  }
  Expected<Simulation> simulation = simulate(tight, *orders);
  if (!simulation) {
    llvm::consumeError(simulation.takeError());
    return std::nullopt;
  }
  if (timeOf(plan, *simulation) > longest)
    return std::nullopt;
  return std::make_pair(std::move(*orders), std::move(*simulation));
}

/// Makes a schedule under a tighter limit the plan's. The limit stays in the
/// plan: whoever makes the schedule again finds the same one.
static void takeSchedule(Plan &plan, std::vector<int64_t> limit,
                         std::pair<Orders, Simulation> found) {
  plan.stepSeconds +=
      timeOf(plan, found.second) - timeOf(plan, plan.simulation);
  plan.problem.memoryLimit = std::move(limit);
  plan.orders = std::move(found.first);
  plan.simulation = std::move(found.second);
  for (int rank = 0; rank < plan.stages; ++rank)
    plan.ranks[rank].residualBytes = slotBytes(plan, rank);
}

/// Whether the scheduler chooses how many micro-batches are in flight.
static bool hasFreeOrder(const Plan &plan) {
  return plan.schedule == ScheduleKind::Interleaved ||
         plan.schedule == ScheduleKind::ZeroBubble;
}

/// Lowers activations in flight while that costs no time to speak of: the list
/// scheduler uses what memory there is.
static void trimMemory(Plan &plan) {
  constexpr double kNoTime = 5e-4;
  double before = timeOf(plan, plan.simulation);
  for (double share : {0.4, 0.55, 0.7, 0.85}) {
    std::vector<int64_t> limit;
    for (int rank = 0; rank < plan.stages; ++rank)
      limit.push_back(std::max(
          microBatchBytes(plan.problem, rank),
          int64_t(double(plan.simulation.ranks[rank].peakResidualBytes) *
                  share)));
    if (auto found = scheduleWithin(plan, limit, before * (1 + kNoTime)))
      return takeSchedule(plan, std::move(limit), std::move(*found));
  }
}

/// The scheduler counts what a rank holds at one time; its chunks' slots take
/// somewhat more. Lowers activations in flight until they fit.
static void fitSlots(Plan &plan, const Cluster &cluster) {
  constexpr int kRounds = 12;
  constexpr double kLess = 0.93;
  for (int round = 0; round < kRounds; ++round) {
    bool fits = true;
    std::vector<int64_t> limit;
    for (int rank = 0; rank < plan.stages; ++rank) {
      int64_t has = cluster.devices[plan.ranks[rank].device].memoryBytes;
      bool isFull = has > 0 && plan.ranks[rank].memoryBytes() > has;
      fits &= !isFull;
      double peak = double(plan.simulation.ranks[rank].peakResidualBytes);
      limit.push_back(std::max(microBatchBytes(plan.problem, rank),
                               int64_t(isFull ? peak * kLess : peak)));
    }
    if (fits)
      return;
    auto found =
        scheduleWithin(plan, limit, std::numeric_limits<double>::infinity());
    if (!found)
      return;
    takeSchedule(plan, std::move(limit), std::move(*found));
  }
}

/// Memory of the fullest rank over the mean.
static double unevenness(const Plan &plan) {
  double most = 0, all = 0;
  for (const RankPlan &rank : plan.ranks) {
    most = std::max(most, double(rank.memoryBytes()));
    all += double(rank.memoryBytes());
  }
  return all > 0 ? most * double(plan.ranks.size()) / all : 1;
}

/// Whether a rank takes a good part of its device's memory.
static bool isMemoryPrecious(const Plan &plan, const Cluster &cluster) {
  constexpr double kGoodPart = 0.4;
  return llvm::any_of(plan.ranks, [&](const RankPlan &rank) {
    return double(rank.memoryBytes()) >
           kGoodPart * double(cluster.devices[rank.device].memoryBytes);
  });
}

/// Where one rank needs much more memory than the others, lowers activations in
/// flight on the fullest ranks, as long as the step takes little longer: the
/// fullest rank decides which devices will do.
static void balanceMemory(Plan &plan) {
  constexpr double kLittleTime = 0.05, kEven = 1.1, kEvenEnough = 1.15;
  constexpr int kRounds = 12;
  double longest = timeOf(plan, plan.simulation) * (1 + kLittleTime);
  double share = 1; // of the excess that a round takes away
  Plan best = plan;
  for (int round = 0;
       round < kRounds && share > 0.1 && unevenness(best) > kEvenEnough;
       ++round) {
    double mean = 0;
    for (const RankPlan &rank : plan.ranks)
      mean += double(rank.memoryBytes()) / plan.stages;
    std::vector<int64_t> limit;
    for (int rank = 0; rank < plan.stages; ++rank) {
      int64_t peak = plan.simulation.ranks[rank].peakResidualBytes;
      double excess = double(plan.ranks[rank].memoryBytes()) - kEven * mean;
      limit.push_back(std::max(microBatchBytes(plan.problem, rank),
                               peak - int64_t(share * std::max(excess, 0.0))));
    }
    if (auto found = scheduleWithin(plan, limit, longest)) {
      takeSchedule(plan, std::move(limit), std::move(*found));
      if (unevenness(plan) < unevenness(best))
        best = plan;
    } else {
      share /= 2;
    }
  }
  plan = std::move(best);
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
    return error("the plan needs " + Twine(ranks) +
                 " devices, the cluster has " + Twine(devices));
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
      spread =
          !model.layers[l].hasBackward && !model.layers[l].outputNeedsGradient;
    if (chunks < stages || (over && !spread))
      return error(Twine(cuts.size()) + " cuts give " + Twine(chunks) +
                   " chunks for " + Twine(stages) + " stages; expected " +
                   Twine(stages - 1) +
                   " cuts, or those of a multiple of the stages");
    if (over == 1 && spread && chunks < stages + 1)
      return error("a spread prefix needs a chunk on each stage behind it");
  }
  return result;
}

/// Adds what a reader would ask about a plan.
static void addNotes(Plan &plan, const ModelCosts &model,
                     const PlanRequest &request) {
  bool trains = llvm::any_of(model.layers, [](const LayerCosts &layer) {
    return layer.trainableParameters > 0;
  });
  double share = weightWork(model);
  if (!trains)
    plan.notes.push_back("nothing trains: the step has no backward pass");
  else if (share == 0)
    plan.notes.push_back("zero_bubble cannot help: no layer has weight "
                         "gradients that could fill gaps");
  else if (share < kAdapters)
    plan.notes.push_back(
        "zero_bubble can hardly help: little but adapters trains, weight "
        "gradients are " +
        percent(share) + " of the backward pass");
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

Expected<Plan> mgq::planner::makePlan(const ModelCosts &model,
                                      const Cluster &cluster,
                                      const PlanRequest &request) {
  Expected<std::vector<std::pair<int, int>>> tried =
      shapes(model, cluster, request);
  if (!tried)
    return tried.takeError();
  std::vector<Entry> entries = searchPlans(model, cluster, request, *tried);
  if (entries.empty() && !request.cuts.empty())
    return error(Twine(request.cuts.size() + 1) +
                 " chunks cannot be shared evenly by any number of stages "
                 "that " +
                 Twine(request.ranks) + " ranks allow");
  if (entries.empty())
    return error("the model has " + Twine(model.layers.size()) +
                 " layers, fewer than the chunks asked for");

  std::optional<Plan> best;
  double bestScore = 0;
  std::string failure;
  double leastLack = std::numeric_limits<double>::infinity();
  for (const Entry &entry : entries) {
    int done = &entry - entries.data();
    if (done >= kFinalists && best)
      break;
    Expected<Plan> plan = finish(entry);
    if (!plan) {
      std::string text = llvm::toString(plan.takeError());
      // The one that lacks least is nearest to what would help.
      if (failure.empty() || entry.candidate.seconds < leastLack) {
        failure = text;
        leastLack = entry.candidate.seconds;
      }
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
  if (hasFreeOrder(*best)) {
    trimMemory(*best);
    fitSlots(*best, cluster);
    if (isMemoryPrecious(*best, cluster))
      balanceMemory(*best);
  }
  addNotes(*best, model, request);
  return std::move(*best);
}
