//===- PlanModel.h - A module as the planner sees it ------------*- C++ -*-===//
#ifndef MGQ_PASSES_PIPE_PLANMODEL_H
#define MGQ_PASSES_PIPE_PLANMODEL_H

#include "passes/Pipe/Passes.h"
#include "passes/Planner/Plan.h"

namespace mgq::pipe {

/// What a user asks of the planner; names as in mgq-compile --help.
struct PlanOptions {
  int64_t stages = 0;   ///< 0: chosen.
  int64_t replicas = 0; ///< 0: chosen.
  int64_t ranks = 1;
  int64_t microBatches = 1;
  int64_t chunks = 0; ///< A rank, for interleaved; 0: chosen.
  std::string schedule = "auto";
  std::string partition = "frozen_aware";
  std::string recompute = "auto";
  std::string frozen = "auto";
  /// With replicas, layers below all that trains are a chunk of their own.
  bool splitPrefix = false;
  /// And each of them one; without replicas, too.
  bool splitLayers = false;
  std::string precision = "f32";
  std::string target = "cpu";
  std::string compression = "none"; ///< Of gradients, between replicas.
  bool overlap = true;              ///< Gradients travel while ranks compute.
  std::string cluster;              ///< File; empty: this machine.
  std::string profile;              ///< File; empty: none.
  /// Of each device's memory that plans leave free: what an earlier plan
  /// lacked.
  int64_t reserveBytes = 0;
  std::vector<std::string> cuts; ///< First layers of later stages.
};

/// A layer of the model: its forward call in @train, and what its gradient
/// takes.
struct ModelLayer {
  mlir::func::CallOp forward;
  llvm::SmallVector<mlir::func::CallOp> backward; ///< Sums included.
  llvm::SmallVector<mlir::func::CallOp> weight;
};

/// The layers of @train in order. Calls on inputs alone are none: chunks repeat
/// them.
llvm::SmallVector<ModelLayer> collectLayers(mlir::ModuleOp module);

/// The layer instance of a call.
llvm::StringRef instanceOf(mlir::func::CallOp call);

/// FLOPs of one run of a layer function, before or after `kernels`.
int64_t flopsOf(mlir::ModuleOp module, llvm::StringRef callee);

/// Costs of a module's layers. For the CPU frozen weights take the room of the
/// panels that kernels read; else that of their elements.
planner::ModelCosts measureModel(mlir::ModuleOp module,
                                 llvm::ArrayRef<ModelLayer> layers,
                                 const PlanOptions &options);

/// A plan and what it was made of.
struct PlannedModel {
  planner::ModelCosts costs;
  planner::Cluster cluster;
  planner::PlanRequest request;
  planner::Plan plan;
  /// Of each stage: what compressed gradients keep, in the optimizer's memory.
  std::vector<int64_t> compressionBytes;
};

/// Measures the model and plans it. Fails with a message.
mlir::FailureOr<PlannedModel> planModel(mlir::ModuleOp module,
                                        const PlanOptions &options);

/// The same plan, with the layers below all that trains in a chunk of their
/// own: the chunk in which they end becomes two on the same rank.
/// With `eachLayer` each of those layers is a chunk.
planner::Plan splitPrefix(planner::Plan plan, const planner::ModelCosts &costs,
                          bool eachLayer);

/// The pass pipe-partition-stages. `planned`, if not null, gets what the
/// planner answered; it must outlive the pass.
std::unique_ptr<mlir::Pass>
createPartitionStagesPass(const PlanOptions &options, PlannedModel *planned);

} // namespace mgq::pipe

#endif // MGQ_PASSES_PIPE_PLANMODEL_H
