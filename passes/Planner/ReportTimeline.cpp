//===- ReportTimeline.cpp - Schedules as pictures -------------------------===//

#include "passes/Planner/PlanText.h"
#include "passes/Planner/Report.h"

#include "llvm/Support/FormatVariadic.h"

#include <algorithm>

using namespace mgq::planner;
using llvm::formatv;

// Pixels.
static constexpr double kLeft = 64, kTop = 56, kRow = 26, kBox = 22;
static constexpr double kNarrowest = 900, kWidest = 6000;
/// Below this width a number does not fit its box.
static constexpr double kLegible = 13;

/// Text inside XML.
static std::string escaped(llvm::StringRef text) {
  std::string result;
  for (char c : text)
    switch (c) {
    case '<':
      result += "&lt;";
      break;
    case '>':
      result += "&gt;";
      break;
    case '&':
      result += "&amp;";
      break;
    case '"':
      result += "&quot;";
      break;
    default:
      result += c;
    }
  return result;
}

static llvm::StringRef styleOf(const Task &task, const Plan &plan) {
  switch (task.kind) {
  case TaskKind::Forward:
    return plan.problem.chunks[task.chunk].hasBackward ? "f" : "p";
  case TaskKind::Backward:
    return "b";
  case TaskKind::Weight:
    return "w";
  }
  llvm_unreachable("unknown kind of task");
}

static void writeLegend(llvm::raw_ostream &os) {
  const std::pair<const char *, const char *> entries[] = {
      {"p", "forward of a frozen prefix"},
      {"f", "forward"},
      {"b", "backward"},
      {"w", "weight gradients"}};
  double x = kLeft;
  for (auto [style, text] : entries) {
    os << formatv("<rect class=\"{0}\" x=\"{1:F1}\" y=\"30\" width=\"14\" "
                  "height=\"14\"/><text x=\"{2:F1}\" y=\"41\">{3}</text>\n",
                  style, x, x + 19, text);
    x += 40 + 6.5 * llvm::StringRef(text).size();
  }
  os << formatv(
      "<text x=\"{0:F1}\" y=\"41\">numbers are micro-batches; darker: "
      "later chunks of a rank</text>\n",
      x);
}

void mgq::planner::writeTimeline(llvm::raw_ostream &os, const Plan &plan,
                                 const ModelCosts &model) {
  double total = plan.simulation.makespan;
  size_t busiest = 1;
  for (const RankTimes &rank : plan.simulation.ranks)
    busiest = std::max(busiest, rank.timeline.size());
  double width = std::clamp(busiest * 18.0, kNarrowest, kWidest);
  double scale = total > 0 ? width / total : 0;
  double height = kTop + kRow * plan.stages + 30;

  os << formatv("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:F0}\" "
                "height=\"{1:F0}\" font-family=\"sans-serif\" "
                "font-size=\"11\">\n",
                kLeft + width + 20, height);
  os << "<style>rect{stroke:#fff;stroke-width:.5}.p{fill:#b9c3cf}.f{fill:#6fa8"
        "dc}.b{fill:#7cbf7c}.w{fill:#f2b04d}.n{text-anchor:middle;font-size:9px"
        ";pointer-events:none}</style>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  os << formatv("<text x=\"{0:F1}\" y=\"18\" font-size=\"13\">{1}: {2} stages, "
                "{3} micro-batches, {4}, bubble {5}</text>\n",
                kLeft, scheduleName(plan.schedule), plan.stages,
                plan.microBatches, secondText(total),
                percent(plan.simulation.bubble));
  writeLegend(os);

  for (size_t r = 0; r < plan.simulation.ranks.size(); ++r) {
    double y = kTop + kRow * r;
    os << formatv("<text x=\"6\" y=\"{0:F1}\">stage {1}</text>\n", y + 15, r);
    // Opacity tells the chunks of a rank apart.
    std::vector<int> chunks;
    for (size_t c = 0; c < plan.chunks.size(); ++c)
      if (plan.chunks[c].ranks.size() == 1 &&
          plan.chunks[c].ranks.front() == int(r))
        chunks.push_back(c);
    for (const TimedTask &timed : plan.simulation.ranks[r].timeline) {
      const Task &task = timed.task;
      double x = kLeft + timed.begin * scale;
      double wide = (timed.end - timed.begin) * scale;
      size_t depth =
          std::find(chunks.begin(), chunks.end(), task.chunk) - chunks.begin();
      double opacity = chunks.size() > 1 && depth < chunks.size()
                           ? 0.55 + 0.45 * depth / (chunks.size() - 1)
                           : 1;
      const PlannedChunk &chunk = plan.chunks[task.chunk];
      os << formatv("<rect class=\"{0}\" x=\"{1:F2}\" y=\"{2:F1}\" "
                    "width=\"{3:F2}\" height=\"{4:F0}\" opacity=\"{5:F2}\">"
                    "<title>micro-batch {6}, {7} to {8}, {9} to {10}</title>"
                    "</rect>",
                    styleOf(task, plan), x, y, wide, kBox, opacity,
                    task.microBatch,
                    escaped(model.layers[chunk.firstLayer].name),
                    escaped(model.layers[chunk.endLayer - 1].name),
                    secondText(timed.begin), secondText(timed.end));
      if (wide >= kLegible)
        os << formatv("<text class=\"n\" x=\"{0:F2}\" y=\"{1:F1}\">{2}</text>",
                      x + wide / 2, y + 14, task.microBatch);
      os << '\n';
    }
  }
  os << formatv("<text x=\"{0:F1}\" y=\"{1:F1}\">0</text><text x=\"{2:F1}\" "
                "y=\"{1:F1}\" text-anchor=\"end\">{3}</text>\n</svg>\n",
                kLeft, height - 12, kLeft + width, secondText(total));
}
