//===- CostModel.cpp - Seconds and bytes of runs of layers ----------------===//

#include "passes/Planner/CostModel.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>

using namespace mgq::planner;

/// The larger of the times of compute and of memory traffic (roofline). An
/// unknown rate costs nothing.
static double roofline(double flops, double traffic, double flopRate,
                       double byteRate) {
  return std::max(flopRate > 0 ? flops / flopRate : 0,
                  byteRate > 0 ? traffic / byteRate : 0);
}

LayerSeconds mgq::planner::layerSeconds(const LayerCosts &layer,
                                        const Device &device) {
  double rate = layer.usesBf16 ? device.bf16Flops : device.f32Flops;
  double bytes = device.bytesPerSecond;
  LayerSeconds result;
  result.forward =
      roofline(layer.forwardFlops, layer.forwardTraffic, rate, bytes);
  result.backward =
      roofline(layer.backwardFlops, layer.backwardTraffic, rate, bytes);
  result.weight = roofline(layer.weightFlops, layer.weightTraffic, rate, bytes);
  if (layer.forwardSeconds)
    result.forward = *layer.forwardSeconds;
  if (layer.weightSeconds)
    result.weight = *layer.weightSeconds;
  if (layer.backwardSeconds && layer.weightSeconds) {
    result.backward = *layer.backwardSeconds;
  } else if (layer.backwardSeconds) {
    double sum = result.backward + result.weight;
    double share = sum > 0 ? result.weight / sum : 0;
    result.weight = *layer.backwardSeconds * share;
    result.backward = *layer.backwardSeconds - result.weight;
  }
  return result;
}

CostModel::CostModel(const ModelCosts &model, const Cluster &cluster,
                     StageDevices stageDevices)
    : model(model), cluster(cluster), stageDevices(std::move(stageDevices)) {
  int n = layerCount(), count = stages();
  residualSums.assign(n + 1, 0);
  persistentSums.assign(n + 1, 0);
  backwardCounts.assign(n + 1, 0);
  for (int l = 0; l < n; ++l) {
    const LayerCosts &layer = model.layers[l];
    residualSums[l + 1] = residualSums[l] + layer.residualBytes;
    persistentSums[l + 1] = persistentSums[l] + layer.weightBytes +
                            layer.gradientBytes + layer.optimizerBytes;
    backwardCounts[l + 1] = backwardCounts[l] + layer.hasBackward;
  }
  while (frozenEnd < n && !model.layers[frozenEnd].hasBackward &&
         !model.layers[frozenEnd].outputNeedsGradient)
    ++frozenEnd;

  auto sums = std::vector<double>(n + 1, 0);
  forwards.assign(count, sums);
  backwards.assign(count, sums);
  weights.assign(count, sums);
  for (int stage = 0; stage < count; ++stage) {
    int64_t memory = std::numeric_limits<int64_t>::max();
    bool limited = false;
    for (const std::vector<int> &replica : this->stageDevices.devices) {
      const Device &device = cluster.devices[replica[stage]];
      limited |= device.memoryBytes > 0;
      if (device.memoryBytes > 0)
        memory = std::min(memory, device.memoryBytes);
    }
    memories.push_back(limited ? memory : 0);
    for (int l = 0; l < n; ++l) {
      LayerSeconds slowest;
      for (const std::vector<int> &replica : this->stageDevices.devices) {
        LayerSeconds seconds =
            layerSeconds(model.layers[l], cluster.devices[replica[stage]]);
        slowest.forward = std::max(slowest.forward, seconds.forward);
        slowest.backward = std::max(slowest.backward, seconds.backward);
        slowest.weight = std::max(slowest.weight, seconds.weight);
      }
      bool active = model.layers[l].hasBackward;
      forwards[stage][l + 1] = forwards[stage][l] + slowest.forward;
      backwards[stage][l + 1] =
          backwards[stage][l] + (active ? slowest.backward : 0);
      weights[stage][l + 1] = weights[stage][l] + (active ? slowest.weight : 0);
    }
  }
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to)
      links.push_back(slowest(from, to));
}

bool CostModel::gradientCrosses(int layer) const {
  return layer > 0 && (model.cuts[layer - 1].gradientBytes > 0 ||
                       model.layers[layer - 1].outputNeedsGradient);
}

Link CostModel::slowest(int from, int to) const {
  Link result;
  for (const std::vector<int> &replica : stageDevices.devices) {
    const Link &link = cluster.link(replica[from], replica[to]);
    result.latency = std::max(result.latency, link.latency);
    if (link.bytesPerSecond > 0)
      result.bytesPerSecond =
          result.bytesPerSecond > 0
              ? std::min(result.bytesPerSecond, link.bytesPerSecond)
              : link.bytesPerSecond;
  }
  return result;
}

double CostModel::sendSeconds(int layer, int from, int to) const {
  if (from == to)
    return 0;
  return links[from * stages() + to].seconds(
      model.cuts[layer - 1].activationBytes);
}

double CostModel::sendBackSeconds(int layer, int from, int to) const {
  if (from == to || !gradientCrosses(layer))
    return 0;
  return links[from * stages() + to].seconds(
      model.cuts[layer - 1].gradientBytes);
}

bool CostModel::hasLimits() const {
  return llvm::any_of(memories, [](int64_t bytes) { return bytes > 0; });
}

double CostModel::syncSeconds(int stage, int64_t gradientBytes) const {
  int count = stageDevices.replicas();
  if (count == 1 || gradientBytes == 0)
    return 0;
  // Each of 2 (R - 1) rounds moves a share of 1 / R over every link at once.
  double slowestRound = 0;
  for (int r = 0; r < count; ++r) {
    int from = stageDevices.devices[r][stage];
    int to = stageDevices.devices[(r + 1) % count][stage];
    slowestRound = std::max(
        slowestRound, cluster.link(from, to).seconds(gradientBytes / count));
  }
  return 2 * (count - 1) * slowestRound;
}

double CostModel::optimizerSeconds(int stage, int64_t gradientBytes,
                                   int64_t optimizerBytes) const {
  double seconds = 0;
  for (const std::vector<int> &replica : stageDevices.devices) {
    double rate = cluster.devices[replica[stage]].bytesPerSecond;
    // States are read and written; gradients are read twice (norm, update),
    // and a weight as large as its gradient is read and written.
    if (rate > 0)
      seconds = std::max(seconds,
                         (2.0 * optimizerBytes + 4.0 * gradientBytes) / rate);
  }
  return seconds;
}
