//===- PartitionBounds.cpp - Cuts by counts, weights, costs ---------------===//

#include "passes/Planner/Partition.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <algorithm>
#include <cassert>
#include <limits>

using namespace mgq::planner;

static constexpr double kNever = std::numeric_limits<double>::infinity();

std::vector<int> mgq::planner::uniformBounds(int layers, int chunks) {
  std::vector<int> bounds(1, 0);
  for (int c = 0; c < chunks; ++c)
    bounds.push_back(bounds.back() + layers / chunks +
                     (c < layers % chunks ? 1 : 0));
  return bounds;
}

/// Fills runs up to `heaviest`; leaves a layer for each later run. False if
/// the last run is too heavy.
static bool fill(llvm::ArrayRef<double> weights, int chunks, double heaviest,
                 std::vector<int> &bounds) {
  int n = weights.size();
  bounds.assign(1, 0);
  for (int c = 0; c < chunks; ++c) {
    int end = bounds.back();
    double sum = 0;
    int latest = n - (chunks - 1 - c);
    while (end < latest &&
           (end == bounds.back() || sum + weights[end] <= heaviest))
      sum += weights[end++];
    if (sum > heaviest)
      return false;
    bounds.push_back(end);
  }
  return bounds.back() == n;
}

std::vector<int> mgq::planner::balancedBounds(llvm::ArrayRef<double> weights,
                                              int chunks) {
  // The heaviest run of an optimum is a sum of some run; bisect over sums up
  // to rounding.
  double sum = 0, most = 0;
  for (double weight : weights) {
    sum += weight;
    most = std::max(most, weight);
  }
  double low = most, high = sum;
  std::vector<int> bounds;
  for (int step = 0; step < 60; ++step) {
    double middle = (low + high) / 2;
    (fill(weights, chunks, middle, bounds) ? high : low) = middle;
  }
  bool found = fill(weights, chunks, high * (1 + 1e-12), bounds);
  assert(found && "all in one run always fits");
  (void)found;
  return bounds;
}

namespace {
/// Cost of layers [first, end) as chunk `chunk`; infinite if they do not fit.
using ChunkCost = llvm::function_ref<double(int chunk, int first, int end)>;

/// The programme: cuts [begin, n) into `chunks` runs.
class Programme {
public:
  Programme(int begin, int n, int chunks, ChunkCost cost)
      : begin(begin), n(n), chunks(chunks),
        table((chunks) * (n + 1) * (n + 1), kNever) {
    for (int c = 0; c < chunks; ++c)
      for (int i = begin + c; i <= n - (chunks - c); ++i)
        for (int j = i + 1; j <= n - (chunks - 1 - c); ++j)
          at(c, i, j) = cost(c, i, j);
  }

  double &at(int c, int i, int j) {
    return table[(c * (n + 1) + i) * (n + 1) + j];
  }

  /// The least cost of the most costly run; infinite: none fits.
  double leastMost() {
    std::vector<double> best(n + 1, kNever);
    best[begin] = 0;
    for (int c = 0; c < chunks; ++c) {
      std::vector<double> next(n + 1, kNever);
      for (int i = begin + c; i <= n - (chunks - c); ++i)
        for (int j = i + 1; best[i] < kNever && j <= n - (chunks - 1 - c); ++j)
          next[j] = std::min(next[j], std::max(best[i], at(c, i, j)));
      best = std::move(next);
    }
    return best[n];
  }

