//===- ReportJson.cpp - Plans as JSON -------------------------------------===//

#include "passes/Planner/Report.h"

using namespace mgq::planner;
using llvm::json::Array;
using llvm::json::Object;

static Object memoryJson(const RankPlan &rank) {
  return Object{
      {"total", rank.memoryBytes()},       {"weights", rank.weightBytes},
      {"gradients", rank.gradientBytes},   {"optimizer", rank.optimizerBytes},
      {"activations", rank.residualBytes}, {"transient", rank.transientBytes},
      {"fixed", rank.fixedBytes}};
}

static Array layersJson(const Plan &plan, const ModelCosts &model) {
  Array layers;
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const PlannedChunk &chunk = plan.chunks[c];
    for (int l = chunk.firstLayer; l < chunk.endLayer; ++l) {
      const LayerCosts &layer = model.layers[l];
      Object entry{
          {"name", layer.name},
          {"stage", chunk.ranks.front()},
          {"chunk", int64_t(c)},
          {"parameters", layer.parameters},
          {"trainable_parameters", layer.trainableParameters},
          {"forward_flops", layer.forwardFlops},
          {"backward_flops",
           layer.hasBackward ? layer.backwardFlops + layer.weightFlops : 0.0},
          {"data_gradient_flops",
           layer.hasBackward ? layer.backwardFlops : 0.0},
          {"weight_gradient_flops",
           layer.hasBackward ? layer.weightFlops : 0.0},
          {"activation_needs_gradient", layer.outputNeedsGradient},
          {"recomputed", bool(plan.recomputed[l])}};
      // A spread layer is on all of these stages.
      if (chunk.ranks.size() > 1)
        entry["stages"] = Array(chunk.ranks);
      layers.push_back(std::move(entry));
    }
  }
  return layers;
}

/// Names of the layers before which the model is cut.
static Array cutsJson(llvm::ArrayRef<int> cuts, const ModelCosts &model) {
  Array names;
  for (int cut : cuts)
    names.push_back(model.layers[cut].name);
  return names;
}

static Object alternativeJson(const Alternative &other,
                              const ModelCosts &model) {
  Object entry{
      {"name", other.name}, {"fits", other.fits}, {"verdict", other.verdict}};
  if (other.stages == 0)
    return entry;
  entry["schedule"] = scheduleName(other.schedule);
  entry["stages"] = other.stages;
  entry["replicas"] = other.replicas;
  entry["micro_batches"] = other.microBatches;
  entry["step_seconds"] = other.stepSeconds;
  entry["bubble"] = other.bubble;
  entry["cuts"] = cutsJson(other.cuts, model);
  entry["memory_bytes"] = other.largestMemoryBytes;
  return entry;
}

llvm::json::Value mgq::planner::planJson(const Plan &plan,
                                         const ModelCosts &model,
                                         const Cluster &cluster) {
  std::vector<int> cuts;
  for (size_t c = 1; c < plan.chunks.size(); ++c)
    cuts.push_back(plan.chunks[c].firstLayer);

  Array ranks, chunks;
  for (int replica = 0; replica < plan.replicas; ++replica)
    for (size_t stage = 0; stage < plan.ranks.size(); ++stage) {
      const RankPlan &rank = plan.ranks[stage];
      const Device &device = cluster.devices[plan.devices[replica][stage]];
      ranks.push_back(
          Object{{"stage", int64_t(stage)},
                 {"replica", replica},
                 {"device", device.name},
                 {"device_memory_bytes", device.memoryBytes},
                 {"device_reserved_bytes", device.reservedBytes},
                 {"memory_bytes", memoryJson(rank)},
                 {"forward_seconds", rank.forwardSeconds},
                 {"backward_seconds", rank.backwardSeconds},
                 {"bytes_sent", Object{{"activation", rank.activationBytesSent},
                                       {"gradient", rank.gradientBytesSent}}}});
    }
  for (const PlannedChunk &chunk : plan.chunks)
    chunks.push_back(
        Object{{"first_layer", model.layers[chunk.firstLayer].name},
               {"layers", chunk.endLayer - chunk.firstLayer},
               {"stages", Array(chunk.ranks)}});
  Object alternatives;
  for (const Alternative &other : plan.alternatives)
    alternatives[other.name] = alternativeJson(other, model);

  return Object{{"schedule", scheduleName(plan.schedule)},
                {"stages", plan.stages},
                {"replicas", plan.replicas},
                {"micro_batches", plan.microBatches},
                {"step_seconds", plan.stepSeconds},
                {"schedule_seconds", plan.simulation.makespan},
                {"sync_seconds", plan.syncSeconds},
                {"hidden_sync_seconds", plan.hiddenSyncSeconds},
                {"optimizer_seconds", plan.optimizerSeconds},
                {"bubble", plan.simulation.bubble},
                {"cuts", cutsJson(cuts, model)},
                {"chunks", std::move(chunks)},
                {"layers", layersJson(plan, model)},
                {"ranks", std::move(ranks)},
                {"notes", Array(plan.notes)},
                {"alternatives", std::move(alternatives)}};
}
