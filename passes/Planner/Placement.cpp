//===- Placement.cpp - Which device runs which stage ----------------------===//

#include "passes/Planner/Partition.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>

using namespace mgq::planner;

/// Larger tables are not worth their time; fixed orders are tried then.
static constexpr int kMostStates = 600;

/// The same kind of device on the same node.
static bool alike(const Device &a, const Device &b) {
  return a.node == b.node && a.f32Flops == b.f32Flops &&
         a.bf16Flops == b.bf16Flops && a.bytesPerSecond == b.bytesPerSecond &&
         a.memoryBytes == b.memoryBytes;
}

/// Devices that are alike, in the order of the cluster.
static std::vector<std::vector<int>> classesOf(const Cluster &cluster) {
  std::vector<std::vector<int>> classes;
  for (int d = 0; d < int(cluster.devices.size()); ++d) {
    auto found = llvm::find_if(classes, [&](const std::vector<int> &members) {
      return alike(cluster.devices[members.front()], cluster.devices[d]);
    });
    if (found == classes.end())
      classes.push_back({d});
    else
      found->push_back(d);
  }
  return classes;
}

namespace {
/// An exact dynamic programme over cuts and classes of devices: states are how
/// many devices of each class are used, the class of the last, and the layers
/// behind. It minimises the slowest stage, then the seconds of messages.
class OrderProgramme {
public:
  OrderProgramme(const ModelCosts &model, const Cluster &cluster,
                 const std::vector<std::vector<int>> &classes, int stages)
      : classes(classes), stages(stages),
        costs(model, cluster, representatives(classes)) {
    size = classes.size();
    for (const std::vector<int> &members : classes)
      size *= members.size() + 1;
  }

  int states() const { return size; }

  /// Devices by stage; empty: no order fits.
  std::vector<int> run() {
    int n = costs.layerCount(), kinds = classes.size();
    cells.assign(size_t(size) * (n + 1), {});
    std::vector<int> used(kinds, 0);
    // Codes rise with each count, so that a state comes after those it needs.
    for (int code = 0; code < size / kinds; ++code) {
      decode(code, used);
      int count = 0;
      for (int number : used)
        count += number;
      if (count > stages)
        continue;
      for (int kind = 0; kind < kinds; ++kind)
        if (used[kind] > 0)
          fill(code, used, kind, count);
    }
    Cell best;
    int bestCode = -1, bestKind = -1;
    for (int code = 0; code < size / kinds; ++code) {
      decode(code, used);
      int count = 0;
      for (int number : used)
        count += number;
      for (int kind = 0; count == stages && kind < kinds; ++kind)
        if (cell(code, kind, n).better(best)) {
          best = cell(code, kind, n);
          bestCode = code;
          bestKind = kind;
        }
    }
    if (bestCode < 0)
      return {};
    return trace(bestCode, bestKind);
  }

private:
  struct Cell {
    double most = std::numeric_limits<double>::infinity(), edges = 0;
    int from = 0, kind = -1; ///< Cut and class before.

    bool better(const Cell &other) const {
      return most < other.most * (1 - 1e-9) ||
             (most <= other.most && edges < other.edges * (1 - 1e-9));
    }
  };

  static StageDevices
  representatives(const std::vector<std::vector<int>> &classes) {
    StageDevices result;
    result.devices.emplace_back();
    for (const std::vector<int> &members : classes)
      result.devices.back().push_back(members.front());
    return result;
  }

  Cell &cell(int code, int kind, int end) {
    return cells[(size_t(code) * classes.size() + kind) *
                     (costs.layerCount() + 1) +
                 end];
  }

  void decode(int code, std::vector<int> &used) const {
    for (size_t k = 0; k < classes.size(); ++k) {
      used[k] = code % (classes[k].size() + 1);
      code /= classes[k].size() + 1;
    }
  }
  /// Of the state with one device of a class less.
  int before(int code, int kind) const {
    int unit = 1;
    for (int k = 0; k < kind; ++k)
      unit *= classes[k].size() + 1;
    return code - unit;
  }

