//===- CompressedGradientsTest.cpp - Compressed sums over replicas
//----------===//

#include "runtime/src/common/CompressedGradients.h"
#include "runtime/src/local/ThreadTransport.h"
#include "test/runtime/TestFiles.h"
#include <cstring>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>
#include <random>
#include <thread>

using namespace mgq::rt;

static int64_t wholeLines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

namespace {
/// One replica.
struct Rank {
  Rank(const RankView &view, Arena &arena, Group &group)
      : group(group), state(view, arena, group) {
    for (int i = 0; i < view.tables.op_count; ++i) {
      const mgq_op &op = view.tables.ops[i];
      sums[i] =
          state.makeAllReduce({&op, arena.floatsAt(op.place.offset),
                               arena.at(op.room.offset), TagReduce + 2 * i},
                              nullptr);
    }
  }

  /// Both sums of a step, side by side.
  void reduce(float factor) {
    state.startStep(true, factor);
    bool isDone[2] = {false, false};
    for (auto &sum : sums)
      sum->begin();
    while (true) {
      std::vector<int64_t> requests;
      for (int i = 0; i < 2; ++i) {
        isDone[i] = isDone[i] || sums[i]->advance();
        if (!isDone[i])
          requests.insert(requests.end(), sums[i]->requests().begin(),
                          sums[i]->requests().end());
      }
      if (isDone[0] && isDone[1])
        return;
      group.waitAny(requests);
    }
  }

  int64_t sent() const { return sums[0]->sentBytes() + sums[1]->sentBytes(); }

  Group &group;
  CompressedGradients state;
  std::unique_ptr<Collective> sums[2];
};

/// A stage that owns parameters of these sizes and sums them over replicas with
/// two all_reduce ops, the second from the third parameter on.
struct Toy {
  std::vector<int64_t> counts;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<mgq_param> params;
  std::vector<mgq_place> places;
  mgq_op ops[2] = {};
  mgq_rank rank = {};
  mgq_program program = {};

  Toy(std::vector<int64_t> sizes, mgq_compression format, int replicas,
      int64_t roomBytes)
      : counts(std::move(sizes)) {
    int64_t at = 64, blocks = 2; // Not at the start of the arena.
    shapes.reserve(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      shapes.push_back({counts[i]});
      mgq_param param = {};
      param.name = "p";
      param.stored = {MGQ_F32, 1, shapes[i].data(), counts[i] * 4};
      param.trainable = 1;
      params.push_back(param);
      places.push_back({static_cast<int32_t>(i), -1, -1, at, -1, -1});
      at += wholeLines(counts[i] * 4);
      blocks += (counts[i] + 255) / 256;
    }
    for (mgq_op &op : ops) {
      op.kind = MGQ_OP_ALL_REDUCE;
      op.compression = format;
    }
    int64_t cut = places[2].grad_offset;
    ops[0].place = {MGQ_SPACE_ARENA, 0, 64};
    ops[0].bytes = cut - 64;
    ops[1].place = {MGQ_SPACE_ARENA, 0, cut};
    ops[1].bytes = at - cut;
    rank.ops = ops;
    rank.op_count = 2;
    rank.places = places.data();
    rank.place_count = static_cast<int32_t>(places.size());
    mgq_residuals &residuals = rank.residuals;
    residuals.gradients = 64;
    residuals.bytes = at - 64;
    residuals.owner_bytes = (blocks / replicas + 2) * 1024;
    for (int64_t *pair : {residuals.worker, residuals.owner})
      for (int i = 0; i < 2; ++i) {
        pair[i] = at;
        at +=
            pair == residuals.worker ? residuals.bytes : residuals.owner_bytes;
      }
    for (int i = 0; i < 2; ++i) {
      ops[i].room = {MGQ_SPACE_ARENA, 0, at + i * roomBytes};
      ops[i].room_bytes = roomBytes;
      ops[i].bucket = i;
    }
    rank.arena_bytes = at + 2 * roomBytes;
    program.params = params.data();
    program.param_count = static_cast<int32_t>(params.size());
    program.stages = 1;
    program.replicas = replicas;
    program.ranks = &rank;
  }

