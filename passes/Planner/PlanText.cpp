//===- PlanText.cpp - Numbers and faults in the user's words --------------===//

#include "passes/Planner/PlanText.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <cmath>

using namespace mgq::planner;
using llvm::Twine;

std::string mgq::planner::percent(double share) {
  return llvm::formatv("{0:F1} %", 100 * share).str();
}

/// A value in the largest unit of which it has one, with three digits.
static std::string scaled(double value, double step,
                          llvm::ArrayRef<const char *> units) {
  size_t unit = 0;
  while (unit + 1 < units.size() && std::fabs(value) >= step) {
    value /= step;
    ++unit;
  }
  if (unit == 0 && value == std::floor(value))
    return llvm::formatv("{0:F0}{1}", value, units[unit]).str();
  double size = std::fabs(value);
  const char *format = size >= 100 ? "%.0f" : size >= 10 ? "%.1f" : "%.2f";
  char text[32];
  snprintf(text, sizeof text, format, value);
  return std::string(text) + units[unit];
}

std::string mgq::planner::byteText(int64_t bytes) {
  return scaled(double(bytes), 1024, {" B", " KiB", " MiB", " GiB", " TiB"});
}

std::string mgq::planner::memoryText(const Device &device) {
  std::string text = byteText(device.memoryBytes);
  if (device.reservedBytes > 0)
    text += " (" + byteText(device.memoryBytes + device.reservedBytes) +
            " less " + byteText(device.reservedBytes) + " for libraries)";
  return text;
}

std::string mgq::planner::secondText(double seconds) {
  if (seconds == 0)
    return "0 s";
  if (std::fabs(seconds) >= 1)
    return scaled(seconds, 1000, {" s", "e3 s"});
  return scaled(seconds * 1e9, 1000, {" ns", " us", " ms", " s"});
}

std::string mgq::planner::countText(double count) {
  return scaled(count, 1000, {"", " K", " M", " G", " T"});
}

std::string mgq::planner::lackText(const CostModel &costs, const Layout &layout,
                                   const LayoutMemory &memory,
                                   const Judgement &judgement) {
  int rank = memory.lackingRank;
  const StaticBytes &bytes = memory.ranks[rank];
  int64_t needed = costs.memory(rank) + memory.lack;
  int first = costs.layerCount(), end = 0;
  for (int c = 0; c < layout.chunks(); ++c)
    if (llvm::is_contained(layout.ranks[c], rank)) {
      first = std::min(first, layout.bounds[c]);
      end = std::max(end, layout.bounds[c + 1]);
    }
  const Device &device =
      costs.cluster.devices[costs.stageDevices.devices.front()[rank]];
  std::string advice = "more ranks";
  if (costs.stageDevices.replicas() > 1)
    advice = "fewer replicas, more stages";
  if (judgement.recompute == RecomputeKind::None &&
      bytes.total() < costs.memory(rank))
    advice = "--recompute=auto";
  return ("no plan fits: stage " + Twine(rank) + " (" +
          costs.model.layers[first].name + " to " +
          costs.model.layers[end - 1].name + ") needs " + byteText(needed) +
          " at least (weights " + byteText(bytes.weights) + ", gradients " +
          byteText(bytes.gradients) + ", optimizer " +
          byteText(bytes.optimizer) + ", activations of one micro-batch " +
          byteText(needed - bytes.total()) + ", running layer " +
          byteText(bytes.transient) + ", inputs " + byteText(bytes.fixed) +
          "), " + device.name + " has " + memoryText(device) +
          "; what would help: " + advice +
          ", a smaller micro-batch, a lower precision, fewer trainable "
          "parameters")
      .str();
}
