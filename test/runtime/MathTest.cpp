//===- MathTest.cpp - Schedules, clipping, AdamW, globs, threads ----------===//

#include "runtime/src/common/Clipping.h"
#include "runtime/src/common/Glob.h"
#include "runtime/src/common/Optimizer.h"
#include "runtime/src/common/Schedule.h"
#include "runtime/src/local/ThreadPool.h"
#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <atomic>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

using namespace mgq::rt;
using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;

//===--- Schedule: the values of transformers' own tests (lr 10, 10 steps)
//-===//

static std::vector<double> rates(Options options, int64_t total = 10) {
  options.learningRate = 10;
  Schedule schedule(options, total);
  std::vector<double> values;
  for (int64_t i = 0; i < total; ++i)
    values.push_back(10 * schedule.factor(i));
  return values;
}

static void expectNear(const std::vector<double> &values,
                       const std::vector<double> &expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], tolerance) << "step " << i;
}

TEST(Schedule, Constant) {
  Options options;
  expectNear(rates(options), std::vector<double>(10, 10.0), 0);
  options.warmupSteps = 4;
  expectNear(rates(options), {0, 2.5, 5, 7.5, 10, 10, 10, 10, 10, 10}, 1e-12);
}

TEST(Schedule, Linear) {
  Options options;
  options.schedule = ScheduleKind::Linear;
  options.warmupSteps = 2;
  expectNear(rates(options), {0, 5, 10, 8.75, 7.5, 6.25, 5, 3.75, 2.5, 1.25},
             1e-12);
  options.warmupSteps = 0;
  options.warmupRatio = 0.15; // ceil(1.5) = 2.
  expectNear(rates(options), {0, 5, 10, 8.75, 7.5, 6.25, 5, 3.75, 2.5, 1.25},
             1e-12);
}

TEST(Schedule, Cosine) {
  Options options;
  options.schedule = ScheduleKind::Cosine;
  options.warmupSteps = 2;
  expectNear(rates(options), {0, 5, 10, 9.61, 8.53, 6.91, 5, 3.08, 1.46, 0.38},
             1e-2);
  options.minLearningRate = 1; // cosine_with_min_lr: f * 0.9 + 0.1
  std::vector<double> values = rates(options);
  EXPECT_NEAR(values[1], 5, 1e-12);
  EXPECT_NEAR(values[6], 5.5, 1e-12);
  EXPECT_NEAR(values[9], 10 * (0.5 * (1 + std::cos(M_PI * 7 / 8)) * 0.9 + 0.1),
              1e-12);
}

//===--- Clipping ---------------------------------------------------------===//

TEST(Clipping, Value) {
  Options options;
  EXPECT_EQ(Clipping(options).factor(100, 0), 1);
  options.clip = ClipKind::Value;
  options.clipValue = 2;
  EXPECT_EQ(Clipping(options).factor(1, 0), 1);
  EXPECT_DOUBLE_EQ(Clipping(options).factor(8, 0), 2 / (8 + 1e-6));
}

TEST(Clipping, Tanh) {
  Options options;
  options.clip = ClipKind::Tanh;
  Clipping clipping(options);
  EXPECT_DOUBLE_EQ(clipping.factor(1, 0), 0.1 / (1 + 1e-6));
  EXPECT_DOUBLE_EQ(clipping.factor(1, 20), 0.5 / (1 + 1e-6));
  EXPECT_NEAR(clipping.factor(1, 30), 0.5 * (1 + std::tanh(1.0)), 1e-5);
}

TEST(Clipping, History) {
  Options options;
  options.clip = ClipKind::History;
  options.clipValue = 2;
  Clipping clipping(options);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(clipping.factor(i, 0), 1) << i; // Off while it fills.
  // Median of 0..99 is 49.5.
  EXPECT_DOUBLE_EQ(clipping.factor(1000, 0), 99 / (1000 + 1e-6));
  EXPECT_EQ(clipping.history().size(), 100u);
  EXPECT_EQ(clipping.history().front(), 1); // 0 has left.
  Clipping other(options);
  other.setHistory(clipping.history());
  EXPECT_EQ(other.factor(500, 0), clipping.factor(500, 0));
}

//===--- Globs ------------------------------------------------------------===//