  int64_t gradientFloats() const { return rank.residuals.bytes / 4; }

  /// Runs `body(replica, rank, arena)` on all replicas at once.
  void run(const std::function<void(int, Rank &, Arena &)> &body) const {
    ThreadTransport transport(program.replicas, 20);
    std::vector<std::thread> threads;
    for (int replica = 0; replica < program.replicas; ++replica)
      threads.emplace_back([&, replica] {
        Group group(transport.end(replica));
        RankView view(program, replica);
        Arena arena(rank.arena_bytes);
        Rank its(view, arena, group);
        body(replica, its, arena);
      });
    for (std::thread &thread : threads)
      thread.join();
  }
};

/// Bits of floats: NaN-proof comparison.
std::string bytesOf(const float *values, int64_t count) {
  return {reinterpret_cast<const char *>(values),
          static_cast<size_t>(count) * sizeof(float)};
}
} // namespace

static const std::vector<int64_t> sizes = {1030, 255, 256, 1, 769, 3000, 17};

/// Gradients of a replica in a step, as they lie in the arena.
static std::vector<float> gradientsOf(const Toy &toy, int replica, int step) {
  std::mt19937 random(static_cast<unsigned>(100 * step + replica));
  std::normal_distribution<float> normal;
  std::vector<float> values(toy.gradientFloats());
  for (float &value : values)
    value = normal(random);
  return values;
}

namespace {
/// What the algorithm comes to: all blocks on one machine, no shards.
struct Model {
  CompressedBlocks blocks;
  std::vector<std::vector<float>> worker;
  std::vector<float> owner, applied;

  static std::vector<CompressedBlocks::Param> paramsOf(const Toy &toy) {
    std::vector<CompressedBlocks::Param> params;
    for (size_t i = 0; i < toy.counts.size(); ++i)
      params.push_back({(toy.places[i].grad_offset - 64) / 4, toy.counts[i]});
    return params;
  }

  explicit Model(const Toy &toy)
      : blocks(static_cast<mgq_compression>(toy.ops[0].compression),
               paramsOf(toy)),
        worker(toy.program.replicas), owner(blocks.count() * 256),
        applied(toy.gradientFloats()) {
    for (auto &residual : worker)
      residual.resize(toy.gradientFloats());
  }

  void step(const Toy &toy, int number, float factor, bool commits) {
    std::vector<std::vector<std::byte>> sent(worker.size());
    std::vector<const std::byte *> pieces;
    std::vector<std::vector<float>> newWorker = worker;
    std::vector<float> newOwner = owner;
    int64_t bytes = blocks.bytes(0, blocks.count());
    for (size_t r = 0; r < worker.size(); ++r) {
      sent[r].resize(bytes);
      blocks.encode(0, blocks.count(),
                    gradientsOf(toy, static_cast<int>(r), number).data(),
                    factor, worker[r].data(), newWorker[r].data(),
                    sent[r].data());
      pieces.push_back(sent[r].data());
    }
    std::vector<std::byte> sum(bytes);
    blocks.combine(0, blocks.count(), pieces.data(),
                   static_cast<int64_t>(pieces.size()), owner.data(),
                   newOwner.data(), sum.data(), applied.data());
    if (commits) {
      worker = newWorker;
      owner = newOwner;
    }
  }
};
} // namespace

