//===- PipeToy.cpp - A hand-written pipeline ------------------------------===//

#include "test/runtime/PipeToyBuilder.h"
#include "test/runtime/PipeToyKernels.h"
#include "test/runtime/ToyModel.h"
#include <cstdlib>
#include <string>
#include <vector>

using namespace pipetoy;

static const int64_t tiedShape[] = {width}, wShape[] = {width, width};
static const int64_t xShape[] = {batch, width}, labelShape[] = {batch};

static int wOf(int layer) { return 1 + 2 * layer; }
static int bOf(int layer) { return 2 + 2 * layer; }

static mgq_call call(mgq_kernel kernel, const char *name, int layer,
                     std::vector<mgq_ref> args) {
  auto count = static_cast<int32_t>(args.size());
  return {kernel, name, keep(std::move(args)), count, layer, 0, 0, nullptr};
}

static mgq_sequence sequence(std::vector<mgq_load> loads,
                             std::vector<mgq_call> calls) {
  auto loadCount = static_cast<int32_t>(loads.size());
  auto callCount = static_cast<int32_t>(calls.size());
  return {keep(std::move(loads)), loadCount, keep(std::move(calls)), callCount};
}

void Builder::addParams() {
  auto owner = [&](int layer) {
    for (int chunk = 0; chunk < chunkCount(); ++chunk)
      if (layer < firstLayer(chunk + 1))
        return stageOf(chunk);
    return 0;
  };
  static const char *const names[] = {"tied", "w0", "b0", "w1", "b1",
                                      "w2",   "b2", "w3", "b3", "w4",
                                      "b4",   "w5", "b5"};
  static const int64_t swapped[] = {1, 0};
  int64_t offset = 0;
  for (int i = 0; i < 1 + 2 * layers; ++i) {
    bool isW = i % 2 == 1;
    int layer = (i - 1) / 2;
    mgq_param param = {};
    param.name = names[i];
    param.stored = {MGQ_F32, isW ? 2 : 1, isW ? wShape : tiedShape,
                    (isW ? weightCount : width) * 4};
    param.file = "pipe.weights";
    param.file_offset = offset;
    param.trainable = !isW || layer % 2 == 1;
    param.owner = i == 0 ? 0 : owner(layer);
    param.canonical_permutation = isW ? swapped : nullptr;
    offset += param.stored.bytes;
    params.push_back(param);
  }
}

/// Values, gradients, optimizer state of what a stage uses.
void Builder::placeParams(Stage &stage) {
  auto uses = [&](int param) {
    if (param == 0)
      return stage.index == 0 || stage.index == plan.stages - 1;
    return params[param].owner == stage.index;
  };
  for (int i = 0; i < static_cast<int>(params.size()); ++i) {
    if (!uses(i))
      continue;
    mgq_place place = {i, -1, -1, -1, -1, -1};
    if (params[i].trainable)
      place.value_offset = stage.take(params[i].stored.bytes);
    stage.places.push_back(place);
  }
  stage.gradsBegin = stage.arena;
  for (mgq_place &place : stage.places)
    if (params[place.param].trainable &&
        params[place.param].owner == stage.index) {
      place.grad_offset = stage.take(params[place.param].stored.bytes);
      stage.uses.push_back({place.param, place.grad_offset});
    }
  stage.gradsEnd = stage.arena;
  if (stage.index == 0)
    stage.uses.insert(stage.uses.begin() + 1, {0, stage.take(width * 4)});
  if (stage.index == plan.stages - 1)
    stage.headAccumulator =
        plan.stages == 1 ? stage.uses[1].accumulator : stage.take(width * 4);
  for (mgq_place &place : stage.places)
    if (place.grad_offset >= 0) {
      place.momentum_offset = stage.take(params[place.param].stored.bytes);
      place.variance_offset = stage.take(params[place.param].stored.bytes);
    }
}

/// A parameter's value as kernels of a stage see it.
mgq_ref Builder::value(const Stage &stage, int param) const {
  if (!params[param].trainable)
    return {MGQ_SPACE_WEIGHT, param, 0};
  for (const mgq_place &place : stage.places)
    if (place.param == param)
      return at(place.value_offset);
  abort();
}

