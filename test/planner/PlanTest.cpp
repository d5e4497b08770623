//===- PlanTest.cpp - Plans: memory, recomputation, placement -------------===//

#include "passes/Planner/Plan.h"
#include "passes/Planner/Partition.h"
#include "passes/Planner/Report.h"
#include "test/planner/MiniGPT4Qwen.h"
#include "llvm/ADT/STLExtras.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace mgq::planner;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

constexpr int64_t kGiB = int64_t(1) << 30;

/// `count` equal layers of one second forward and one backward, one GiB of
/// weights, a quarter of activations.
ModelCosts chain(int count) {
  ModelCosts model;
  for (int l = 0; l < count; ++l) {
    LayerCosts layer;
    layer.name = "layer." + std::to_string(l);
    layer.forwardFlops = layer.backwardFlops = 1;
    layer.parameters = layer.trainableParameters = 1000;
    layer.weightBytes = kGiB;
    layer.residualBytes = kGiB / 4;
    layer.inputBytes = kGiB / 64;
    layer.hasBackward = layer.outputNeedsGradient = true;
    model.layers.push_back(layer);
  }
  model.cuts.assign(count - 1, {1000, 1000});
  return model;
}

Cluster devices(int count, int64_t memory, Link link = {}) {
  Cluster cluster;
  for (int d = 0; d < count; ++d) {
    Device device;
    device.name = "node0/gpu" + std::to_string(d);
    device.f32Flops = device.bf16Flops = 1;
    device.memoryBytes = memory;
    cluster.devices.push_back(device);
  }
  for (int d = 0; d < count * count; ++d)
    cluster.links.push_back(d % (count + 1) ? link : Link());
  return cluster;
}

PlanRequest pipelineOf(int stages, int microBatches) {
  PlanRequest request;
  request.stages = request.ranks = stages;
  request.microBatches = microBatches;
  return request;
}

Plan plan(const ModelCosts &model, const Cluster &cluster,
          const PlanRequest &request) {
  llvm::Expected<Plan> result = makePlan(model, cluster, request);
  if (!result) {
    ADD_FAILURE() << llvm::toString(result.takeError());
    return {};
  }
  // What holds for all plans: chunks cover the layers, ranks fit.
  int layer = 0;
  for (const PlannedChunk &chunk : result->chunks) {
    EXPECT_EQ(chunk.firstLayer, layer);
    EXPECT_GT(chunk.endLayer, layer);
    layer = chunk.endLayer;
  }
  EXPECT_EQ(layer, int(model.layers.size()));
  for (const RankPlan &rank : result->ranks)
    if (int64_t memory = cluster.devices[rank.device].memoryBytes)
      EXPECT_LE(rank.memoryBytes(), memory);
  return std::move(*result);
}

std::string failure(const ModelCosts &model, const Cluster &cluster,
                    const PlanRequest &request) {
  llvm::Expected<Plan> result = makePlan(model, cluster, request);
  return result ? "" : llvm::toString(result.takeError());
}

std::vector<int> cutsOf(const Plan &plan) {
  std::vector<int> cuts;
  for (size_t c = 1; c < plan.chunks.size(); ++c)
    cuts.push_back(plan.chunks[c].firstLayer);
  return cuts;
}

// DeepSpeed's two methods.
TEST(Bounds, UniformAndBalanced) {
  EXPECT_THAT(uniformBounds(48, 5), ElementsAre(0, 10, 20, 30, 39, 48));
  EXPECT_THAT(balancedBounds({1, 1, 1, 5, 1, 1}, 3), ElementsAre(0, 3, 4, 6));
  // Nothing trains in front: all of it falls to the first stage.
  EXPECT_THAT(balancedBounds({0, 0, 0, 4, 0, 0, 4}, 2), ElementsAre(0, 6, 7));
  // No run is empty, whatever the weights.
  EXPECT_THAT(balancedBounds({9, 0, 0, 0}, 3), ElementsAre(0, 2, 3, 4));
}

