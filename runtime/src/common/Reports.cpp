//===- Reports.cpp - Measurements a run writes at its end -----------------===//

#include "runtime/src/common/Files.h"
#include "runtime/src/common/Trainer.h"
#include <nlohmann/json.hpp>

using namespace mgq::rt;
using nlohmann::ordered_json;

void Trainer::writeSummary() {
  double samples = static_cast<double>(times.steps) * program.micro_batches *
                   program.micro_batch_size;
  const mgq_memory &memory = program.memory;
  ordered_json rank = {
      {"planned_bytes", program.arena_bytes},
      {"peak_bytes", arena.peakBytes()},
      {"memory",
       {{"weights", memory.weights},
        {"gradients", memory.gradients},
        {"optimizer", memory.optimizer},
        {"inputs", memory.inputs},
        {"activations", memory.activations},
        {"scratch", memory.scratch}}},
      {"bytes_sent", {{"activation", 0}, {"gradient", 0}, {"parameter", 0}}}};
  ordered_json json = {
      {"steps", state.step},
      {"steps_run", times.steps},
      {"samples_per_second", times.total > 0 ? samples / times.total : 0.0},
      {"step_seconds", times.median()},
      {"predicted_step_seconds", nullptr},
      // One rank waits for nobody and sends nothing.
      {"bubble", 0.0},
      {"predicted_bubble", nullptr},
      {"hidden_communication", nullptr},
      {"step_flops", program.step_flops},
      {"empty_steps", state.emptySteps},
      {"nonfinite_steps", state.nonfiniteSteps},
      {"threads", pool.threads()},
      {"ranks", ordered_json::array({rank})}};
  if (lastEvaluation) {
    json["eval_loss"] = lastEvaluation->loss;
    for (size_t i = 0; i < lastEvaluation->scalars.size(); ++i)
      json[std::string("eval_") +
           program.outputs[runner.scalarOutputs()[i]].name] =
          lastEvaluation->scalars[i];
  }
  writeText(options.summary, json.dump(2) + "\n");
}

/// Mean seconds per micro-batch of each layer, without the first step.
void Trainer::writeProfile() {
  ordered_json layers = ordered_json::array();
  auto runs = static_cast<double>(std::max<int64_t>(1, executor.forwardRuns()));
  for (int32_t i = 0; i < program.layer_count; ++i)
    layers.push_back(
        {{"name", program.layers[i].name},
         {"forward_seconds", executor.layerTimes()[i].forward / runs},
         {"backward_seconds", executor.layerTimes()[i].backward / runs},
         {"forward_flops", program.layers[i].forward_flops},
         {"backward_flops", program.layers[i].backward_flops}});
  ordered_json rank = {{"rank", 0}, {"layers", std::move(layers)}};
  ordered_json json = {{"micro_batch_size", program.micro_batch_size},
                       {"threads", pool.threads()},
                       {"step_seconds", times.median()},
                       {"ranks", ordered_json::array({std::move(rank)})}};
  writeText(options.profile, json.dump(2) + "\n");
}