/// Steps with a skipped one among them; all replicas must hold the model's
/// bits, whatever the shards and rounds.
static void check(mgq_compression format, int replicas, int64_t room) {
  SCOPED_TRACE(testing::Message() << "format " << format << ", " << replicas
                                  << " replicas, room " << room);
  Toy toy(sizes, format, replicas, room);
  Model model(toy);
  std::vector<std::string> expected;
  for (int step = 0; step < 4; ++step) {
    model.step(toy, step, 0.5f, step != 1);
    std::string values;
    for (const auto &param : Model::paramsOf(toy))
      values += bytesOf(&model.applied[param.offset], param.count);
    expected.push_back(values);
  }
  int64_t whole = model.blocks.bytes(0, model.blocks.count());
  std::mutex mutex;
  int64_t allSent = 0;
  toy.run([&](int replica, Rank &its, Arena &arena) {
    ASSERT_TRUE(its.state.isUsed());
    for (int step = 0; step < 4; ++step) {
      std::vector<float> values = gradientsOf(toy, replica, step);
      memcpy(arena.at(64), values.data(), values.size() * 4);
      its.reduce(0.5f);
      if (step != 1)
        its.state.commit();
      std::string result;
      for (size_t i = 0; i < toy.counts.size(); ++i)
        result +=
            bytesOf(arena.floatsAt(toy.places[i].grad_offset), toy.counts[i]);
      EXPECT_EQ(result, expected[step]) << "step " << step;
    }
    std::lock_guard<std::mutex> lock(mutex);
    allSent += its.sent();
  });
  // Each replica's values go out once, and each sum comes back to all others.
  EXPECT_EQ(allSent, 4 * 2 * (replicas - 1) * whole);
}

TEST(CompressedGradients, IsTheModelWithShards) {
  for (mgq_compression format : {MGQ_COMPRESSION_BF16, MGQ_COMPRESSION_SPARSE24,
                                 MGQ_COMPRESSION_SPARSE24_INT8})
    for (int replicas : {2, 3, 4})
      for (int64_t room : {replicas * 1024, replicas * 3 * 1024, 1 << 20})
        check(format, replicas, room);
}

// More replicas than blocks: some own nothing.
TEST(CompressedGradients, ShardsMayBeEmpty) {
  Toy toy({5, 7, 3}, MGQ_COMPRESSION_SPARSE24, 4, 1 << 16);
  toy.run([&](int replica, Rank &its, Arena &arena) {
    for (int i = 0; i < toy.gradientFloats(); ++i)
      arena.floatsAt(64)[i] = static_cast<float>(replica + 1);
    its.reduce(1);
    for (const mgq_place &place : toy.places)
      EXPECT_EQ(*arena.floatsAt(place.grad_offset), 10);
  });
}

namespace {
/// What a checkpoint has of residuals: whole tensors.
struct Saved {
  std::vector<float> owners;
  std::vector<std::vector<float>> workers;
};
} // namespace

/// Values of parameters only, not of what lies between them.
static std::vector<float> paramsOnly(const Toy &toy, const float *values) {
  std::vector<float> result(toy.gradientFloats());
  for (const auto &param : Model::paramsOf(toy))
    std::copy_n(values + param.offset, param.count,
                result.begin() + param.offset);
  return result;
}

static Saved saveAfterSteps(const Toy &toy) {
  Saved saved;
  toy.run([&](int replica, Rank &its, Arena &arena) {
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values = gradientsOf(toy, replica, step);
      memcpy(arena.at(64), values.data(), values.size() * 4);
      its.reduce(1);
      its.state.commit();
    }
    auto staged = [&] {
      return paramsOnly(toy, arena.floatsAt(its.state.stagingOffset()));
    };
    its.state.collectOwners();
    if (replica == 0)
      saved.owners = staged();
    for (int r = 0; r < toy.program.replicas; ++r) {
      its.state.collectWorker(r);
      if (replica == 0)
        saved.workers.push_back(staged());
    }
  });
  return saved;
}

static void adopt(const Saved &saved, CompressedGradients &reducer,
                  Arena &arena) {
  auto stage = [&](const std::vector<float> &values) {
    memcpy(arena.at(reducer.stagingOffset()), values.data(), values.size() * 4);
  };
  stage(saved.owners);
  reducer.adoptOwners();
  for (size_t i = 0; i < saved.workers.size(); ++i) {
    stage(saved.workers[i]);
    reducer.adoptWorker(static_cast<int32_t>(i),
                        static_cast<int32_t>(saved.workers.size()));
  }
}