TEST(Plan, EqualLayersAreCutEvenly) {
  PlanRequest request = pipelineOf(4, 8);
  request.schedule = ScheduleKind::OneFOneB;
  Plan result = plan(chain(12), devices(4, 0), request);
  EXPECT_THAT(cutsOf(result), ElementsAre(3, 6, 9));
  EXPECT_DOUBLE_EQ(result.stepSeconds, 6.0 * (8 + 3));
  EXPECT_EQ(result.ranks[1].activationBytesSent, 8000);
  EXPECT_EQ(result.ranks[1].gradientBytesSent, 8000);
  EXPECT_EQ(result.ranks[0].gradientBytesSent, 0);
  EXPECT_EQ(result.ranks[3].activationBytesSent, 0);
  EXPECT_EQ(result.ranks[0].residualBytes, 4 * 3 * kGiB / 4);
}

// Memory for all: nothing is recomputed. Less: as few layers as it takes.
// Still less: all, with little in flight. Then an error.
TEST(Plan, RecomputesOnlyWhereMemoryForcesIt) {
  PlanRequest request = pipelineOf(2, 8);
  request.schedule = ScheduleKind::OneFOneB;
  ModelCosts model = chain(8);
  auto recomputed = [&](int64_t memory, double &seconds) {
    Plan result = plan(model, devices(2, memory), request);
    seconds = result.stepSeconds;
    return llvm::count(result.recomputed, true);
  };
  double free, some, most;
  EXPECT_EQ(recomputed(8 * kGiB, free), 0);
  EXPECT_DOUBLE_EQ(free, 8.0 * (8 + 1));
  long few = recomputed(6 * kGiB - kGiB / 8, some);
  EXPECT_GT(few, 0);
  EXPECT_LT(few, 8);
  EXPECT_GT(some, free);
  EXPECT_GE(recomputed(4 * kGiB + kGiB / 2, most), few);
  EXPECT_GE(most, some);

  EXPECT_EQ(failure(model, devices(2, 4 * kGiB), request),
            "no plan fits: stage 0 (layer.0 to layer.3) needs 4.31 GiB at "
            "least (weights 4.00 GiB, gradients 0 B, optimizer 0 B, "
            "activations of one micro-batch 64.0 MiB, running layer 256 MiB, "
            "inputs 0 B), node0/gpu0 has 4.00 GiB; what would help: more "
            "ranks, a smaller micro-batch, a lower precision, fewer trainable "
            "parameters");
  request.recompute = RecomputeKind::None;
  EXPECT_THAT(failure(model, devices(2, 4 * kGiB + kGiB / 2), request),
              HasSubstr("what would help: --recompute=auto"));
  request.recompute = RecomputeKind::Full;
  Plan full = plan(model, devices(2, 8 * kGiB), request);
  EXPECT_EQ(llvm::count(full.recomputed, true), 8);
  EXPECT_DOUBLE_EQ(full.stepSeconds, 12.0 * (8 + 1));
}

// A recomputed layer keeps its inputs only; its residuals live while its
// backward runs.
TEST(Plan, RecomputationIsCounted) {
  PlanRequest request = pipelineOf(2, 8);
  request.schedule = ScheduleKind::OneFOneB;
  request.recompute = RecomputeKind::Full;
  Plan result = plan(chain(8), devices(2, 0), request);
  EXPECT_EQ(result.ranks[0].residualBytes, 2 * 4 * kGiB / 64);
  EXPECT_EQ(result.ranks[0].transientBytes, kGiB / 4);
  EXPECT_DOUBLE_EQ(result.problem.chunks[0].backward, 8);
}

