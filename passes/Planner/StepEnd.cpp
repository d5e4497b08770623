//===- StepEnd.cpp - What follows the last task of a step -----------------===//
//
// Replicas sum their gradients, then the optimizer runs. With overlap, parts of
// the gradients are on their way while the last micro-batch's backward runs,
// and the rest while the next step's frozen prefix does: what is longer than
// both is added to the step.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/PlanSearch.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

using namespace mgq::planner;

/// Calls visit(layer) for the layers whose gradients a rank owns.
template <typename Visit>
static void forOwnLayers(const Layout &layout, int rank, Visit visit) {
  for (int c = 0; c < layout.chunks(); ++c)
    if (layout.ranks[c].front() == rank)
      for (int l = layout.bounds[c]; l < layout.bounds[c + 1]; ++l)
        visit(l);
}

/// Seconds of a rank that its gradients' exchange can run beside.
static double hidingSeconds(const CostModel &costs, const Layout &layout,
                            const Judgement &judgement, int rank) {
  double seconds = 0;
  // The last micro-batch's backward.
  forOwnLayers(layout, rank, [&](int l) {
    seconds += costs.backward(rank, l, l + 1) + costs.weight(rank, l, l + 1);
  });
  // The prefix of the next step's micro-batches.
  for (int c = 0; c < layout.chunks(); ++c) {
    int first = layout.bounds[c], end = layout.bounds[c + 1];
    if (end <= costs.prefixEnd() && llvm::is_contained(layout.ranks[c], rank))
      seconds += costs.forward(rank, first, end) * judgement.microBatches /
                 double(layout.ranks[c].size());
  }
  return seconds;
}

/// When the last task of a rank ends before that of all ranks.
static double slackOf(const Simulation *simulation, int rank) {
  if (!simulation || simulation->ranks[rank].timeline.empty())
    return 0;
  double last = 0;
  for (const RankTimes &times : simulation->ranks)
    if (!times.timeline.empty())
      last = std::max(last, times.timeline.back().end);
  return last - simulation->ranks[rank].timeline.back().end;
}

static int64_t gradientBytes(const CostModel &costs, const Layout &layout,
                             int rank) {
  int64_t bytes = 0;
  forOwnLayers(layout, rank,
               [&](int l) { bytes += costs.model.layers[l].gradientBytes; });
  return bytes;
}

StepEnd mgq::planner::stepEnd(const CostModel &costs, const Layout &layout,
                              const Judgement &judgement,
                              const Simulation *simulation) {
  StepEnd result;
  const SyncPolicy &policy = judgement.sync;
  for (int rank = 0; rank < costs.stages(); ++rank) {
    int64_t gradients = gradientBytes(costs, layout, rank), states = 0;
    forOwnLayers(layout, rank, [&](int l) {
      states += costs.model.layers[l].optimizerBytes;
    });
    double sync =
        costs.syncSeconds(rank, int64_t(double(gradients) * policy.bytesRatio));
    double hiding = slackOf(simulation, rank);
    if (policy.overlaps)
      hiding += hidingSeconds(costs, layout, judgement, rank);
    double hidden = std::min(sync, hiding);
    if (sync - hidden > result.sync ||
        (sync - hidden == result.sync && hidden > result.hiddenSync)) {
      result.sync = sync - hidden;
      result.hiddenSync = hidden;
    }
    result.optimizer = std::max(
        result.optimizer, costs.optimizerSeconds(rank, gradients, states));
  }
  return result;
}

int64_t mgq::planner::syncBytes(const CostModel &costs, const Layout &layout,
                                const SyncPolicy &sync, int rank) {
  int64_t replicas = costs.stageDevices.replicas();
  double bytes = double(gradientBytes(costs, layout, rank)) * sync.bytesRatio;
  return int64_t(2 * bytes * double(replicas - 1) / double(replicas));
}
