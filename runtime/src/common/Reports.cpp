//===- Reports.cpp - Measurements a run writes at its end -----------------===//

#include "runtime/src/common/Chief.h"
#include "runtime/src/common/Files.h"
#include "runtime/src/common/RankReport.h"
#include <algorithm>
#include <nlohmann/json.hpp>

using namespace mgq::rt;
using nlohmann::ordered_json;

std::string mgq::rt::summaryOf(const RankView &view, int64_t peakBytes,
                               const SentBytes &sent,
                               const CommunicationTime &communication,
                               double dataSeconds, int threads,
                               int64_t cacheHits) {
  const mgq_rank &largest = largestTables(view.program, view.stage);
  const mgq_memory &memory = largest.memory;
  ordered_json bytes;
  for (int32_t traffic :
       {MGQ_TRAFFIC_ACTIVATION, MGQ_TRAFFIC_GRADIENT, MGQ_TRAFFIC_PARAMETER})
    bytes[trafficName(traffic)] = sent.of[traffic];
  ordered_json json = {{"rank", view.index},
                       {"stage", view.stage},
                       {"replica", view.replica},
                       {"threads", threads},
                       {"planned_bytes", largest.arena_bytes},
                       {"peak_bytes", peakBytes},
                       {"memory",
                        {{"weights", memory.weights},
                         {"gradients", memory.gradients},
                         {"optimizer", memory.optimizer},
                         {"inputs", memory.inputs},
                         {"activations", memory.activations},
                         {"scratch", memory.scratch}}},
                       {"bytes_sent", bytes},
                       {"communication_seconds", communication.total},
                       {"hidden_seconds", communication.hidden},
                       {"largest_hidden_seconds", communication.largest},
                       {"data_seconds", dataSeconds},
                       {"step_flops", view.tables.step_flops}};
  if (cacheHits >= 0)
    json["cached_micro_batches"] = cacheHits;
  return json.dump();
}

/// The local chunk that runs a layer, -1: none. Of one rank: chunk 0, which has
/// all layers, those without calls included.
static std::vector<int32_t> chunksOfLayers(const RankView &view) {
  std::vector<int32_t> chunks(view.program.layer_count,
                              rankCount(view.program) == 1 ? 0 : -1);
  for (int32_t c = 0; c < view.tables.chunk_count; ++c) {
    const mgq_chunk &chunk = view.tables.chunks[c];
    for (const mgq_sequence *sequence :
         {&chunk.forward, &chunk.backward, &chunk.weight})
      for (int32_t i = 0; i < sequence->call_count; ++i)
        if (sequence->calls[i].layer >= 0)
          chunks[sequence->calls[i].layer] = c;
  }
  return chunks;
}

std::string mgq::rt::profileOf(const RankView &view, const Executor &executor,
                               int threads) {
  ordered_json layers = ordered_json::array();
  std::vector<int32_t> chunks = chunksOfLayers(view);
  for (int32_t i = 0; i < view.program.layer_count; ++i) {
    if (chunks[i] < 0)
      continue;
    const mgq_layer &layer = view.program.layers[i];
    const LayerTime &time = executor.layerTimes()[i];
    auto runs = static_cast<double>(
        std::max<int64_t>(1, executor.forwardRuns(chunks[i])));
    layers.push_back({{"name", layer.name},
                      {"forward_seconds", time.forward / runs},
                      {"backward_seconds", time.backward / runs},
                      {"weight_seconds", time.weight / runs},
                      {"forward_flops", layer.forward_flops},
                      {"backward_flops", layer.backward_flops}});
  }
  ordered_json json = {{"rank", view.index},
                       {"stage", view.stage},
                       {"threads", threads},
                       {"layers", std::move(layers)}};
  return json.dump();
}

static ordered_json parseRanks(const std::vector<std::string> &ranks) {
  ordered_json json = ordered_json::array();
  for (const std::string &rank : ranks)
    json.push_back(ordered_json::parse(rank));
  return json;
}

/// A number, or null if it is negative: none was made.
static ordered_json numberOrNull(double number) {
  return number < 0 ? ordered_json() : ordered_json(number);
}

/// What the ranks' seconds are of their communication, or null without any.
static ordered_json shareOf(const ordered_json &ranks, const char *part) {
  double sum = 0, all = 0;
  for (const ordered_json &rank : ranks) {
    sum += rank[part].get<double>();
    all += rank["communication_seconds"].get<double>();
  }
  return all > 0 ? ordered_json(sum / all) : ordered_json();
}

void Chief::writeSummary(const mgq_program &last, const TrainerState &state,
                         const std::vector<std::string> &texts) const {
  ordered_json ranks = parseRanks(texts);
  double samples = static_cast<double>(seconds.count() * samplesPerStep(last));
  int64_t flops = 0;
  for (const ordered_json &rank : ranks)
    flops += rank["step_flops"].get<int64_t>();
  bool measured = rankCount(program) == 1 || bubbles.count() > 0;
  ordered_json json = {
      {"steps", state.step},
      {"steps_run", seconds.count()},
      {"samples_per_second", seconds.sum() > 0 ? samples / seconds.sum() : 0.0},
      {"step_seconds", seconds.median()},
      {"predicted_step_seconds", numberOrNull(last.predicted_step_seconds)},
      {"bubble", measured ? ordered_json(bubble()) : ordered_json()},
      {"predicted_bubble", numberOrNull(last.predicted_bubble)},
      {"hidden_communication", shareOf(ranks, "hidden_seconds")},
      {"largest_hidden_communication",
       shareOf(ranks, "largest_hidden_seconds")},
      {"schedule", program.schedule ? program.schedule : ""},
      {"stages", program.stages},
      {"replicas", program.replicas},
      {"micro_batches", last.micro_batches},
      {"step_flops", flops},
      {"empty_steps", state.emptySteps},
      {"nonfinite_steps", state.nonfiniteSteps},
      {"threads", ranks[0]["threads"]},
      {"ranks", ranks}};
  if (lastEvaluation) {
    json["eval_loss"] = lastEvaluation->loss;
    for (size_t i = 0; i < lastEvaluation->scalars.size(); ++i)
      json[std::string("eval_") + program.outputs[scalarOutputs[i]].name] =
          lastEvaluation->scalars[i];
  }
  writeText(options.summary, json.dump(2) + "\n");
}

void Chief::writeProfile(const mgq_program &last,
                         const std::vector<std::string> &texts) const {
  ordered_json ranks = parseRanks(texts);
  ordered_json json = {{"micro_batch_size", last.micro_batch_size},
                       {"threads", ranks[0]["threads"]},
                       {"step_seconds", seconds.median()},
                       {"ranks", ranks}};
  writeText(options.profile, json.dump(2) + "\n");
}