  /// Runs nearest to targets, by squares, none above `most`.
  std::vector<int> nearest(llvm::ArrayRef<double> targets, double most) {
    std::vector<double> best(n + 1, kNever);
    std::vector<std::vector<int>> from(chunks, std::vector<int>(n + 1, -1));
    best[begin] = 0;
    for (int c = 0; c < chunks; ++c) {
      std::vector<double> next(n + 1, kNever);
      for (int i = begin + c; i <= n - (chunks - c); ++i)
        for (int j = i + 1; best[i] < kNever && j <= n - (chunks - 1 - c);
             ++j) {
          double cost = at(c, i, j);
          if (cost > most || cost == kNever)
            continue;
          double off = cost - targets[c];
          double sum = best[i] + off * off;
          // Of equal ones the longest late runs, whatever rounding says.
          if (next[j] == kNever || sum < next[j] * (1 - 1e-12)) {
            next[j] = sum;
            from[c][j] = i;
          }
        }
      best = std::move(next);
    }
    if (best[n] == kNever)
      return {};
    std::vector<int> bounds(1, n);
    for (int c = chunks - 1; c >= 0; --c)
      bounds.push_back(from[c][bounds.back()]);
    std::reverse(bounds.begin(), bounds.end());
    return bounds;
  }

private:
  int begin, n, chunks;
  std::vector<double> table;
};

/// Seconds of a chunk, and whether it fits.
class ChunkModel {
public:
  ChunkModel(const CostModel &costs, const Layout &layout,
             const Judgement &judgement, const CutWeights &weights)
      : costs(costs), layout(layout), judgement(judgement), weights(weights),
        perRank(costs.stages(), 0) {
    for (const std::vector<int> &ranks : layout.ranks)
      if (ranks.size() == 1)
        ++perRank[ranks.front()];
    int n = costs.layerCount();
    largest.assign(n * (n + 1), 0);
    for (int i = 0; i < n; ++i)
      for (int j = i + 1; j <= n; ++j)
        largest[i * (n + 1) + j] =
            std::max(j > i + 1 ? largest[i * (n + 1) + j - 1] : 0,
                     costs.model.layers[j - 1].transientBytes);
    if (layout.isSpread())
      prefixBytes = costs.persistent(0, costs.prefixEnd());
    savings.assign(n + 1, 0);
    for (int l = 0; l < n; ++l) {
      const LayerCosts &layer = costs.model.layers[l];
      savings[l + 1] =
          savings[l] +
          (layer.hasBackward
               ? std::max<int64_t>(0, layer.residualBytes - layer.inputBytes)
               : 0);
    }
    for (int rank = 0; rank < costs.stages(); ++rank) {
      actives.emplace_back(n + 1, 0);
      for (int l = 0; l < n; ++l)
        actives[rank][l + 1] =
            actives[rank][l] +
            (savings[l + 1] > savings[l] ? costs.layerForward(rank, l) : 0);
    }
  }

  /// Without messages, on the first device.
  double work(int first, int end) const {
    double forward = costs.forward(0, first, end);
    return weights.blind
               ? 3 * forward
               : forward + weights.backward * (costs.backward(0, first, end) +
                                               costs.weight(0, first, end));
  }

  double seconds(int chunk, int first, int end) const {
    int rank = layout.ranks[chunk].front();
    double forward = costs.forward(rank, first, end);
    double backward =
        costs.backward(rank, first, end) + costs.weight(rank, first, end);
    if (weights.blind)
      return 3 * forward;
    double edges = 0;
    if (chunk > 0) {
      int before = layout.ranks[chunk - 1].back();
      edges += costs.sendBackSeconds(first, rank, before);
    }
    if (chunk + 1 < layout.chunks())
      edges += costs.sendSeconds(end, rank, layout.ranks[chunk + 1].front());
    double again = 0;
    if (!fits(chunk, first, end, again))
      return kNever;
    return forward + weights.backward * (backward + again) +
           weights.edges * edges;
  }