// What the model's residuals are goes into a checkpoint, and comes back on the
// same number of replicas as it was.
TEST(CompressedGradients, ResidualsAreSavedWhole) {
  Toy toy(sizes, MGQ_COMPRESSION_SPARSE24, 3, 1 << 14);
  Model model(toy);
  for (int step = 0; step < 3; ++step)
    model.step(toy, step, 1, true);
  Saved saved = saveAfterSteps(toy);
  std::vector<float> owners(toy.gradientFloats());
  model.blocks.scatter(hostDevice(), 0, model.blocks.count(),
                       model.owner.data(), owners.data());
  EXPECT_EQ(saved.owners, owners);
  ASSERT_EQ(saved.workers.size(), 3u);
  for (int r = 0; r < 3; ++r)
    EXPECT_EQ(saved.workers[r], paramsOnly(toy, model.worker[r].data()));
  model.step(toy, 3, 1, true);
  toy.run([&](int replica, Rank &its, Arena &arena) {
    adopt(saved, its.state, arena);
    std::vector<float> values = gradientsOf(toy, replica, 3);
    memcpy(arena.at(64), values.data(), values.size() * 4);
    its.reduce(1);
    EXPECT_EQ(paramsOnly(toy, arena.floatsAt(64)),
              paramsOnly(toy, model.applied.data()));
  });
}

// On another number of replicas nothing is lost: the sum of all is the same.
TEST(CompressedGradients, ResidualsAreSharedOutAgain) {
  Toy three(sizes, MGQ_COMPRESSION_SPARSE24_INT8, 3, 1 << 14);
  Saved saved = saveAfterSteps(three);
  for (int replicas : {2, 4}) {
    Toy toy(sizes, MGQ_COMPRESSION_SPARSE24_INT8, replicas, 1 << 14);
    Saved again;
    toy.run([&](int replica, Rank &its, Arena &arena) {
      adopt(saved, its.state, arena);
      auto staged = [&] {
        return paramsOnly(toy, arena.floatsAt(its.state.stagingOffset()));
      };
      its.state.collectOwners();
      if (replica == 0)
        again.owners = staged();
      for (int r = 0; r < replicas; ++r) {
        its.state.collectWorker(r);
        if (replica == 0)
          again.workers.push_back(staged());
      }
    });
    EXPECT_EQ(again.owners, saved.owners);
    for (int64_t i = 0; i < toy.gradientFloats(); ++i) {
      float before = 0, after = 0;
      for (const auto &worker : saved.workers)
        before += worker[i];
      for (const auto &worker : again.workers) {
        after += worker[i];
        EXPECT_EQ(worker[i], again.workers[0][i]);
      }
      EXPECT_NEAR(after, before, 1e-6);
    }
  }
}

TEST(CompressedGradients, DamagedTablesAreNamed) {
  auto errorWith = [](const std::function<void(Toy &)> &damage) {
    Toy toy(sizes, MGQ_COMPRESSION_SPARSE24, 2, 1 << 14);
    damage(toy);
    ThreadTransport transport(2, 20);
    Group group(transport.end(0));
    RankView view(toy.program, 0);
    Arena arena(toy.rank.arena_bytes);
    return test::errorOf([&] { Rank(view, arena, group); });
  };
  EXPECT_EQ(errorWith([](Toy &) {}), "no error");
  for (const auto &damage : std::vector<std::function<void(Toy &)>>{
           [](Toy &toy) { toy.rank.residuals.worker[1] = -1; },
           [](Toy &toy) { toy.rank.residuals.owner[0] += 4; },
           [](Toy &toy) { toy.rank.residuals.owner_bytes = 64; },
           [](Toy &toy) { toy.ops[1].room_bytes = 2047; },
           [](Toy &toy) { toy.ops[0].compression = 9; },
           [](Toy &toy) { toy.ops[0].bytes += 4; },
           [](Toy &toy) { toy.ops[1].bytes += 64; }})
    EXPECT_THAT(errorWith(damage),
                testing::StartsWith("the program's tables are damaged: "
                                    "compressed gradients: "));
  // One replica sends nothing and keeps nothing.
  Toy toy(sizes, MGQ_COMPRESSION_SPARSE24, 1, 1 << 14);
  toy.rank.residuals.worker[1] = -1;
  ThreadTransport transport(1, 20);
  Group group(transport.end(0));
  RankView view(toy.program, 0);
  Arena arena(toy.rank.arena_bytes);
  CompressedGradients state(view, arena, group);
  EXPECT_FALSE(state.isUsed() || state.isSaved());
}
