//===- Report.cpp - Plans as text -----------------------------------------===//

#include "passes/Planner/Report.h"
#include "passes/Planner/PlanText.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <cmath>

using namespace mgq::planner;
using llvm::Twine;

namespace {
/// Lines up columns; the first is left-aligned, others as wanted.
class Table {
public:
  explicit Table(std::vector<std::string> titles) { add(std::move(titles)); }
  void add(std::vector<std::string> cells) { rows.push_back(std::move(cells)); }

  void print(llvm::raw_ostream &os, llvm::StringRef leftAligned) const {
    std::vector<size_t> widths(rows.front().size(), 0);
    for (const std::vector<std::string> &row : rows)
      for (size_t c = 0; c < row.size(); ++c)
        widths[c] = std::max(widths[c], row[c].size());
    for (const std::vector<std::string> &row : rows) {
      std::string line;
      for (size_t c = 0; c < row.size(); ++c) {
        std::string blanks(widths[c] - row[c].size(), ' ');
        bool left = leftAligned[c] == 'l';
        line += "  " + (left ? row[c] + blanks : blanks + row[c]);
      }
      os << llvm::StringRef(line).rtrim() << '\n';
    }
  }

private:
  std::vector<std::vector<std::string>> rows;
};

/// What a layer shows; rows of like layers become one.
struct LayerRow {
  std::string stage, gradients, need, recomputed;
  int64_t parameters, trainable;
  double work;

  bool operator==(const LayerRow &other) const {
    return stage == other.stage && gradients == other.gradients &&
           need == other.need && recomputed == other.recomputed &&
           parameters == other.parameters && trainable == other.trainable &&
           std::fabs(work - other.work) <= 1e-9 * std::fabs(work);
  }
};
} // namespace

static std::string gradientWork(const LayerCosts &layer) {
  if (!layer.hasBackward)
    return "none";
  bool weight = layer.weightFlops > 0 || layer.trainableParameters > 0;
  bool data = layer.backwardFlops > 0 || !weight;
  return data && weight ? "data+weight" : weight ? "weight" : "data";
}

/// "2", or "all" for a chunk that is spread.
static std::string stageText(const PlannedChunk &chunk) {
  return chunk.ranks.size() > 1 ? "all" : std::to_string(chunk.ranks.front());
}

/// How many rows from `first` on repeat, and how often: the repetition that
/// covers most, if it is worth it.
static std::pair<size_t, size_t> repetition(llvm::ArrayRef<LayerRow> rows,
                                            size_t first) {
  constexpr size_t kLongest = 4;
  std::pair<size_t, size_t> best(1, 1);
  for (size_t period = 1; period <= kLongest; ++period) {
    size_t end = first + period;
    while (end < rows.size() && rows[end] == rows[end - period])
      ++end;
    size_t times = (end - first) / period;
    // Rows saved.
    if (end <= rows.size() && times > 2 &&
        (times - 1) * period > (best.second - 1) * best.first)
      best = {period, times};
  }
  return best;
}

static void printLayers(llvm::raw_ostream &os, const Plan &plan,
                        const ModelCosts &model) {
  constexpr int kBar = 20;
  std::vector<LayerRow> rows;
  double most = 0;
  for (size_t c = 0; c < plan.chunks.size(); ++c)
    for (int l = plan.chunks[c].firstLayer; l < plan.chunks[c].endLayer; ++l) {
      const LayerCosts &layer = model.layers[l];
      double work = layer.forwardFlops;
      if (layer.hasBackward)
        work += layer.backwardFlops + layer.weightFlops;
      if (plan.recomputed[l])
        work += layer.forwardFlops;
      rows.push_back({stageText(plan.chunks[c]), gradientWork(layer),
                      layer.outputNeedsGradient ? "yes" : "no",
                      plan.recomputed[l] ? "yes" : "", layer.parameters,
                      layer.trainableParameters, work});
      most = std::max(most, work);
    }
  Table table({"layer", "parameters", "trainable", "gradients", "activation",
               "recomputed", "stage", "FLOP", "work"});
  // Repetitions become one: "llm.0.mlp .. llm.9.mlp (10 layers)".
  for (size_t l = 0; l < rows.size();) {
    auto [period, times] = repetition(rows, l);
    for (size_t k = 0; k < period; ++k) {
      const LayerRow &row = rows[l + k];
      std::string name = model.layers[l + k].name;
      if (times > 1)
        name += " .. " + model.layers[l + k + (times - 1) * period].name +
                " (" + std::to_string(times) + " layers)";
      int bar = most > 0 ? int(std::lround(kBar * row.work / most)) : 0;
      table.add({name, countText(double(row.parameters)),
                 countText(double(row.trainable)), row.gradients, row.need,
                 row.recomputed, row.stage, countText(row.work),
                 std::string(bar, '#')});
    }
    l += period * times;
  }
  os << "layers (\"activation\": its gradient is needed; FLOP and work of one "
        "micro-batch, a row of several shows one of them)\n";
  table.print(os, "lrrlllrrl");
}