  /// Bytes that a rank lacks under bounds, of those it needs; 0: it fits.
  double lack(llvm::ArrayRef<int> bounds, int spread, int rank) const {
    int64_t memory = costs.memory(rank);
    if (memory == 0 || judgement.ignoresMemory)
      return 0;
    double inFlight = judgement.inFlight.empty()
                          ? 1
                          : std::max(1.0, judgement.inFlight[rank]);
    double needed = double(prefixBytes) + costs.model.fixedBytes;
    int64_t running = 0;
    for (size_t c = 0; c + 1 < bounds.size(); ++c) {
      int first = bounds[c], end = bounds[c + 1];
      if (layout.ranks[c + spread].front() != rank)
        continue;
      int64_t kept = costs.residuals(first, end);
      if (judgement.recompute != RecomputeKind::None)
        kept -= savings[end] - savings[first];
      needed += double(costs.persistent(first, end)) + inFlight * kept;
      running =
          std::max(running, largest[first * (costs.layerCount() + 1) + end]);
    }
    return std::max(0.0, (needed + running - memory) / (needed + running));
  }

private:
  /// Whether the chunk fits its share of the device, and the seconds that
  /// recomputation takes to get there, by the mean over its layers.
  bool fits(int chunk, int first, int end, double &again) const {
    int rank = layout.ranks[chunk].front();
    int64_t memory = costs.memory(rank);
    bool full = judgement.recompute == RecomputeKind::Full;
    int64_t saving = savings[end] - savings[first];
    double active = actives[rank][end] - actives[rank][first];
    if (full)
      again = active;
    if (memory == 0 || judgement.ignoresMemory || perRank[rank] > 1)
      return true;
    double inFlight = judgement.inFlight.empty()
                          ? 1
                          : std::max(1.0, judgement.inFlight[rank]);
    int64_t kept = costs.residuals(first, end) - (full ? saving : 0);
    double needed = double(costs.persistent(first, end)) + prefixBytes +
                    largest[first * (costs.layerCount() + 1) + end] +
                    costs.model.fixedBytes + inFlight * kept;
    double lack = needed - memory;
    if (lack <= 0)
      return true;
    if (judgement.recompute != RecomputeKind::Auto || lack > inFlight * saving)
      return false;
    again = active * lack / (inFlight * saving);
    return true;
  }

  const CostModel &costs;
  const Layout &layout;
  const Judgement &judgement;
  const CutWeights &weights;
  std::vector<int> perRank;
  std::vector<int64_t> largest; ///< Transient bytes, by first and end.
  std::vector<int64_t> savings; ///< By recomputation, sums.
  std::vector<std::vector<double>> actives; ///< What that takes, by rank.
  int64_t prefixBytes = 0;
};
} // namespace

std::vector<int> mgq::planner::programmedBounds(const CostModel &costs,
                                                const Layout &layout,
                                                const Judgement &judgement,
                                                const CutWeights &weights) {
  int n = costs.layerCount(), spread = layout.isSpread() ? 1 : 0;
  int begin = spread ? costs.prefixEnd() : 0;
  int chunks = layout.chunks() - spread;
  if (n - begin < chunks)
    return {};
  ChunkModel model(costs, layout, judgement, weights);
  Programme programme(begin, n, chunks, [&](int c, int i, int j) {
    return model.seconds(c + spread, i, j);
  });

  std::vector<int> bounds;
  std::vector<double> targets(chunks, 0);
  if (chunks <= costs.stages()) {
    double most = programme.leastMost();
    if (most == kNever)
      return {};
    bounds = programme.nearest(targets, most * (1 + 1e-9));
  } else {
    // Even chunks first; then targets move until ranks carry even loads.
    double total = model.work(begin, n);
    std::fill(targets.begin(), targets.end(), total / chunks);
    double least = kNever, leastLack = kNever;
    for (int round = 0; round < 8; ++round) {
      std::vector<int> tried = programme.nearest(targets, kNever);
      if (tried.empty())
        break;
      std::vector<double> load(costs.stages(), 0), lacks(costs.stages(), 0);
      std::vector<int> count(costs.stages(), 0);
      for (int c = 0; c < chunks; ++c) {
        int rank = layout.ranks[c + spread].front();
        load[rank] += programme.at(c, tried[c], tried[c + 1]);
        ++count[rank];
      }
      for (int rank = 0; rank < costs.stages(); ++rank)
        lacks[rank] = model.lack(tried, spread, rank);
      double most = *std::max_element(load.begin(), load.end());
      double lack = *std::max_element(lacks.begin(), lacks.end());
      if (lack < leastLack || (lack == leastLack && most < least)) {
        leastLack = lack;
        least = most;
        bounds = tried;
      }
      // Ranks without room give work away, others take what is above the mean.
      double mean = total / costs.stages();
      for (int c = 0; c < chunks; ++c) {
        int rank = layout.ranks[c + spread].front();
        double off = lacks[rank] > 0 ? -1.5 * lacks[rank] * load[rank]
                                     : mean - load[rank];
        targets[c] += off / count[rank];
      }
    }
  }
  if (spread && !bounds.empty())
    bounds.insert(bounds.begin(), 0);
  return bounds;
}
