//===- Layout.h - A partition, and what it takes ----------------*- C++ -*-===//
#ifndef MGQ_PASSES_PLANNER_LAYOUT_H
#define MGQ_PASSES_PLANNER_LAYOUT_H

#include "passes/Planner/CostModel.h"

namespace mgq::planner {

/// Chunks of layers on ranks.
struct Layout {
  std::vector<int> bounds;             ///< First layer of each chunk, then the
                                       ///< number of layers.
  std::vector<std::vector<int>> ranks; ///< By chunk, as in ChunkCosts.

  int chunks() const { return ranks.size(); }
  bool isSpread() const { return ranks.front().size() > 1; }
  /// Chunks c of `chunks` on rank c mod `stages`; with `spread` one more in
  /// front, on all ranks. Bounds are left empty.
  static Layout roundRobin(int stages, int chunks, bool spread);
};

/// How plans of a request are judged.
struct Judgement {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  int microBatches = 1;
  RecomputeKind recompute = RecomputeKind::Auto;
  bool splitsWeight = false;
  bool overlapsSteps = false;
  bool ignoresMemory = false;
  SyncPolicy sync;
  /// Micro-batches in flight, as a multiple of what one holds, for which
  /// memory is made by recomputation; by rank, 1 where empty.
  std::vector<double> inFlight;
};

/// The memory side of a layout.
struct LayoutMemory {
  std::vector<StaticBytes> ranks;
  std::vector<int64_t> limits; ///< For residuals, by rank; empty: none.
  std::vector<bool> recomputed;
  /// Bytes that are missing on the rank that misses most, and that rank. A
  /// layout with a lack can not run.
  int64_t lack = 0;
  int lackingRank = -1;
};

LayoutMemory layoutMemory(const CostModel &costs, const Layout &layout,
                          const Judgement &judgement);

/// Costs of the chunks on their devices.
ScheduleProblem layoutProblem(const CostModel &costs, const Layout &layout,
                              const LayoutMemory &memory,
                              const Judgement &judgement);

/// Residual bytes of one micro-batch on a rank.
int64_t microBatchBytes(const ScheduleProblem &problem, int rank);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_LAYOUT_H