// A device of half the speed gets half the layers; a small one what it holds.
TEST(Plan, PlacesByDevice) {
  PlanRequest request = pipelineOf(2, 16);
  request.schedule = ScheduleKind::OneFOneB;
  Cluster cluster = devices(2, 0);
  cluster.devices[1].f32Flops = 0.5;
  Plan result = plan(chain(12), cluster, request);
  for (const RankPlan &rank : result.ranks)
    EXPECT_DOUBLE_EQ(rank.forwardSeconds + rank.backwardSeconds, 16 * 16.0);

  cluster = devices(2, 20 * kGiB);
  cluster.devices[1].memoryBytes = 3 * kGiB;
  result = plan(chain(12), cluster, request);
  for (const RankPlan &rank : result.ranks)
    EXPECT_EQ(rank.weightBytes, rank.device == 1 ? 2 * kGiB : 10 * kGiB);
}

// Devices that stand in turns in the file: neighbours go on one node.
TEST(Plan, KeepsNeighboursOnOneNode) {
  Cluster cluster = devices(4, 0);
  ModelCosts model = chain(12);
  for (CutCosts &cut : model.cuts)
    cut = {1000, 1000};
  for (int d = 0; d < 4; ++d)
    cluster.devices[d].node = d % 2;
  for (int from = 0; from < 4; ++from)
    for (int to = 0; to < 4; ++to)
      if (from % 2 != to % 2)
        cluster.links[4 * from + to] = {0.5, 1000};
  PlanRequest request = pipelineOf(4, 8);
  request.schedule = ScheduleKind::OneFOneB;
  Plan result = plan(model, cluster, request);
  const std::vector<int> &order = result.devices.front();
  EXPECT_EQ(order[0] % 2, order[1] % 2);
  EXPECT_EQ(order[2] % 2, order[3] % 2);
}

// Enough memory for a replica on each rank: no bubble, a cheap all-reduce.
// Too little: stages.
TEST(Plan, ChoosesStagesAndReplicas) {
  ModelCosts model = chain(8);
  for (LayerCosts &layer : model.layers)
    layer.gradientBytes = 4000;
  PlanRequest request;
  request.ranks = 4;
  request.microBatches = 8;
  Link link{0.001, 1e6};
  Plan wide = plan(model, devices(4, 32 * kGiB, link), request);
  EXPECT_EQ(wide.stages, 1);
  EXPECT_EQ(wide.replicas, 4);
  EXPECT_NEAR(wide.syncSeconds, 6 * (0.001 + 8000 / 1e6), 1e-9);
  EXPECT_DOUBLE_EQ(wide.stepSeconds, 8 * 16 + wide.syncSeconds);
  EXPECT_EQ(plan(model, devices(4, 7 * kGiB, link), request).stages, 2);
  EXPECT_EQ(plan(model, devices(4, 3 * kGiB, link), request).stages, 4);
  // A slow link makes the all-reduce dear.
  for (LayerCosts &layer : model.layers)
    layer.gradientBytes = 40000000;
  EXPECT_EQ(plan(model, devices(4, 32 * kGiB, link), request).stages, 4);

  request.replicas = 2;
  EXPECT_EQ(plan(model, devices(4, 0), request).stages, 2);
  request.replicas = 3;
  EXPECT_EQ(failure(model, devices(4, 0), request),
            "4 ranks cannot be shared by 3 replicas");
}

