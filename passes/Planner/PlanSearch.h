//===- PlanSearch.h - Candidates of plans -----------------------*- C++ -*-===//
#ifndef MGQ_PASSES_PLANNER_PLANSEARCH_H
#define MGQ_PASSES_PLANNER_PLANSEARCH_H

#include "passes/Planner/Partition.h"

#include <memory>
#include <utility>

namespace mgq::planner {

/// Candidates that are refined in depth, and scheduled in full.
inline constexpr int kFinalists = 5;

/// A candidate on its devices.
struct Entry {
  std::shared_ptr<CostModel> costs;
  Candidate candidate;
  /// Seconds per micro-batch of all replicas: comparable between numbers of
  /// replicas.
  double score = 0;
  int number = 0; ///< Simpler candidates come first.
};

/// What follows the last task of a step, of the slowest rank.
struct StepEnd {
  double sync = 0;       ///< Of the gradients' all-reduce, what nothing hides.
  double hiddenSync = 0; ///< What runs beside computation, on that rank.
  double optimizer = 0;

  double seconds() const { return sync + optimizer; }
};

/// With a simulation of the step: a rank that ends early exchanges its
/// gradients while others still compute.
StepEnd stepEnd(const CostModel &costs, const Layout &layout,
                const Judgement &judgement,
                const Simulation *simulation = nullptr);

/// Bytes that a rank sends to other replicas in a step.
int64_t syncBytes(const CostModel &costs, const Layout &layout,
                  const SyncPolicy &sync, int rank);

/// Share of weight gradients, which can run apart, in backward work.
double weightWork(const ModelCosts &model);

/// A share up to this is that of adapters.
inline constexpr double kAdapters = 0.05;

/// Candidates of a request, the best first. `shapes`: stages and replicas.
std::vector<Entry> searchPlans(const ModelCosts &model, const Cluster &cluster,
                               const PlanRequest &request,
                               llvm::ArrayRef<std::pair<int, int>> shapes);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_PLANSEARCH_H