static void printRanks(llvm::raw_ostream &os, const Plan &plan,
                       const Cluster &cluster) {
  Table table({"stage", "device", "forward", "backward", "memory", "weights",
               "gradients", "optimizer", "activations", "running", "inputs",
               "sends activations", "sends gradients"});
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan &rank = plan.ranks[r];
    const Device &device = cluster.devices[rank.device];
    std::string memory = byteText(rank.memoryBytes());
    if (device.memoryBytes > 0)
      memory += " of " + byteText(device.memoryBytes);
    std::string name = device.name;
    if (plan.replicas > 1)
      name += " and " + std::to_string(plan.replicas - 1) + " more";
    table.add({std::to_string(r), name, secondText(rank.forwardSeconds),
               secondText(rank.backwardSeconds), memory,
               byteText(rank.weightBytes), byteText(rank.gradientBytes),
               byteText(rank.optimizerBytes), byteText(rank.residualBytes),
               byteText(rank.transientBytes), byteText(rank.fixedBytes),
               byteText(rank.activationBytesSent),
               byteText(rank.gradientBytesSent)});
  }
  os << "ranks (of a step; \"running\": values and scratch of the layer that "
        "runs)\n";
  table.print(os, "llrrrrrrrrrrr");
}

static void printAlternatives(llvm::raw_ostream &os, const Plan &plan) {
  if (plan.alternatives.empty())
    return;
  Table table({"alternative", "step", "bubble", "memory", "verdict"});
  int64_t largest = 0;
  for (const RankPlan &rank : plan.ranks)
    largest = std::max(largest, rank.memoryBytes());
  table.add({"this plan", secondText(plan.stepSeconds),
             percent(plan.simulation.bubble), byteText(largest), "fits"});
  for (const Alternative &other : plan.alternatives) {
    bool known = other.stages > 0;
    table.add(
        {other.name, known ? secondText(other.stepSeconds) : "-",
         known ? percent(other.bubble) : "-",
         other.largestMemoryBytes ? byteText(other.largestMemoryBytes) : "-",
         other.verdict});
  }
  os << "alternatives (the same samples per step; memory of the fullest rank; "
        "what does not fit is timed as if it did)\n";
  table.print(os, "lrrrl");
}

void mgq::planner::printPlan(llvm::raw_ostream &os, const Plan &plan,
                             const ModelCosts &model, const Cluster &cluster) {
  auto plural = [](int count, llvm::StringRef what) {
    return (Twine(count) + " " + what + (count == 1 ? "" : "s")).str();
  };
  os << "plan: " << scheduleName(plan.schedule) << ", "
     << plural(plan.stages, "stage") << ", " << plural(plan.replicas, "replica")
     << ", " << plural(plan.chunks.size(), "chunk") << ", " << plan.microBatches
     << " micro-batch" << (plan.microBatches == 1 ? "" : "es") << '\n';
  os << "step " << secondText(plan.stepSeconds) << ": schedule "
     << secondText(plan.simulation.makespan) << " (bubble "
     << percent(plan.simulation.bubble) << "), gradient sync "
     << secondText(plan.syncSeconds)
     << (plan.hiddenSyncSeconds > 0
             ? " (" + secondText(plan.hiddenSyncSeconds) + " more hidden)"
             : std::string())
     << ", optimizer " << secondText(plan.optimizerSeconds) << "\n\n";
  printLayers(os, plan, model);
  os << '\n';
  printRanks(os, plan, cluster);
  os << '\n';
  printAlternatives(os, plan);
  for (const std::string &note : plan.notes)
    os << "note: " << note << '\n';
}