// Replicas that exchange 4,000 bytes a layer over 1 byte/ms. Alone that adds
// 2 (R - 1) / R of all bytes; compressed a part of it; with overlap the 8 s of
// the last backward hide as much.
TEST(Plan, GradientSyncIsHiddenAndCompressed) {
  ModelCosts model = chain(8);
  for (LayerCosts &layer : model.layers)
    layer.gradientBytes = 2000;
  PlanRequest request;
  request.stages = 1;
  request.replicas = request.ranks = 2;
  request.microBatches = 4;
  Cluster cluster = devices(2, 0, {0, 1000});
  Plan dense = plan(model, cluster, request);
  EXPECT_NEAR(dense.syncSeconds, 16, 1e-9);
  EXPECT_EQ(dense.hiddenSyncSeconds, 0);
  EXPECT_EQ(dense.ranks[0].gradientBytesSent, 16000);

  request.sync = {0.25, false};
  Plan sparse = plan(model, cluster, request);
  EXPECT_NEAR(sparse.syncSeconds, 4, 1e-9);
  EXPECT_EQ(sparse.ranks[0].gradientBytesSent, 4000);
  EXPECT_NEAR(dense.stepSeconds - sparse.stepSeconds, 12, 1e-9);

  request.sync = {1, true};
  Plan hidden = plan(model, cluster, request);
  EXPECT_NEAR(hidden.hiddenSyncSeconds, 8, 1e-9);
  EXPECT_NEAR(hidden.syncSeconds, 8, 1e-9);
}

// A rank that is done before the last one exchanges its gradients meanwhile.
TEST(Plan, EarlyRanksExchangeEarly) {
  ModelCosts model = chain(2);
  model.layers[1].gradientBytes = 4000;
  PlanRequest request = pipelineOf(2, 1);
  request.replicas = 2;
  request.ranks = 4;
  request.schedule = ScheduleKind::OneFOneB;
  Plan result = plan(model, devices(4, 0, {0, 1000}), request);
  // Its backward ends when the gradient's message (1 s) leaves; then there is
  // one backward more.
  EXPECT_NEAR(result.hiddenSyncSeconds, 2, 1e-9);
  EXPECT_NEAR(result.syncSeconds, 2, 1e-9);
}

TEST(Plan, ForcedCuts) {
  PlanRequest request = pipelineOf(2, 4);
  request.cuts = {3};
  EXPECT_THAT(cutsOf(plan(chain(8), devices(2, 0), request)), ElementsAre(3));
  request.cuts = {1, 4, 6};
  Plan interleaved = plan(chain(8), devices(2, 0), request);
  EXPECT_EQ(interleaved.schedule, ScheduleKind::Interleaved);
  EXPECT_THAT(cutsOf(interleaved), ElementsAre(1, 4, 6));
  request.cuts = {4, 4};
  EXPECT_EQ(failure(chain(8), devices(2, 0), request),
            "cut 2 is before layer 4, expected one after layer 4 of 8");
  request.cuts = {1, 4};
  EXPECT_EQ(failure(chain(8), devices(2, 0), request),
            "2 cuts give 3 chunks for 2 stages; expected 1 cuts, or those of a "
            "multiple of the stages");
  request.stages = 0;
  request.ranks = 4;
  EXPECT_EQ(plan(chain(8), devices(4, 0), request).stages, 1);
  request.cuts = {1, 4, 6};
  EXPECT_GT(plan(chain(8), devices(4, 0), request).replicas, 0);
  request.stages = request.ranks = 2;
  // A frozen prefix may stand before them.
  ModelCosts model = chain(8);
  for (int l : {0, 1}) {
    model.layers[l].hasBackward = model.layers[l].outputNeedsGradient = false;
    model.layers[l].trainableParameters = 0;
    model.cuts[l].gradientBytes = 0;
  }
  request.cuts = {2, 5};
  Plan spread = plan(model, devices(2, 0), request);
  EXPECT_THAT(spread.chunks.front().ranks, ElementsAre(0, 1));
}

TEST(Plan, WrongRequests) {
  EXPECT_EQ(failure(chain(3), devices(4, 0), pipelineOf(4, 4)),
            "4 stages for 3 layers; a stage has at least one");
  EXPECT_EQ(failure(chain(8), devices(2, 0), pipelineOf(4, 4)),
            "the plan needs 4 devices, the cluster has 2");
  EXPECT_EQ(failure(chain(8), devices(2, 0), pipelineOf(2, 0)),
            "a step needs at least one micro-batch");
  EXPECT_EQ(failure({}, devices(2, 0), pipelineOf(2, 1)),
            "the model has no layers");
}

