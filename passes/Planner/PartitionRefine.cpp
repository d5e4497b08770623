//===- PartitionRefine.cpp - Cuts by simulation ---------------------------===//
//
// The programme of PartitionBounds.cpp knows loads only. What a cut does to
// the ways in and out of a step, and to the gaps between, the simulation says.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Partition.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <optional>

using namespace mgq::planner;

/// A move must gain this share, or rounding could make it go in circles.
static constexpr double kGain = 1e-7;

int mgq::planner::simulatedMicroBatches(const CostModel &costs,
                                        const Judgement &judgement) {
  int all = judgement.microBatches;
  // All of gpipe's are in flight: memory does not admit fewer in their place.
  if (judgement.kind == ScheduleKind::GPipe)
    return all;
  return std::min(all, std::max(16, 4 * costs.stages()));
}

/// Seconds of the busiest rank, of one micro-batch.
static double pace(const ScheduleProblem &problem) {
  std::vector<double> load(problem.ranks, 0);
  for (const ChunkCosts &chunk : problem.chunks)
    for (int rank : chunk.ranks)
      load[rank] +=
          (chunk.forward + chunk.backward + chunk.weight) / chunk.ranks.size();
  return *llvm::max_element(load);
}

static bool isListed(ScheduleKind kind) {
  return kind == ScheduleKind::Interleaved || kind == ScheduleKind::ZeroBubble;
}

/// Simulated seconds; nothing where memory admits no order, infinite where that
/// is sure to be above `cutoff`.
static std::optional<double> simulated(const Candidate &candidate,
                                       const ScheduleProblem &problem,
                                       double cutoff) {
  if (isListed(candidate.judgement.kind)) {
    ListScheduler scheduler(problem);
    if (!scheduler.run(candidate.settings, nullptr, cutoff))
      return std::nullopt;
    return objective(scheduler, problem);
  }
  llvm::Expected<Orders> orders =
      makeSchedule(candidate.judgement.kind, problem);
  if (!orders) {
    llvm::consumeError(orders.takeError());
    return std::nullopt;
  }
  llvm::Expected<Simulation> simulation = simulate(problem, *orders);
  if (!simulation) {
    llvm::consumeError(simulation.takeError());
    return std::nullopt;
  }
  return problem.overlapsSteps ? simulation->span : simulation->makespan;
}

void mgq::planner::rate(const CostModel &costs, Candidate &candidate,
                        double cutoff) {
  const Judgement &judgement = candidate.judgement;
  LayoutMemory memory = layoutMemory(costs, candidate.layout, judgement);
  if (memory.lack > 0) {
    candidate.seconds =
        kLacking *
        (1 + double(memory.lack) /
                 std::max<int64_t>(1, costs.memory(memory.lackingRank)));
    return;
  }
  ScheduleProblem problem =
      layoutProblem(costs, candidate.layout, memory, judgement);
  int all = problem.microBatches;
  problem.microBatches = simulatedMicroBatches(costs, judgement);
  int left = all - problem.microBatches;
  double each = pace(problem);
  std::optional<double> seconds =
      simulated(candidate, problem, cutoff - left * each);
  if (!seconds) {
    candidate.seconds = kLacking;
    return;
  }
  if (left > 0 && !memory.limits.empty() && *seconds < kLacking) {
    // Where memory holds too few micro-batches, ranks wait in the midst of a
    // step as well: the pace is what more micro-batches cost.
    int first = problem.microBatches / 2;
    int more = problem.microBatches - first;
    problem.microBatches = first;
    if (std::optional<double> part = simulated(
            candidate, problem, std::numeric_limits<double>::infinity()))
      each = std::max(each, (*seconds - *part) / more);
  }
  candidate.seconds = *seconds + left * each;
}

void mgq::planner::tune(const CostModel &costs, Candidate &candidate) {
  if (isListed(candidate.judgement.kind)) {
    LayoutMemory memory =
        layoutMemory(costs, candidate.layout, candidate.judgement);
    if (memory.lack <= 0) {
      ScheduleProblem problem =
          layoutProblem(costs, candidate.layout, memory, candidate.judgement);
      problem.microBatches = simulatedMicroBatches(costs, candidate.judgement);
      ListScheduler scheduler(problem);
      searchSettings(scheduler, problem, candidate.settings, /*known=*/true);
    }
  }
  rate(costs, candidate);
}

void mgq::planner::refineCuts(const CostModel &costs, Candidate &candidate,
                              int evaluations) {
  int cuts = candidate.layout.chunks() - 1;
  int n = costs.layerCount();
  bool spread = candidate.layout.isSpread();
  // Cut k stands before chunk k.
  auto isValid = [&](const std::vector<int> &bounds) {
    for (int c = 0; c + 1 < int(bounds.size()); ++c)
      if (bounds[c] >= bounds[c + 1])
        return false;
    return bounds.back() == n && (!spread || bounds[1] <= costs.prefixEnd());
  };

  // Runs of neighbouring cuts, short ones first. `quiet` counts moves without
  // gain; a full round of them ends the walk.
  int moves = cuts * (cuts + 1), quiet = 0;
  int length = 1, first = 1, step = 1;
  while (quiet < moves && evaluations > 0) {
    Candidate moved = candidate;
    for (int k = first; k < first + length; ++k)
      moved.layout.bounds[k] += step;
    bool gained = false;
    if (isValid(moved.layout.bounds)) {
      rate(costs, moved, candidate.seconds);
      --evaluations;
      gained = moved.seconds < candidate.seconds * (1 - kGain);
    }
    if (gained) {
      candidate = std::move(moved);
      quiet = 0;
      continue; // The same way again.
    }
    ++quiet;
    step = -step;
    if (step > 0 && ++first + length - 1 > cuts) {
      first = 1;
      length = length == cuts ? 1 : length + 1;
    }
  }
}

void mgq::planner::refineDeeply(const CostModel &costs, Candidate &candidate,
                                int evaluations) {
  // Cuts and settings fit each other, so that each alone is soon at an end.
  // Start again from settings next to the best.
  auto walk = [&](ListSettings settings, int budget) {
    Candidate tried = candidate;
    tried.settings = settings;
    rate(costs, tried);
    refineCuts(costs, tried, budget);
    tune(costs, tried);
    if (tried.seconds < candidate.seconds * (1 - kGain))
      candidate = std::move(tried);
  };
  constexpr int kVariants = 8;
  int share = evaluations / (kVariants + 2);
  walk(candidate.settings, 2 * share);
  if (!isListed(candidate.judgement.kind))
    return;
  int p = costs.stages();
  for (int variant = 0; variant < kVariants; ++variant) {
    ListSettings settings = candidate.settings;
    switch (variant) {
    case 0:
    case 5:
      settings.deepFirst = !settings.deepFirst;
      break;
    case 1:
      settings.group = settings.group == p ? 2 * p : p;
      break;
    case 2:
    case 6:
      settings.capBase = settings.capSlope = 0;
      settings.capLag = settings.capBase ? 0 : 1;
      break;
    case 3:
      settings.prefixAhead = settings.prefixAhead == 1 ? 2 : 1;
      break;
    case 4:
      settings.group = std::max(1, settings.group / 2);
      break;
    case 7:
      settings.prefixAhead = settings.prefixAhead == 4 ? p : 4;
      break;
    }
    walk(settings, share);
  }
}
