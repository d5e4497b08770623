//===- Alternatives.cpp - What other tools would do -----------------------===//

#include "passes/Planner/Plan.h"
#include "passes/Planner/PlanText.h"

#include "llvm/ADT/Twine.h"

#include <algorithm>

using namespace mgq::planner;
using llvm::Expected;
using llvm::Twine;

/// The memory that a plan made without limits lacks where there are some.
static LayoutMemory limitedMemory(const Plan &plan, const CostModel &costs,
                                  const PlanRequest &request) {
  Layout layout;
  layout.bounds.push_back(0);
  for (const PlannedChunk &chunk : plan.chunks) {
    layout.bounds.push_back(chunk.endLayer);
    layout.ranks.push_back(chunk.ranks);
  }
  Judgement judgement;
  judgement.kind = plan.schedule;
  judgement.microBatches = plan.microBatches;
  judgement.recompute = request.recompute;
  judgement.splitsWeight = request.splitsWeight;
  return layoutMemory(costs, layout, judgement);
}

/// Times one alternative. What does not fit is timed as if it did.
static Alternative judge(llvm::StringRef name, const ModelCosts &model,
                         const Cluster &cluster, const PlanRequest &request) {
  Alternative result;
  result.name = name.str();
  Expected<Plan> plan = makePlan(model, cluster, request);
  if (!plan) {
    result.fits = false;
    result.verdict = llvm::toString(plan.takeError());
    Cluster free = cluster;
    for (Device &device : free.devices)
      device.memoryBytes = 0;
    plan = makePlan(model, free, request);
    if (!plan) {
      llvm::consumeError(plan.takeError());
      return result;
    }
    CostModel costs(model, cluster, {plan->devices});
    LayoutMemory memory = limitedMemory(*plan, costs, request);
    if (memory.lack > 0) {
      int64_t has = costs.memory(memory.lackingRank);
      result.verdict =
          ("needs " + byteText(has + memory.lack) + " on rank " +
           Twine(memory.lackingRank) + ", device has " + byteText(has))
              .str();
      result.largestMemoryBytes = has + memory.lack;
    }
  }
  result.schedule = plan->schedule;
  result.stages = plan->stages;
  result.replicas = plan->replicas;
  result.microBatches = plan->microBatches;
  for (size_t c = 1; c < plan->chunks.size(); ++c)
    result.cuts.push_back(plan->chunks[c].firstLayer);
  result.stepSeconds = plan->stepSeconds;
  result.bubble = plan->simulation.bubble;
  if (result.fits)
    result.verdict = "fits";
  for (const RankPlan &rank : plan->ranks)
    if (result.fits)
      result.largestMemoryBytes =
          std::max(result.largestMemoryBytes, rank.memoryBytes());
  return result;
}

void mgq::planner::addAlternatives(Plan &plan, const ModelCosts &model,
                                   const Cluster &cluster,
                                   const PlanRequest &request) {
  // Other partitions run the schedule that was asked for, or 1F1B, on the same
  // stages.
  PlanRequest other = request;
  other.stages = plan.stages;
  other.replicas = plan.replicas;
  other.ranks = plan.stages * plan.replicas;
  other.cuts.clear();
  other.schedule = request.schedule.value_or(ScheduleKind::OneFOneB);
  if (!request.schedule)
    other.chunksPerRank = 0;
  const std::pair<const char *, PartitionKind> partitions[] = {
      {"uniform", PartitionKind::Uniform},
      {"parameters", PartitionKind::Parameters},
      {"flops", PartitionKind::Flops}};
  for (auto [name, partition] : partitions) {
    other.partition = partition;
    plan.alternatives.push_back(judge(name, model, cluster, other));
  }

  // Every rank runs the whole model on its share of the micro-batches.
  PlanRequest parallel = request;
  parallel.partition = PartitionKind::FrozenAware;
  parallel.cuts.clear();
  parallel.schedule = ScheduleKind::OneFOneB;
  parallel.chunksPerRank = 0;
  parallel.stages = 1;
  parallel.ranks = parallel.replicas = plan.stages * plan.replicas;
  int all = plan.microBatches * plan.replicas;
  parallel.microBatches = (all + parallel.ranks - 1) / parallel.ranks;
  plan.alternatives.push_back(judge("data_parallel", model, cluster, parallel));
}
