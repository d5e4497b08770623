//===- CostModel.h - Seconds and bytes of runs of layers --------*- C++ -*-===//
//
// What a run of layers costs on the devices of a stage. All sums are prefix
// sums, so that searches ask in constant time.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PLANNER_COSTMODEL_H
#define MGQ_PASSES_PLANNER_COSTMODEL_H

#include "passes/Planner/Plan.h"

namespace mgq::planner {

/// Devices of a pipeline's stages. With replicas, a stage is as slow and as
/// small as the weakest of its devices.
struct StageDevices {
  std::vector<std::vector<int>> devices; ///< By replica, then stage.

  int stages() const { return devices.front().size(); }
  int replicas() const { return devices.size(); }
};

/// Seconds of one layer on a device: the larger of compute and memory traffic.
struct LayerSeconds {
  double forward = 0, backward = 0, weight = 0;
};
LayerSeconds layerSeconds(const LayerCosts &layer, const Device &device);

/// Memory of a run of layers that does not depend on the schedule.
struct StaticBytes {
  int64_t weights = 0, gradients = 0, optimizer = 0, transient = 0, fixed = 0;

  int64_t total() const {
    return weights + gradients + optimizer + transient + fixed;
  }
};

class CostModel {
public:
  CostModel(const ModelCosts &model, const Cluster &cluster,
            StageDevices stageDevices);

  const ModelCosts &model;
  const Cluster &cluster;
  const StageDevices stageDevices;

  int layerCount() const { return model.layers.size(); }
  int stages() const { return stageDevices.stages(); }
  /// Layers [0, prefixEnd) have no backward, and nothing upstream of what they
  /// hand on trains.
  int prefixEnd() const { return frozenEnd; }

  double forward(int stage, int first, int end) const {
    return forwards[stage][end] - forwards[stage][first];
  }
  double backward(int stage, int first, int end) const {
    return backwards[stage][end] - backwards[stage][first];
  }
  double weight(int stage, int first, int end) const {
    return weights[stage][end] - weights[stage][first];
  }
  double layerForward(int stage, int layer) const {
    return forward(stage, layer, layer + 1);
  }
  int64_t residuals(int first, int end) const {
    return residualSums[end] - residualSums[first];
  }
  /// Weights, gradients and optimizer state.
  int64_t persistent(int first, int end) const {
    return persistentSums[end] - persistentSums[first];
  }
  bool hasBackward(int first, int end) const {
    return backwardCounts[end] > backwardCounts[first];
  }
  /// A gradient goes back over the cut before `layer`.
  bool gradientCrosses(int layer) const;

  /// Message over the cut before `layer` between two stages.
  double sendSeconds(int layer, int from, int to) const;
  double sendBackSeconds(int layer, int from, int to) const;

  /// Memory of a stage's device; 0: no limit.
  int64_t memory(int stage) const { return memories[stage]; }
  /// Any device has a limit.
  bool hasLimits() const;

  /// Ring all-reduce of gradients of layers, over the replicas of a stage.
  double syncSeconds(int stage, int64_t gradientBytes) const;
  double optimizerSeconds(int stage, int64_t gradientBytes,
                          int64_t optimizerBytes) const;

private:
  /// Slowest link between two stages, over replicas.
  Link slowest(int from, int to) const;

  std::vector<std::vector<double>> forwards, backwards, weights; ///< By stage.
  std::vector<int64_t> residualSums, persistentSums;
  std::vector<int> backwardCounts;
  std::vector<int64_t> memories;
  std::vector<Link> links; ///< By pair of stages.
  int frozenEnd = 0;
};

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_COSTMODEL_H
