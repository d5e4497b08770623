//===- SplitPrefix.cpp - The frozen prefix as a chunk of its own ----------===//

#include "passes/Pipe/PlanModel.h"

using namespace mgq::pipe;
namespace planner = mgq::planner;

/// Layers before the first that takes part in gradients.
static int prefixEnd(const planner::ModelCosts &costs) {
  int end = 0;
  for (const planner::LayerCosts &layer : costs.layers) {
    if (layer.hasBackward || layer.outputNeedsGradient)
      break;
    ++end;
  }
  return end;
}

/// FLOPs of some layers' forward pass.
static double forwardFlops(const planner::ModelCosts &costs, int begin,
                           int end) {
  double flops = 0;
  for (int layer = begin; layer < end; ++layer)
    flops += costs.layers[layer].forwardFlops;
  return flops;
}

/// Cuts chunk `i` before a layer that is inside it; what is before has no
/// gradients.
static void cutChunk(planner::Plan &plan, size_t i, int cut,
                     const planner::ModelCosts &costs) {
  planner::PlannedChunk &rest = plan.chunks[i];
  planner::PlannedChunk prefix = rest;
  prefix.endLayer = rest.firstLayer = cut;
  planner::ChunkCosts &restCosts = plan.problem.chunks[i];
  planner::ChunkCosts prefixCosts;
  prefixCosts.ranks = restCosts.ranks;
  double all = forwardFlops(costs, prefix.firstLayer, rest.endLayer);
  double part = forwardFlops(costs, prefix.firstLayer, cut);
  prefixCosts.forward = all > 0 ? restCosts.forward * part / all : 0;
  restCosts.forward -= prefixCosts.forward;
  plan.chunks.insert(plan.chunks.begin() + i, prefix);
  plan.problem.chunks.insert(plan.problem.chunks.begin() + i, prefixCosts);
}

planner::Plan mgq::pipe::splitPrefix(planner::Plan plan,
                                     const planner::ModelCosts &costs,
                                     bool eachLayer) {
  int end = prefixEnd(costs);
  for (int cut = eachLayer ? 1 : end; cut <= end; ++cut)
    for (size_t i = 0; i < plan.chunks.size(); ++i)
      if (cut > plan.chunks[i].firstLayer && cut < plan.chunks[i].endLayer) {
        cutChunk(plan, i, cut, costs);
        break;
      }
  return plan;
}