void Builder::addChunk(Stage &stage, int chunk) {
  int first = firstLayer(chunk), count = layerCount(chunk);
  auto accumulatorOf = [&](int param) {
    for (const mgq_place &place : stage.places)
      if (place.param == param)
        return place.grad_offset;
    abort();
  };
  mgq_chunk c = {};
  c.index = chunk;
  c.slot_count = plan.slots;
  c.slot_bytes = slotBytes(chunk);
  c.slots_offset = stage.take(c.slot_bytes * plan.slots);
  std::vector<mgq_load> loads, labelLoads;
  std::vector<mgq_call> forward, backward, weight;
  std::vector<mgq_grad> grads;
  auto toHere = at(stage.take(64));
  forward.push_back(call(probeOf(stage.index), "probe", -1, {toHere}));
  mgq_ref in = act(chunk, 0);
  if (chunk == 0) {
    loads.push_back({0, at(x)});
    forward.push_back(
        call(embedForward, "embed", 0, {at(x), value(stage, 0), act(0, 0)}));
  } else if (stageOf(chunk - 1) == stage.index) {
    in = act(chunk - 1, layerCount(chunk - 1)); // In the other chunk's slot.
  }
  auto input = [&](int i) { return i ? act(chunk, i) : in; };
  for (int i = 0; i < count; ++i)
    forward.push_back(call(layerForward, "layer", first + i,
                           {input(i), value(stage, wOf(first + i)),
                            value(stage, bOf(first + i)), act(chunk, i + 1)}));
  if (isLast(chunk)) {
    labelLoads.push_back({1, at(labels)});
    loads.push_back({1, at(labels)});
    forward.push_back(call(headForward, "head", layers - 1,
                           {input(count), value(stage, 0), at(labels), at(loss),
                            at(accuracy), probabilities(chunk)}));
    mgq_ref delta = at(stage.take(width * 4));
    backward.push_back(
        call(headBackward, "head", layers - 1,
             {probabilities(chunk), at(labels), at(seed), input(count),
              value(stage, 0), grad(chunk, count), delta}));
    grads.push_back({0, 0, 0, delta, stage.headAccumulator});
  }
  // The gradient goes to the chunk before, which may be here.
  mgq_ref out = grad(chunk, 0);
  if (chunk > 0 && stageOf(chunk - 1) == stage.index)
    out = grad(chunk - 1, layerCount(chunk - 1));
  mgq_ref bDelta = at(stage.take(width * 4));
  mgq_ref wDelta = at(stage.take(weightCount * 4));
  for (int i = count; i-- > 0;) {
    int layer = first + i;
    std::vector<mgq_call> &list = plan.split ? weight : backward;
    int32_t ofWeight = plan.split;
    mgq_ref w = plan.split ? slotDelta(chunk, i) : wDelta;
    auto addWeight = [&] {
      list.push_back(
          call(layerWeight, "layer", layer,
               {input(i), act(chunk, i + 1), grad(chunk, i + 1), w, bDelta}));
      auto after = static_cast<int32_t>(list.size()) - 1;
      if (params[wOf(layer)].trainable)
        grads.push_back(
            {wOf(layer), ofWeight, after, w, accumulatorOf(wOf(layer))});
      grads.push_back(
          {bOf(layer), ofWeight, after, bDelta, accumulatorOf(bOf(layer))});
    };
    addWeight();
    backward.push_back(call(layerData, "layer", layer,
                            {act(chunk, i + 1), grad(chunk, i + 1),
                             at(packed[layer]), i ? grad(chunk, i) : out}));
  }
  if (chunk == 0) {
    mgq_ref delta = at(stage.take(width * 4));
    backward.push_back(call(embedBackward, "embed", 0,
                            {at(x), count ? out : grad(0, 0), delta}));
    grads.push_back({0, 0, static_cast<int32_t>(backward.size()) - 1, delta,
                     accumulatorOf(0)});
  }
  std::vector<mgq_load> backwardLoads = labelLoads;
  if (chunk == 0)
    backwardLoads.push_back({0, at(x)});
  c.forward = sequence(loads, forward);
  c.evaluate = sequence(loads, forward);
  c.backward = sequence(backwardLoads, backward);
  c.weight = sequence({}, weight);
  c.grad_count = static_cast<int32_t>(grads.size());
  c.grads = keep(std::move(grads));
  stage.chunks.push_back(c);
}