TEST(Glob, Matches) {
  EXPECT_TRUE(globMatches("*.lora_[AB].*", "q.lora_A.default.weight"));
  EXPECT_FALSE(globMatches("*.lora_[AB].*", "q.lora_C.default.weight"));
  EXPECT_TRUE(globMatches("a?c", "abc"));
  EXPECT_FALSE(globMatches("a?c", "ac"));
  EXPECT_TRUE(globMatches("", ""));
  EXPECT_TRUE(globMatches("**", ""));
  EXPECT_TRUE(globMatches("x[0-9]y", "x7y"));
  EXPECT_FALSE(globMatches("x[!0-9]y", "x7y"));
  EXPECT_TRUE(globMatches("x[]]y", "x]y"));
  EXPECT_TRUE(globMatches("a\\*b", "a*b"));
  EXPECT_FALSE(globMatches("a\\*b", "axb"));
  EXPECT_TRUE(globMatches("a[b", "a[b")); // Not closed: literal.
  EXPECT_TRUE(globMatches("a\\", "a\\"));
  EXPECT_FALSE(globMatches(std::string(40, '*') + "b", std::string(5000, 'a')));
  EXPECT_THAT(splitGlobs("a,b\\,c,[,]d"), ElementsAre("a", "b\\,c", "[,]d"));
  EXPECT_THAT(nearestNames("llm_poj.*", {"vit.w", "llm_proj.weight", "x"}, 1),
              ElementsAre("llm_proj.weight"));
}

//===--- AdamW and norms --------------------------------------------------===//

namespace {
/// A program of flat parameters of these sizes, kernels from the toy.
struct FlatProgram {
  explicit FlatProgram(std::vector<int64_t> counts) : sizes(std::move(counts)) {
    names.reserve(sizes.size());
    int64_t at = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      names.push_back("p" + std::to_string(i));
      int64_t bytes = (sizes[i] * 4 + 63) / 64 * 64;
      auto param = static_cast<int32_t>(i);
      params.push_back({names[i].c_str(),
                        {MGQ_F32, 1, &sizes[i], sizes[i] * 4},
                        "",
                        0,
                        1,
                        0,
                        nullptr});
      places.push_back(
          {param, -1, at, at + bytes, at + 2 * bytes, at + 3 * bytes});
      uses.push_back({param, at + bytes});
      grads.push_back(
          {param, 0, 0, {MGQ_SPACE_ARENA, 0, at + 4 * bytes}, at + bytes});
      gradPlaces.push_back(at + 4 * bytes);
      at += 5 * bytes;
    }
    auto count = static_cast<int32_t>(params.size());
    chunk.backward.call_count = 1;
    chunk.grads = grads.data();
    chunk.grad_count = count;
    rank.places = places.data();
    rank.uses = uses.data();
    rank.place_count = rank.use_count = count;
    rank.chunks = &chunk;
    rank.chunk_count = 1;
    rank.arena_bytes = at;
    program.params = params.data();
    program.param_count = count;
    program.stages = program.replicas = 1;
    program.ranks = &rank;
    program.adamw = mgq_program_table.adamw;
    program.sq_norm = mgq_program_table.sq_norm;
    program.accumulate = mgq_program_table.accumulate;
  }

  std::vector<int64_t> sizes;
  std::vector<std::string> names;
  std::vector<mgq_param> params;
  std::vector<mgq_place> places;
  std::vector<mgq_use> uses;
  std::vector<mgq_grad> grads;
  std::vector<int64_t> gradPlaces;
  mgq_chunk chunk = {};
  mgq_rank rank = {};
  mgq_program program = {};
};

/// An optimizer over a flat program, and where its gradients are left.
struct FlatOptimizer {
  FlatOptimizer(FlatProgram &flat, const Options &options)
      : view(flat.program, 0), arena(flat.rank.arena_bytes),
        optimizer(view, options, arena) {
    for (int64_t offset : flat.gradPlaces)
      places.push_back(arena.at(offset));
  }
  float *left(size_t param) { return reinterpret_cast<float *>(places[param]); }
  void accumulate(bool first) {
    if (first)
      optimizer.startStep();
    optimizer.accumulate(0, false, 0, places);
  }
  GradientNorm norm() {
    std::vector<double> norms(places.size());
    optimizer.squaredNorms(norms.data());
    return optimizer.total(norms.data());
  }

  RankView view;
  Arena arena;
  Optimizer optimizer;
  std::vector<std::byte *> places;
};

struct Reference {
  double p = 0, m = 0, v = 0;
  void update(double g, double rate, double decay, const Options &o, int t) {
    p -= rate * decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(o.beta2, t));
    p -= rate / (1 - std::pow(o.beta1, t)) * m / (denominator + o.epsilon);
  }
};
} // namespace

