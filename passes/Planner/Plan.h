//===- Plan.h - Cuts a model over devices -----------------------*- C++ -*-===//
//
// From the costs of layers to a plan: where to cut, on which device each part
// goes, in which order a step runs, what that takes. Nothing here knows IR.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PLANNER_PLAN_H
#define MGQ_PASSES_PLANNER_PLAN_H

#include "passes/Planner/Cluster.h"
#include "passes/Planner/Schedule.h"

#include <optional>

namespace mgq::planner {

/// One layer, as far as plans depend on it. Work is of one micro-batch. The
/// layers of a model stand in the order of its forward pass.
struct LayerCosts {
  std::string name;
  double forwardFlops = 0;
  double backwardFlops = 0; ///< Data gradients.
  double weightFlops = 0;   ///< Weight gradients.
  /// Memory traffic of the same three, bytes.
  double forwardTraffic = 0, backwardTraffic = 0, weightTraffic = 0;
  bool usesBf16 = false; ///< Its products run at the device's bf16 rate.
  /// Measured seconds (--profile); they win over FLOPs and traffic. Without
  /// `weightSeconds` those of backward are data and weight gradients in one,
  /// and shared out as the model has it.
  std::optional<double> forwardSeconds, backwardSeconds, weightSeconds;

  int64_t parameters = 0;          ///< Elements.
  int64_t trainableParameters = 0; ///< Elements.
  int64_t weightBytes = 0;         ///< Resident, in every orientation.
  int64_t gradientBytes = 0;       ///< Accumulators.
  int64_t optimizerBytes = 0;      ///< Adam's states and masters.
  int64_t residualBytes = 0;       ///< Kept from forward to backward.
  int64_t weightResidualBytes = 0; ///< Of what backward leaves, until weight.
  int64_t inputBytes = 0;     ///< Activations it reads: kept if recomputed.
  int64_t transientBytes = 0; ///< Values and scratch while it runs.
  bool hasBackward = false;   ///< Data or weight gradients.
  bool outputNeedsGradient = false; ///< Its result depends on something
                                    ///< trainable and reaches the loss.
};

/// Values alive between layer i and layer i + 1: what an edge there carries.
struct CutCosts {
  int64_t activationBytes = 0;
  int64_t gradientBytes = 0;
};

struct ModelCosts {
  std::vector<LayerCosts> layers;
  std::vector<CutCosts> cuts; ///< layers.size() - 1.
  int64_t fixedBytes = 0;     ///< On every rank: inputs, cells.
};

enum class PartitionKind { FrozenAware, Uniform, Parameters, Flops };
enum class RecomputeKind { None, Auto, Full };

/// How gradients are summed over replicas.
struct SyncPolicy {
  double bytesRatio = 1; ///< Bytes on the wire over those of f32.
  /// Parts are sent while the last backward runs, and while the frozen prefix
  /// of the next step does.
  bool overlaps = false;
};

struct PlanRequest {
  int stages = 0;   ///< 0: chosen, with replicas, from `ranks`.
  int replicas = 0; ///< 0: chosen.
  int ranks = 1;
  int microBatches = 1;                 ///< Per replica.
  std::optional<ScheduleKind> schedule; ///< None: the best.
  int chunksPerRank = 0;                ///< Interleaved; 0: chosen.
  PartitionKind partition = PartitionKind::FrozenAware;
  /// First layers of stages 1, 2, ... (of chunks, if interleaved); empty:
  /// chosen.
  std::vector<int> cuts;
  RecomputeKind recompute = RecomputeKind::Auto;
  /// Weight gradients can run apart from data gradients.
  bool splitsWeight = false;
  /// A frozen prefix may be spread over ranks.
  bool mayReplicatePrefix = true;
  /// It must be, where there are several stages.
  bool mustReplicatePrefix = false;
  /// Ranks go on with the next step alone (ScheduleProblem::overlapsSteps).
  bool overlapsSteps = false;
  SyncPolicy sync;
};

/// A chunk of a plan.
struct PlannedChunk {
  int firstLayer = 0, endLayer = 0; ///< [first, end).
  std::vector<int> ranks;           ///< As in ChunkCosts.
};

struct RankPlan {
  int device = 0; ///< Of the first replica.
  int64_t weightBytes = 0, gradientBytes = 0, optimizerBytes = 0,
          residualBytes = 0, transientBytes = 0, fixedBytes = 0;
  double forwardSeconds = 0, backwardSeconds = 0; ///< Of a step.
  /// Of a step. Gradients: of activations, and what replicas exchange.
  int64_t activationBytesSent = 0, gradientBytesSent = 0;

  int64_t memoryBytes() const {
    return weightBytes + gradientBytes + optimizerBytes + residualBytes +
           transientBytes + fixedBytes;
  }
};

/// What a comparison shows of a plan.
struct Alternative {
  std::string name; ///< "uniform", "parameters", "flops", "data_parallel".
  bool fits = true;
  std::string verdict; ///< "needs 61.2 GiB on rank 0, device has 24 GiB".
  /// What the alternative is; nothing where not even that could be made.
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  int stages = 0, replicas = 0, microBatches = 0;
  std::vector<int> cuts; ///< First layers of chunks 1, 2, ...
  double stepSeconds = 0, bubble = 0;
  int64_t largestMemoryBytes = 0;
};

struct Plan {
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  int stages = 1, replicas = 1, microBatches = 1;
  std::vector<PlannedChunk> chunks;
  std::vector<bool> recomputed; ///< By layer.
  std::vector<RankPlan> ranks;  ///< By stage.
  /// Devices by replica, then stage.
  std::vector<std::vector<int>> devices;
  ScheduleProblem problem; ///< Costs of the chunks on their devices.
  Orders orders;
  Simulation simulation;
  double syncSeconds = 0;         ///< All-reduce of gradients: what it adds.
  double hiddenSyncSeconds = 0;   ///< And what runs beside computation.
  double optimizerSeconds = 0;    ///< Of the slowest rank.
  double stepSeconds = 0;         ///< Makespan, added sync and optimizer.
  std::vector<std::string> notes; ///< "zero_bubble cannot help: ...".
  std::vector<Alternative> alternatives;
};

/// Finds the plan. Error in the user's words if none fits: which stage needs
/// how much, what would make it fit.
llvm::Expected<Plan> makePlan(const ModelCosts &model, const Cluster &cluster,
                              const PlanRequest &request);

/// Fills plan.alternatives: the other partitions, and data parallelism.
void addAlternatives(Plan &plan, const ModelCosts &model,
                     const Cluster &cluster, const PlanRequest &request);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_PLAN_H