// Adapters only: zero_bubble has nothing to move, and the plan says so.
TEST(Plan, NotesSayWhatCannotHelp) {
  PlanRequest request = pipelineOf(2, 8);
  request.splitsWeight = true;
  ModelCosts model = chain(8);
  EXPECT_THAT(plan(model, devices(2, 0), request).notes,
              Contains("zero_bubble cannot help: no layer has weight gradients "
                       "that could fill gaps"));
  model.layers[3].weightFlops = 0.01;
  EXPECT_THAT(plan(model, devices(2, 0), request).notes,
              Contains(HasSubstr("zero_bubble can hardly help: little but "
                                 "adapters trains, weight gradients are 0.1 "
                                 "% of the backward pass")));
  for (LayerCosts &layer : model.layers) {
    layer.hasBackward = layer.outputNeedsGradient = false;
    layer.trainableParameters = 0;
  }
  EXPECT_THAT(plan(model, devices(2, 0), request).notes,
              Contains("nothing trains: the step has no backward pass"));
}

// Everything trains: weight gradients fill gaps.
TEST(Plan, ZeroBubbleWinsWhereAllTrains) {
  ModelCosts model = chain(8);
  for (LayerCosts &layer : model.layers)
    layer.weightFlops = 1;
  PlanRequest request = pipelineOf(4, 12);
  request.schedule = ScheduleKind::OneFOneB;
  double plain = plan(model, devices(4, 0), request).stepSeconds;
  request.schedule = ScheduleKind::ZeroBubble;
  request.splitsWeight = true;
  Plan split = plan(model, devices(4, 0), request);
  EXPECT_LT(split.stepSeconds, plain);
  EXPECT_GT(split.problem.chunks[1].weight, 0);
  request.splitsWeight = false;
  EXPECT_DOUBLE_EQ(plan(model, devices(4, 0), request).problem.chunks[1].weight,
                   0);
}

// The language model trains in full: chunks and weight gradients together come
// within 3.5 % of work / p.
TEST(Plan, FullFineTuningUsesBoth) {
  MiniGPT4Qwen config{256, 1, true};
  ModelCosts model = config.model();
  double work = 0;
  for (LayerCosts &layer : model.layers) {
    if (layer.hasBackward)
      layer.weightFlops = layer.forwardFlops;
    work += layer.forwardFlops + layer.backwardFlops + layer.weightFlops;
  }
  PlanRequest request = pipelineOf(8, 32);
  request.splitsWeight = true;
  Plan result = plan(model, MiniGPT4Qwen::cluster(8), request);
  EXPECT_EQ(result.schedule, ScheduleKind::ZeroBubble);
  EXPECT_LT(result.stepSeconds, 1.035 * work * 32 / 8);
}

// gpipe holds all micro-batches at once.
TEST(Plan, GPipeNeedsMemoryForAll) {
  PlanRequest request = pipelineOf(2, 40);
  request.schedule = ScheduleKind::GPipe;
  Plan result = plan(chain(4), devices(2, 12 * kGiB), request);
  EXPECT_GT(llvm::count(result.recomputed, true), 0);
  EXPECT_DOUBLE_EQ(result.ranks[0].residualBytes,
                   40 * result.problem.chunks[0].residualBytes);
  EXPECT_THAT(failure(chain(4), devices(2, 3 * kGiB), request),
              HasSubstr("gpipe needs "));
}