TEST(Optimizer, AgreesWithReference) {
  FlatProgram flat({3, 70001, 4096});
  Options options;
  options.learningRate = 1e-2;
  options.noDecay = {"p0"};
  options.learningRateOf = {{"p[12]", 3e-3}};
  FlatOptimizer rank(flat, options);
  std::vector<std::vector<Reference>> references;
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  for (const mgq_place &place : flat.places) {
    references.emplace_back(flat.sizes[place.param]);
    for (size_t i = 0; i < references.back().size(); ++i)
      references.back()[i].p = rank.arena.floatsAt(place.value_offset)[i] =
          static_cast<float>(normal(random));
  }
  for (int t = 1; t <= 5; ++t) {
    double expectedNorm = 0;
    std::vector<std::vector<double>> sums;
    for (size_t i = 0; i < flat.params.size(); ++i)
      sums.emplace_back(flat.sizes[i], 0.0);
    for (int microBatch = 0; microBatch < 2; ++microBatch) {
      for (size_t i = 0; i < flat.params.size(); ++i)
        for (int64_t j = 0; j < flat.sizes[i]; ++j)
          sums[i][j] += rank.left(i)[j] = static_cast<float>(normal(random));
      rank.accumulate(microBatch == 0);
    }
    for (const auto &sum : sums)
      for (double g : sum)
        expectedNorm += g * g;
    GradientNorm norm = rank.norm();
    EXPECT_NEAR(norm.total, std::sqrt(expectedNorm), 1e-4);
    EXPECT_EQ(norm.firstNonfinite, -1);
    rank.optimizer.update(0.5, 0.8, t);
    for (size_t i = 0; i < flat.params.size(); ++i)
      for (int64_t j = 0; j < flat.sizes[i]; ++j)
        references[i][j].update(0.5 * sums[i][j], 0.8 * (i ? 3e-3 : 1e-2),
                                i ? options.weightDecay : 0, options, t);
  }
  double worst = 0;
  for (size_t i = 0; i < flat.params.size(); ++i)
    for (int64_t j = 0; j < flat.sizes[i]; ++j)
      worst = std::fmax(
          worst, std::fabs(rank.arena.floatsAt(flat.places[i].value_offset)[j] -
                           references[i][j].p));
  EXPECT_LT(worst, 2e-6);
}

TEST(Optimizer, ThreadsChangeNoBit) {
  auto bits = [](int threads) {
    FlatProgram flat({300000, 70001});
    Options options;
    ThreadPool pool(threads);
    pool.makeCurrent();
    FlatOptimizer rank(flat, options);
    std::mt19937 random(2);
    for (size_t param = 0; param < flat.params.size(); ++param)
      for (int64_t i = 0; i < flat.sizes[param]; ++i)
        rank.left(param)[i] = static_cast<float>(random()) * 1e-9f;
    rank.accumulate(true);
    rank.accumulate(false);
    double norm = rank.norm().total;
    rank.optimizer.update(1 / norm, 1, 1);
    std::string bytes(reinterpret_cast<const char *>(rank.arena.at(0)),
                      rank.arena.size());
    return std::make_pair(norm, bytes);
  };
  EXPECT_EQ(bits(1), bits(2));
  EXPECT_EQ(bits(1), bits(5));
}

TEST(Optimizer, NamesNonfiniteParametersAndUnmatchedGlobs) {
  FlatProgram flat({3, 5000});
  Options options;
  FlatOptimizer rank(flat, options);
  rank.left(1)[4999] = HUGE_VALF;
  rank.accumulate(true);
  EXPECT_EQ(rank.norm().firstNonfinite, 1);
  options.noDecay = {"q*"};
  EXPECT_THAT(errorOf([&] { FlatOptimizer(flat, options); }),
              HasSubstr("--no-decay: 'q*' matches no trainable parameter; "
                        "nearest: p0, p1"));
}

//===--- Threads ----------------------------------------------------------===//

TEST(ThreadPool, RunsEachIndexOnce) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    pool.makeCurrent();
    for (int64_t count : {0, 1, 2, 3, 1000})
      for (int round = 0; round < 200; ++round) {
        std::vector<std::atomic<int>> hits(count);
        parallelFor(count, [&](int64_t i) { ++hits[i]; });
        for (auto &hit : hits)
          ASSERT_EQ(hit, 1);
      }
  }
}

TEST(ThreadPool, NestsAndSleeps) {
  ThreadPool pool(3);
  pool.makeCurrent();
  std::atomic<int> sum{0};
  parallelFor(10, [&](int64_t) { parallelFor(10, [&](int64_t) { ++sum; }); });
  EXPECT_EQ(sum, 100);
  for (int i = 0; i < 20; ++i) { // Long enough for all to sleep in between.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    parallelFor(4, [&](int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      ++sum;
    });
  }
  EXPECT_EQ(sum, 180);
}

// Without a pool the caller does it.
TEST(ThreadPool, WorksWithoutPool) {
  int sum = 0;
  std::thread([&] {
    parallelFor(5, [&](int64_t i) { sum += static_cast<int>(i); });
  }).join();
  EXPECT_EQ(sum, 10);
}
