//===- Layout.cpp - A partition, and what it takes ------------------------===//

#include "passes/Planner/Layout.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>

using namespace mgq::planner;

Layout Layout::roundRobin(int stages, int chunks, bool spread) {
  Layout layout;
  if (spread) {
    layout.ranks.emplace_back();
    for (int rank = 0; rank < stages; ++rank)
      layout.ranks.back().push_back(rank);
  }
  for (int c = 0; c < chunks; ++c)
    layout.ranks.push_back({c % stages});
  return layout;
}

static bool splits(const Judgement &judgement) {
  return judgement.splitsWeight && judgement.kind == ScheduleKind::ZeroBubble;
}

/// Kept from forward to backward (or until weight, if that is more).
static int64_t keptBytes(const LayerCosts &layer, bool recomputed, bool split) {
  if (!layer.hasBackward)
    return 0;
  int64_t bytes = recomputed ? std::min(layer.inputBytes, layer.residualBytes)
                             : layer.residualBytes;
  return std::max(bytes, split ? layer.weightResidualBytes : 0);
}

/// Recomputing it frees memory.
static bool canRecompute(const LayerCosts &layer, bool split) {
  return layer.hasBackward &&
         keptBytes(layer, true, split) < keptBytes(layer, false, split);
}

/// Layers of a rank, chunk by chunk.
static std::vector<int> layersOf(const Layout &layout, int rank) {
  std::vector<int> layers;
  for (int c = 0; c < layout.chunks(); ++c)
    if (llvm::is_contained(layout.ranks[c], rank))
      for (int l = layout.bounds[c]; l < layout.bounds[c + 1]; ++l)
        layers.push_back(l);
  return layers;
}

namespace {
/// Chooses what a rank recomputes.
class RankMemory {
public:
  RankMemory(const CostModel &costs, const Judgement &judgement, int rank,
             std::vector<int> layers)
      : costs(costs), judgement(judgement), rank(rank),
        layers(std::move(layers)) {
    bytes.fixed = costs.model.fixedBytes;
    for (int l : this->layers) {
      const LayerCosts &layer = costs.model.layers[l];
      bytes.weights += layer.weightBytes;
      bytes.gradients += layer.gradientBytes;
      bytes.optimizer += layer.optimizerBytes;
      bytes.transient = std::max(bytes.transient, layer.transientBytes);
      kept += keptBytes(layer, false, splits(judgement));
    }
  }

  StaticBytes bytes;
  int64_t kept = 0; ///< Of one micro-batch.

  void recompute(int l, std::vector<bool> &recomputed) {
    const LayerCosts &layer = costs.model.layers[l];
    recomputed[l] = true;
    bool split = splits(judgement);
    kept -= keptBytes(layer, false, split) - keptBytes(layer, true, split);
    // The residuals live again while its backward runs.
    bytes.transient =
        std::max(bytes.transient, layer.transientBytes + layer.residualBytes);
  }

  /// Bytes that `multiple` micro-batches lack; none where negative.
  int64_t lack(double multiple) const {
    int64_t memory = costs.memory(rank);
    return memory == 0 || judgement.ignoresMemory
               ? std::numeric_limits<int64_t>::min()
               : bytes.total() + int64_t(kept * multiple) - memory;
  }

  /// Recomputes the layers that save most per second, until `multiple`
  /// micro-batches fit.
  void makeRoom(double multiple, std::vector<bool> &recomputed) {
    bool split = splits(judgement);
    std::vector<int> order;
    for (int l : layers)
      if (canRecompute(costs.model.layers[l], split))
        order.push_back(l);
    auto saved = [&](int l) {
      const LayerCosts &layer = costs.model.layers[l];
      return double(keptBytes(layer, false, split) -
                    keptBytes(layer, true, split));
    };
    std::vector<double> gain(costs.layerCount(), 0);
    for (int l : order)
      gain[l] = saved(l) / std::max(1e-12, costs.layerForward(rank, l));
    llvm::sort(order, [&](int a, int b) {
      return gain[a] != gain[b] ? gain[a] > gain[b] : a < b;
    });
    for (int l : order) {
      if (lack(multiple) <= 0)
        return;
      recompute(l, recomputed);
    }
  }

private:
  const CostModel &costs;
  const Judgement &judgement;
  int rank;
  std::vector<int> layers;
};
} // namespace

