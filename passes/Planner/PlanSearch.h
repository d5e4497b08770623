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

/// Gradient sync and optimizer, of the slowest rank.
void addSteps(const CostModel &costs, const Layout &layout, double &sync,
              double &optimizer);

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
