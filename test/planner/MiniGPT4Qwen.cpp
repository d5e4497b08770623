//===- MiniGPT4Qwen.cpp - Costs of the reference model --------------------===//

#include "test/planner/MiniGPT4Qwen.h"

using namespace mgq::planner;

static LayerCosts layer(std::string name, double forward, double backward) {
  LayerCosts costs;
  costs.name = std::move(name);
  costs.forwardFlops = forward;
  costs.backwardFlops = backward;
  costs.hasBackward = backward > 0;
  return costs;
}

/// Products of a Qwen block on one token, GFLOP: q, k, v, o and three matrices
/// of the MLP; a multiply-add is 2.
static constexpr double kAttention = 2e-9 * 4 * 5120 * 5120;
static constexpr double kMLP = 2e-9 * 3 * 5120 * 13696;

/// Scores and their product with the values, both over the whole length.
static double scores(int length) { return 2e-9 * 2 * 5120 * length * length; }

/// Attention's share of a block's work.
static double attentionShare(int length) {
  double attention = length * kAttention + scores(length);
  return attention / (attention + length * kMLP);
}

double MiniGPT4Qwen::blockForward() const {
  // The table's figures: the products above to 0.02 %.
  return length == 256 ? 162.7 : length == 512 ? 328.1 : 1016.5;
}

static void addBytes(const MiniGPT4Qwen &config, ModelCosts &model) {
  int64_t width = 5120, tokens = config.length;
  for (LayerCosts &costs : model.layers) {
    llvm::StringRef name = costs.name;
    int64_t hidden = tokens * width * 2;
    if (name.starts_with("llm.")) {
      bool whole = !config.halves;
      costs.parameters = whole                   ? 315228160
                         : name.ends_with("mlp") ? 210370560
                                                 : 104857600;
      costs.residualBytes = whole ? 14 * hidden : 7 * hidden;
      costs.inputBytes = hidden;
      costs.transientBytes = 6 * hidden;
      if (config.lora) {
        costs.trainableParameters = 16 * 4 * 2 * width;
        costs.weightFlops = 0.001 * costs.backwardFlops;
      }
    } else if (name == "head") {
      costs.parameters = 778567680;
      costs.residualBytes = costs.inputBytes = hidden;
      costs.transientBytes = tokens * 152064 * 8;
    } else if (name == "projection") {
      costs.parameters = 778567680; // With the word embedding.
      costs.residualBytes = costs.inputBytes = 32 * 768 * 4;
      costs.transientBytes = 2 * hidden;
      costs.weightFlops = costs.backwardFlops;
      costs.backwardFlops = 0;
    } else {
      costs.parameters = 1000000000 / 40;
      costs.transientBytes = 257 * 6144 * 4;
    }
    costs.weightBytes = 2 * costs.parameters;
    costs.gradientBytes = 4 * costs.trainableParameters;
    costs.optimizerBytes = 12 * costs.trainableParameters;
  }
  for (size_t l = 0; l + 1 < model.layers.size(); ++l) {
    bool language = model.layers[l + 1].outputNeedsGradient &&
                    model.layers[l + 1].name != "projection";
    model.cuts[l].activationBytes =
        language ? tokens * width * 2 : 257 * 1408 * 2;
    model.cuts[l].gradientBytes = language ? tokens * width * 2 : 0;
  }
}

ModelCosts MiniGPT4Qwen::model() const {
  ModelCosts model;
  std::vector<LayerCosts> &layers = model.layers;
  double vit = 520.3 * images, former = 12.6 * images,
         projection = 0.25 * images;
  double again = recomputesBlocks ? 1 : 0;

  if (mppList) {
    layers.push_back(layer("prefix", vit + former + projection, projection));
    for (int k = 0; k < 4; ++k)
      layers.push_back(layer("identity." + std::to_string(k), 0, 0));
    for (LayerCosts &costs : layers)
      costs.hasBackward = true;
  } else {
    // Width 1408, MLP 6144: the MLP's share of a block's products.
    double mlp = 2.0 * 6144 / (2.0 * 6144 + 4.0 * 1408);
    for (int k = 0; k < 39; ++k) {
      std::string name = "vit." + std::to_string(k);
      if (!halves) {
        layers.push_back(layer(name, vit / 39, 0));
        continue;
      }
      layers.push_back(layer(name + ".attention", vit / 39 * (1 - mlp), 0));
      layers.push_back(layer(name + ".mlp", vit / 39 * mlp, 0));
    }
    layers.push_back(layer("qformer", former, 0));
    layers.push_back(layer("projection", projection, projection));
  }
  for (int k = 0; k < 40; ++k) {
    std::string name = "llm." + std::to_string(k);
    if (!halves) {
      layers.push_back(
          layer(name, blockForward(), (1 + again) * blockForward()));
      continue;
    }
    double attention = blockForward() * attentionShare(length);
    double mlp = blockForward() - attention;
    layers.push_back(
        layer(name + ".attention", attention, (1 + again) * attention));
    layers.push_back(layer(name + ".mlp", mlp, (1 + again) * mlp));
  }
  if (mppList) {
    layers.push_back(layer("norm", 0, 0));
    layers.back().hasBackward = true;
  }
  layers.push_back(layer("head", headForward(), headForward()));
  if (mppList)
    for (const char *name : {"loss", "linear"}) {
      layers.push_back(layer(name, 0, 0));
      layers.back().hasBackward = true;
    }

  bool active = false;
  for (LayerCosts &costs : layers) {
    active |= costs.hasBackward;
    costs.outputNeedsGradient = active;
    if (costs.name == "projection" || costs.name == "prefix")
      costs.trainableParameters = 768 * 5120 + 5120;
  }
  model.cuts.resize(layers.size() - 1);
  if (bytes)
    addBytes(*this, model);
  return model;
}

Cluster MiniGPT4Qwen::cluster(int ranks) {
  Cluster cluster;
  cluster.devices.resize(ranks);
  for (Device &device : cluster.devices)
    device.f32Flops = device.bf16Flops = 1;
  cluster.links.resize(ranks * ranks);
  return cluster;
}