mgq_program Builder::build() {
  addParams();
  std::vector<Stage> all;
  for (int s = 0; s < plan.stages; ++s) {
    all.emplace_back(plan, s);
    Stage &stage = all.back();
    placeParams(stage);
    x = stage.take(actBytes);
    labels = stage.take(batch * 8);
    loss = stage.take(4);
    seed = stage.take(4);
    accuracy = stage.take(4);
    int64_t count = stage.take(4);
    packed.assign(layers, -1);
    std::vector<mgq_call> packs[2];
    for (int layer = 0; layer < layers; ++layer) {
      if (params[wOf(layer)].owner != s)
        continue;
      packed[layer] = stage.take(weightCount * 4);
      packs[params[wOf(layer)].trainable].push_back(call(
          pack, "pack", -1, {value(stage, wOf(layer)), at(packed[layer])}));
    }
    for (int chunk = s; chunk < chunkCount(); chunk += plan.stages)
      addChunk(stage, chunk);
    bool isLossStage = s == plan.stages - 1;
    mgq_ref nowhere = {MGQ_SPACE_NONE, 0, 0};
    mgq_rank &rank = stage.rank;
    rank.stage = s;
    rank.prepare_frozen = sequence({}, packs[0]);
    rank.prepare_trainable = sequence({}, packs[1]);
    rank.count =
        sequence({{1, at(labels)}},
                 {call(countTargets, "count", -1, {at(labels), at(count)})});
    rank.count_place = at(count);
    rank.loss = rank.evaluate_loss = isLossStage ? at(loss) : nowhere;
    rank.seed = isLossStage ? at(seed) : nowhere;
    rank.loss_chunk = isLossStage ? plan.chunks - 1 : -1;
    if (isLossStage) {
      rank.outputs = keep<mgq_output_place>({{0, at(loss)}, {1, at(accuracy)}});
      rank.output_count = 2;
    }
  }
  schedule(all);

  std::vector<mgq_rank> ranks;
  for (Stage &stage : all) {
    mgq_rank &rank = stage.rank;
    rank.arena_bytes = rank.memory.activations =
        stage.index == plan.hugeStage ? int64_t{1} << 50 : stage.arena;
    rank.place_count = static_cast<int32_t>(stage.places.size());
    rank.places = keep(stage.places);
    rank.use_count = static_cast<int32_t>(stage.uses.size());
    rank.uses = keep(stage.uses);
    rank.chunk_count = static_cast<int32_t>(stage.chunks.size());
    rank.chunks = keep(stage.chunks);
    rank.op_count = static_cast<int32_t>(stage.ops.size());
    rank.ops = keep(stage.ops);
    rank.evaluate_op_count = static_cast<int32_t>(stage.evaluateOps.size());
    rank.evaluate_ops = keep(stage.evaluateOps);
    rank.step_flops = 100;
    ranks.push_back(rank);
  }

  mgq_program p = {};
  p.abi_version = MGQ_ABI_VERSION;
  p.compiler_version = "pipe toy";
  p.fingerprint = "pipe-toy";
  p.plan_hash = plan.hash;
  p.model_path = "/nonexistent/pipe.onnx";
  p.params = keep(params);
  p.param_count = static_cast<int32_t>(params.size());
  p.files = keep<mgq_file>({{"pipe.weights", -1, 0, 0}});
  p.file_count = 1;
  p.inputs = keep<mgq_input>({{"x", {MGQ_F32, 2, xShape, actBytes}, 0, 0, 0},
                              {"labels",
                               {MGQ_I64, 1, labelShape, batch * 8},
                               width,
                               1,
                               toy::ignored}});
  p.input_count = 2;
  p.outputs = keep<mgq_output>({{"loss", {MGQ_F32, 0, nullptr, 4}},
                                {"accuracy", {MGQ_F32, 0, nullptr, 4}}});
  p.output_count = 2;
  p.layers = keep<mgq_layer>({{"l0", 10, 20, 0},
                              {"l1", 10, 20, 0},
                              {"l2", 10, 20, 0},
                              {"l3", 10, 20, 0},
                              {"l4", 10, 20, 0},
                              {"l5", 10, 20, 0}});
  p.layer_count = layers;
  p.schedule = "toy";
  p.stages = plan.stages;
  p.replicas = plan.replicas;
  p.micro_batches = plan.microBatches;
  p.micro_batch_size = batch;
  p.loss_is_sum = 1;
  p.predicted_step_seconds = 0.58;
  p.predicted_bubble = 0.11;
  p.ranks = keep(ranks);
  p.adamw = toy::adamw;
  p.sq_norm = toy::squaredNorm;
  p.accumulate = toy::accumulate;
  return p;
}

Plan pipetoy::planOfEnvironment() {
  auto number = [](const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
  };
  Plan plan;
  plan.stages = number("TOY_STAGES", 1);
  plan.replicas = number("TOY_REPLICAS", 1);
  plan.chunks = number("TOY_CHUNKS", 1);
  plan.microBatches = number("TOY_MICRO_BATCHES", 4);
  plan.slots = number("TOY_SLOTS", plan.microBatches);
  plan.split = number("TOY_SPLIT", 0) != 0;
  plan.eager = number("TOY_EAGER", 0) != 0;
  plan.hugeStage = number("TOY_HUGE", -1);
  if (const char *hash = getenv("TOY_HASH"))
    plan.hash = hash;
  return plan;
}

mgq_program pipetoy::makeProgram(const Plan &plan) {
  return Builder(plan).build();
}