  /// Link between devices of two classes; of one, between two of its members.
  double edge(int end, int from, int to) const {
    const std::vector<int> &a = classes[from], &b = classes[to];
    int other = from == to && b.size() > 1 ? b[1] : b.front();
    if (a.front() == other)
      return 0;
    const CutCosts &cut = costs.model.cuts[end - 1];
    const Cluster &cluster = costs.cluster;
    return cluster.link(a.front(), other).seconds(cut.activationBytes) +
           (costs.gradientCrosses(end)
                ? cluster.link(other, a.front()).seconds(cut.gradientBytes)
                : 0);
  }

  /// One micro-batch does; what more takes, searches with this order find out.
  bool fits(int kind, int first, int end) const {
    int64_t memory = costs.memory(kind);
    return memory == 0 || costs.persistent(first, end) +
                                  costs.model.fixedBytes +
                                  costs.residuals(first, end) <=
                              memory;
  }

  void fill(int code, const std::vector<int> &used, int kind, int count) {
    int n = costs.layerCount(), kinds = classes.size();
    int source = before(code, kind);
    for (int end = count; end <= n; ++end) {
      Cell &result = cell(code, kind, end);
      int lowest = count == 1 ? 0 : count - 1;
      int highest = count == 1 ? 0 : end - 1;
      for (int first = lowest; first <= highest; ++first) {
        if (!fits(kind, first, end))
          continue;
        double seconds = costs.forward(kind, first, end) +
                         costs.backward(kind, first, end) +
                         costs.weight(kind, first, end);
        if (count == 1) {
          Cell next{seconds, 0, 0, -1};
          if (next.better(result))
            result = next;
          continue;
        }
        for (int last = 0; last < kinds; ++last) {
          if (last == kind ? used[kind] < 2 : used[last] == 0)
            continue;
          const Cell &prior = cell(source, last, first);
          double hop = edge(first, last, kind);
          Cell next{std::max({prior.most, seconds, hop}), prior.edges + hop,
                    first, last};
          if (next.better(result))
            result = next;
        }
      }
    }
  }

  std::vector<int> trace(int code, int kind) {
    std::vector<int> order;
    int end = costs.layerCount();
    while (kind >= 0) {
      order.push_back(kind);
      Cell at = cell(code, kind, end);
      code = before(code, kind);
      end = at.from;
      kind = at.kind;
    }
    std::reverse(order.begin(), order.end());
    // Devices of a class in the order of the cluster.
    std::vector<size_t> next(classes.size(), 0);
    std::vector<int> devices;
    for (int k : order)
      devices.push_back(classes[k][next[k]++]);
    return devices;
  }

  const std::vector<std::vector<int>> &classes;
  int stages, size;
  CostModel costs;
  std::vector<Cell> cells;
};
} // namespace

std::vector<StageDevices> mgq::planner::placements(const ModelCosts &model,
                                                   const Cluster &cluster,
                                                   int stages, int replicas) {
  std::vector<StageDevices> result;
  auto add = [&](StageDevices devices) {
    for (const StageDevices &other : result)
      if (other.devices == devices.devices)
        return;
    result.push_back(std::move(devices));
  };
  // Replicas one after the other, and replicas of a stage side by side.
  StageDevices byReplica, byStage;
  for (int r = 0; r < replicas; ++r) {
    byReplica.devices.emplace_back();
    byStage.devices.emplace_back();
    for (int s = 0; s < stages; ++s) {
      byReplica.devices.back().push_back(r * stages + s);
      byStage.devices.back().push_back(s * replicas + r);
    }
  }
  add(byReplica);
  std::vector<std::vector<int>> classes = classesOf(cluster);
  if (classes.size() == 1)
    return result;
  add(byStage);
  if (replicas > 1)
    return result;

  OrderProgramme programme(model, cluster, classes, stages);
  if (stages <= int(model.layers.size()) && programme.states() <= kMostStates) {
    std::vector<int> order = programme.run();
    if (!order.empty())
      add({{order}});
  }
  // Largest and fastest devices first, then last, node by node.
  std::vector<int> sorted;
  for (int d = 0; d < int(cluster.devices.size()); ++d)
    sorted.push_back(d);
  llvm::sort(sorted, [&](int a, int b) {
    int64_t left = cluster.devices[a].memoryBytes;
    int64_t right = cluster.devices[b].memoryBytes;
    return left != right ? left > right : a < b;
  });
  std::vector<int> first(sorted.begin(), sorted.begin() + stages);
  add({{first}});
  std::reverse(first.begin(), first.end());
  add({{first}});
  return result;
}