LayoutMemory mgq::planner::layoutMemory(const CostModel &costs,
                                        const Layout &layout,
                                        const Judgement &judgement) {
  LayoutMemory result;
  result.recomputed.assign(costs.layerCount(), false);
  bool limited = !judgement.ignoresMemory && costs.hasLimits();
  double largest = 0;
  for (int rank = 0; rank < costs.stages(); ++rank) {
    std::vector<int> layers = layersOf(layout, rank);
    RankMemory memory(costs, judgement, rank, layers);
    if (judgement.recompute == RecomputeKind::Full) {
      for (int l : layers)
        if (canRecompute(costs.model.layers[l], splits(judgement)))
          memory.recompute(l, result.recomputed);
    } else if (judgement.recompute == RecomputeKind::Auto && limited) {
      double wanted = judgement.inFlight.empty() ? 1 : judgement.inFlight[rank];
      if (memory.lack(std::max(1.0, wanted)) > 0)
        memory.makeRoom(std::max(1.0, wanted), result.recomputed);
    }
    result.ranks.push_back(memory.bytes);
    if (!limited)
      continue;
    int64_t lack = memory.lack(1);
    double share = double(lack) / std::max<int64_t>(1, costs.memory(rank));
    if (lack > 0 && share > largest) {
      largest = share;
      result.lack = lack;
      result.lackingRank = rank;
    }
    int64_t free = costs.memory(rank) - memory.bytes.total();
    result.limits.push_back(costs.memory(rank) > 0
                                ? std::max<int64_t>(0, free)
                                : std::numeric_limits<int64_t>::max() / 4);
  }
  return result;
}

ScheduleProblem mgq::planner::layoutProblem(const CostModel &costs,
                                            const Layout &layout,
                                            const LayoutMemory &memory,
                                            const Judgement &judgement) {
  ScheduleProblem problem;
  problem.ranks = costs.stages();
  problem.microBatches = judgement.microBatches;
  problem.memoryLimit = memory.limits;
  problem.overlapsSteps = judgement.overlapsSteps;
  bool split = splits(judgement);
  for (int c = 0; c < layout.chunks(); ++c) {
    int first = layout.bounds[c], end = layout.bounds[c + 1];
    ChunkCosts chunk;
    chunk.ranks = layout.ranks[c];
    chunk.hasBackward = costs.hasBackward(first, end);
    for (int rank : chunk.ranks)
      chunk.forward = std::max(chunk.forward, costs.forward(rank, first, end));
    int rank = chunk.ranks.front();
    chunk.backward = costs.backward(rank, first, end);
    chunk.weight = costs.weight(rank, first, end);
    for (int l = first; l < end; ++l) {
      const LayerCosts &layer = costs.model.layers[l];
      if (memory.recomputed[l])
        chunk.backward += costs.layerForward(rank, l);
      chunk.residualBytes += keptBytes(layer, memory.recomputed[l], split);
      if (layer.hasBackward)
        chunk.weightResidualBytes += layer.weightResidualBytes;
    }
    chunk.hasWeight = split && chunk.weight > 0;
    if (!chunk.hasWeight) {
      chunk.backward += chunk.weight;
      chunk.weight = 0;
      chunk.weightResidualBytes = 0;
    }
    // A spread chunk sends from whichever rank ran it.
    if (c + 1 < layout.chunks())
      for (int from : chunk.ranks)
        for (int to : layout.ranks[c + 1])
          chunk.send = std::max(chunk.send, costs.sendSeconds(end, from, to));
    if (c > 0) {
      chunk.sendsGradient = chunk.hasBackward && costs.gradientCrosses(first);
      if (chunk.sendsGradient)
        chunk.sendBack =
            costs.sendBackSeconds(first, rank, layout.ranks[c - 1].front());
    }
    problem.chunks.push_back(std::move(chunk));
  }
  return problem;
}

int64_t mgq::planner::microBatchBytes(const ScheduleProblem &problem,
                                      int rank) {
  int64_t bytes = 0;
  for (const ChunkCosts &chunk : problem.chunks)
    if (chunk.hasBackward && chunk.ranks.front() == rank)
      bytes += chunk.residualBytes;
  return bytes;
}
