//===- Partition.h - Where to cut a model -----------------------*- C++ -*-===//
#ifndef MGQ_PASSES_PLANNER_PARTITION_H
#define MGQ_PASSES_PLANNER_PARTITION_H

#include "passes/Planner/Layout.h"
#include "passes/Planner/ListScheduler.h"

#include <limits>
#include <vector>

namespace mgq::planner {

/// Bounds of `chunks` runs of equally many layers; the first `layers` mod
/// `chunks` have one more (DeepSpeed's partition_uniform).
std::vector<int> uniformBounds(int layers, int chunks);

/// Bounds whose heaviest run is as light as can be; each run takes what fits
/// below that weight (DeepSpeed's partition_balanced). No run is empty.
std::vector<int> balancedBounds(llvm::ArrayRef<double> weights, int chunks);

/// Weights of costs in a search for cuts.
struct CutWeights {
  double backward = 1; ///< Of backward and weight seconds.
  double edges = 1;    ///< Of the seconds of messages.
  /// Backward is charged as twice forward, for every layer.
  bool blind = false;
};

/// Bounds by an exact dynamic programme. One chunk a rank: the slowest is as
/// fast as can be, then the others are as even as can be, stages fit their
/// devices, recomputation charged. Several chunks a rank: loads of ranks as
/// even as can be. Empty where nothing fits.
std::vector<int> programmedBounds(const CostModel &costs, const Layout &layout,
                                  const Judgement &judgement,
                                  const CutWeights &weights);

/// Layouts without enough memory are rated by what they lack, above all others.
inline constexpr double kLacking = 1e30;

/// A layout with what a search knows of it.
struct Candidate {
  Layout layout;
  Judgement judgement;
  ListSettings settings;
  double seconds = 0; ///< Of a step; huge where memory lacks.
};

/// Micro-batches that a search simulates: enough to show both ends of a step.
int simulatedMicroBatches(const CostModel &costs, const Judgement &judgement);

/// Sets `seconds`, simulating `judgement.microBatches` or, where those are
/// many, the first of them, the others at the pace of the busiest rank.
/// Infinite where that is sure to be above `cutoff`.
void rate(const CostModel &costs, Candidate &candidate,
          double cutoff = std::numeric_limits<double>::infinity());

/// Chooses the settings of the list scheduler for a candidate's bounds.
void tune(const CostModel &costs, Candidate &candidate);

/// Moves cuts by single layers, alone and together, while that shortens the
/// simulated step; rates at most `evaluations` layouts.
void refineCuts(const CostModel &costs, Candidate &candidate, int evaluations);

/// Refines cuts and settings by turns, from several settings; rates about as
/// many layouts.
void refineDeeply(const CostModel &costs, Candidate &candidate,
                  int evaluations);

/// Layouts for devices: which device runs which stage. The first is the order
/// of the cluster.
std::vector<StageDevices> placements(const ModelCosts &model,
                                     const Cluster &cluster, int stages,
                                     int replicas);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_PARTITION_H