// Devices of 24 GiB, LoRA, 14B: pure data parallelism does not fit, MPP-LLaVA's
// way to balance parameters is lopsided, the plan fits and is faster.
TEST(Plan, AlternativesAreJudged) {
  MiniGPT4Qwen config{256, 1, true};
  config.bytes = config.lora = true;
  ModelCosts model = config.model();
  Cluster cluster = devices(8, 24 * kGiB, {0.01, 1e9});
  PlanRequest request = pipelineOf(8, 32);
  Plan result = plan(model, cluster, request);
  addAlternatives(result, model, cluster, request);
  ASSERT_EQ(result.alternatives.size(), 4u);
  std::vector<std::string> names;
  for (const Alternative &other : result.alternatives) {
    names.push_back(other.name);
    EXPECT_GT(other.stepSeconds, 0) << other.name;
    EXPECT_EQ(other.microBatches * other.replicas, 32) << other.name;
    if (other.fits && other.stages > 1)
      EXPECT_GE(other.stepSeconds, result.stepSeconds) << other.name;
  }
  EXPECT_THAT(names,
              ElementsAre("uniform", "parameters", "flops", "data_parallel"));
  const Alternative &parallel = result.alternatives[3];
  EXPECT_FALSE(parallel.fits);
  EXPECT_THAT(parallel.verdict,
              HasSubstr("GiB on rank 0, device has 24.0 GiB"));
}

// Only the projection trains: its balance of parameters is one stage for all.
TEST(Plan, FrozenModelKeepsActiveLayersTogether) {
  MiniGPT4Qwen config;
  config.bytes = true;
  ModelCosts model = config.model();
  PlanRequest request = pipelineOf(4, 16);
  request.schedule = ScheduleKind::OneFOneB;
  Plan result = plan(model, devices(4, 0), request);
  // Chunks of one rank each, in order: active layers are on adjacent stages.
  for (size_t c = 0; c < result.chunks.size(); ++c)
    if (result.chunks[c].ranks.size() == 1)
      EXPECT_EQ(result.chunks[c].ranks.front(),
                int(c - (result.chunks.size() - 4)));
  bool active = false;
  for (const ChunkCosts &chunk : result.problem.chunks) {
    EXPECT_TRUE(!active || chunk.hasBackward);
    active |= chunk.hasBackward;
  }
  request.partition = PartitionKind::Parameters;
  Plan lopsided = plan(model, devices(4, 0), request);
  EXPECT_GT(lopsided.stepSeconds, 2 * result.stepSeconds);
}

TEST(Plan, IsDeterministic) {
  MiniGPT4Qwen config{256, 1, true};
  config.bytes = true;
  ModelCosts model = config.model();
  Cluster cluster = devices(4, 16 * kGiB, {0.01, 1e9});
  PlanRequest request = pipelineOf(4, 8);
  Plan first = plan(model, cluster, request);
  Plan second = plan(model, cluster, request);
  EXPECT_EQ(first.orders, second.orders);
  EXPECT_EQ(planJson(first, model, cluster), planJson(second, model, cluster));
}

// Measured weight gradients stand apart; those of both are shared out.
TEST(Plan, MeasuredWeightGradients) {
  LayerCosts layer = chain(1).layers.front();
  layer.weightFlops = 3;
  Device device = devices(1, 0).devices.front();
  layer.backwardSeconds = 8;
  EXPECT_DOUBLE_EQ(layerSeconds(layer, device).backward, 2);
  EXPECT_DOUBLE_EQ(layerSeconds(layer, device).weight, 6);
  layer.weightSeconds = 5;
  EXPECT_DOUBLE_EQ(layerSeconds(layer, device).backward, 8);
  EXPECT_DOUBLE_EQ(layerSeconds(layer, device).weight, 5);
}

// Measured times win over FLOPs.
TEST(Plan, MeasuredTimesWin) {
  ModelCosts model = chain(6);
  for (int l : {0, 1, 2}) {
    model.layers[l].forwardSeconds = 1;
    model.layers[l].backwardSeconds = 4;
  }
  model.layers[0].forwardSeconds = 3;
  PlanRequest request = pipelineOf(2, 8);
  request.schedule = ScheduleKind::OneFOneB;
  // 7, 5, 5, 2, 2, 2.
  EXPECT_THAT(cutsOf(plan(model, devices(2, 0), request)), ElementsAre(2));
}

} // namespace
