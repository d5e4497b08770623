//===- AcceleratorTest.cpp - Common code on an accelerator ----------------===//
//
// An accelerator that is host memory, and does late what may be done late: what
// is written arrives, and what is read is there, at synchronize() only.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Optimizer.h"
#include "runtime/src/common/Transfer.h"
#include "runtime/src/common/Weights.h"
#include "runtime/src/local/Executor.h"
#include "runtime/src/local/ThreadTransport.h"
#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <cmath>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

using namespace mgq::rt;
using namespace test;
using testing::HasSubstr;

namespace {
class LateDevice : public Accelerator {
public:
  explicit LateDevice(std::string id = "one") : id(std::move(id)) {}
  ~LateDevice() override { free(arena); }

  void copy(void *to, const void *from, int64_t bytes) override {
    enqueue([=] { memcpy(to, from, bytes); });
  }
  void zero(void *to, int64_t bytes) override {
    enqueue([=] { memset(to, 0, bytes); });
  }
  std::byte *beginWrite(void *to, int64_t bytes) override {
    target = to;
    room.assign(bytes, std::byte{0xff});
    return room.data();
  }
  void endWrite() override {
    enqueue(
        [to = target, from = room] { memcpy(to, from.data(), from.size()); });
  }
  void read(void *to, const void *from, int64_t bytes) override {
    memset(to, 0xff, bytes);
    enqueue([=] { memcpy(to, from, bytes); });
  }
  void readNow(void *to, const void *from, int64_t bytes) override {
    synchronize();
    memcpy(to, from, bytes);
  }
  void synchronize() override {
    for (auto &work : queue)
      work();
    queue.clear();
  }
  void enterCall(const char *) override {}
  void leaveCall(const char *) override {}

  std::string name() const override { return "late"; }
  std::string identity() const override { return id; }
  std::string memoryShortage(int64_t) override { return ""; }
  std::byte *allocate(int64_t bytes) override {
    arena = static_cast<std::byte *>(calloc(1, bytes));
    return arena;
  }
  void scale(float *values, double factor, int64_t count) override {
    enqueue([=] {
      for (int64_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(values[i] * factor);
    });
  }
  void squaredNorms(const std::vector<Values> &arrays, double *sums) override {
    enqueue([=] {
      for (size_t i = 0; i < arrays.size(); ++i)
        sums[i] = toy::squaredNorm(arrays[i].at, arrays[i].count);
    });
  }
  std::unique_ptr<DeviceMessages> makeMessages(const RankView &, const mgq_op *,
                                               int32_t) override {
    return nullptr;
  }
  std::unique_ptr<Collective> makeAllReduce(const RankView &, const Bucket &,
                                            CompressedGradients *) override {
    return nullptr;
  }
  void rehearse(bool) override {}
  void connect() override {}
  void end() override {}
  int32_t mark() override { return 0; }
  double secondsAt(int32_t) override { return 0; }
  void clearMarks() override {}

  void enqueue(std::function<void()> work) { queue.push_back(std::move(work)); }
  static LateDevice *current;

protected:
  void *allocateHost(int64_t bytes) override { return malloc(bytes); }
  void freeHost(void *memory) override { free(memory); }

private:
  std::string id;
  std::byte *arena = nullptr;
  void *target = nullptr;
  std::vector<std::byte> room;
  std::vector<std::function<void()>> queue;
};
LateDevice *LateDevice::current = nullptr;
int updates = 0;

// The kernels of the optimizer, as an accelerator has them: they enqueue.
void lateAdamw(float *parameter, const float *gradient, float *momentum,
               float *variance, const float *s, int64_t n) {
  ++updates;
  std::vector<float> scalars(s, s + MGQ_ADAMW_SCALARS);
  LateDevice::current->enqueue([=] {
    toy::adamw(parameter, gradient, momentum, variance, scalars.data(), n);
  });
}
void lateAccumulate(float *sum, const float *values, int64_t n) {
  LateDevice::current->enqueue([=] { toy::accumulate(sum, values, n); });
}

/// Parameters side by side, all of one use; the third has a group of its own.
struct Flat {
  explicit Flat(std::vector<int64_t> counts) : sizes(std::move(counts)) {
    int64_t part = 0, at = 0;
    for (int64_t size : sizes)
      part += (size * 4 + 63) / 64 * 64;
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto param = static_cast<int32_t>(i);
      params.push_back({names[i],
                        {MGQ_F32, 1, &sizes[i], sizes[i] * 4},
                        "",
                        0,
                        1,
                        0,
                        nullptr});
      places.push_back(
          {param, -1, at, part + at, 2 * part + at, 3 * part + at});
      uses.push_back({param, part + at});
      grads.push_back(
          {param, 0, 0, {MGQ_SPACE_ARENA, 0, 4 * part + at}, part + at});
      at += (sizes[i] * 4 + 63) / 64 * 64;
    }
    chunk.backward.call_count = 1;
    chunk.grads = grads.data();
    chunk.grad_count = rank.place_count = rank.use_count = program.param_count =
        static_cast<int32_t>(sizes.size());
    rank.places = places.data();
    rank.uses = uses.data();
    rank.chunks = &chunk;
    rank.chunk_count = 1;
    rank.arena_bytes = 5 * part;
    program.params = params.data();
    program.stages = program.replicas = 1;
    program.ranks = &rank;
    program.adamw = toy::adamw;
    program.sq_norm = toy::squaredNorm;
    program.accumulate = toy::accumulate;
  }

  static constexpr const char *names[] = {"a", "b", "c", "d"};
  std::vector<int64_t> sizes;
  std::vector<mgq_param> params;
  std::vector<mgq_place> places;
  std::vector<mgq_use> uses;
  std::vector<mgq_grad> grads;
  mgq_chunk chunk = {};
  mgq_rank rank = {};
  mgq_program program = {};
};

/// Two micro-batches, norms and an update. Returns norms and the arena.
std::pair<std::vector<double>, std::vector<float>> step(Flat &flat,
                                                        Arena &arena) {
  RankView view(flat.program, 0);
  Options options;
  options.noDecay = {"c"};
  Optimizer optimizer(view, options, arena);
  std::vector<std::byte *> places;
  for (const mgq_grad &grad : flat.grads)
    places.push_back(arena.at(grad.place.offset));
  optimizer.startStep();
  for (int microBatch = 0; microBatch < 2; ++microBatch) {
    for (size_t i = 0; i < places.size(); ++i) {
      std::vector<float> values(flat.sizes[i]);
      for (size_t j = 0; j < values.size(); ++j)
        values[j] = std::sin(static_cast<float>(j + 7 * i + 3 * microBatch));
      arena.device().write(places[i], values.data(),
                           static_cast<int64_t>(values.size()) * 4);
    }
    optimizer.accumulate(0, false, 0, places);
  }
  optimizer.combineUses();
  optimizer.unscale(3);
  std::vector<double> norms(flat.sizes.size());
  optimizer.squaredNorms(norms.data());
  optimizer.update(0.5, 1, 1);
  std::vector<float> all(flat.rank.arena_bytes / 4);
  arena.device().readNow(all.data(), arena.at(0), flat.rank.arena_bytes);
  return {norms, all};
}
} // namespace

// One call updates neighbours of a group, to the bits of the host.
TEST(Accelerator, OptimizerHasTheHostsBits) {
  Flat flat({3, 4000, 17, 70});
  Arena host(flat.rank.arena_bytes);
  auto expected = step(flat, host);
  LateDevice device;
  LateDevice::current = &device;
  Arena arena(flat.rank.arena_bytes, device);
  flat.program.adamw = lateAdamw;
  flat.program.accumulate = lateAccumulate;
  flat.program.sq_norm = nullptr;
  updates = 0;
  EXPECT_EQ(step(flat, arena), expected);
  EXPECT_EQ(updates, 3); // a and b; c; d
  EXPECT_EQ(arena.peakBytes(), flat.rank.arena_bytes);
}

// Weights, and tensors that are transposed on their way, as on the host.
TEST(Accelerator, TransfersAreTheHosts) {
  const mgq_program &program = mgq_program_table;
  TempDir dir;
  writeToyWeights(dir / "toy.weights");
  RankView view(program, 0);
  ThreadTransport transport(1, 0);
  Group group(transport.end(0));
  Arena host(view.tables.arena_bytes);
  LateDevice device;
  Arena arena(view.tables.arena_bytes, device);
  Weights(view, dir.path).load(host);
  Weights(view, dir.path).load(arena);
  Transfer from(view, host, group), to(view, arena, group);
  std::vector<float> values(48), found(48);
  for (int32_t param : {0, 1, 2}) {
    int64_t count = paramElements(program.params[param]);
    from.read(param, ParamPart::Value, 0, count, values.data());
    to.read(param, ParamPart::Value, 0, count, found.data());
    EXPECT_EQ(found, values) << param;
    for (float &value : values)
      value += 1;
    to.write(param, ParamPart::Momentum, MGQ_F32,
             reinterpret_cast<const std::byte *>(values.data()));
    to.read(param, ParamPart::Momentum, 0, count, found.data());
    EXPECT_TRUE(
        std::equal(found.begin(), found.begin() + count, values.begin()))
        << param;
  }
}

TEST(Accelerator, FilesAreNotOfTheArena) {
  TempDir dir;
  writeToyWeights(dir / "toy.weights");
  RankView view(mgq_program_table, 0);
  LateDevice device;
  Arena arena(view.tables.arena_bytes, device);
  Weights weights(view, dir.path);
  Trace trace(0);
  Executor executor(view, arena, weights, trace, [] {});
  mgq_ref inFile = {MGQ_SPACE_WEIGHT, 3, 0};
  EXPECT_EQ(errorOf([&] { executor.resolve(inFile, 4, {}, "a weight"); }),
            "the program's tables are damaged: a weight is in a file, not in "
            "the arena");
}

TEST(Accelerator, RefusesWhatItDoesNotDoYet) {
  mgq_program program = {};
  mgq_rank rank = {};
  program.stages = 1;
  program.ranks = &rank;
  Options options;
  auto error = [&] {
    return errorOf([&] { checkAccelerated(program, options); });
  };
  EXPECT_EQ(error(), "no error");
  rank.shard_count = 1;
  EXPECT_EQ(error(), "not supported yet: --frozen=sharded on a GPU; supported: "
                     "--frozen=stage");
  program.variant_count = 2;
  EXPECT_THAT(error(), HasSubstr("--micro-batches=MIN:MAX"));
  options.cacheFrozen = "memory";
  EXPECT_THAT(error(), HasSubstr("--cache-frozen"));
}

// All ranks fail where one has no device, or two would share one.
TEST(Accelerator, EachRankHasItsOwn) {
  auto errors = [](void (*open)(mgq_device_request *)) {
    mgq_program program = {};
    program.open_device = open;
    ThreadTransport transport(2, 20);
    std::string texts[2];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        Group group(transport.end(rank));
        Host host;
        host.place = rank;
        host.ranksHere = 2;
        texts[rank] = errorOf([&] { openAccelerator(program, group, host); });
      });
    for (std::thread &thread : threads)
      thread.join();
    return std::make_pair(texts[0], texts[1]);
  };
  auto good = errors([](mgq_device_request *request) {
    request->device =
        std::make_unique<LateDevice>(std::to_string(request->place));
  });
  EXPECT_EQ(good,
            std::make_pair(std::string("no error"), std::string("no error")));
  auto shared = errors([](mgq_device_request *request) {
    request->device = std::make_unique<LateDevice>();
  });
  EXPECT_THAT(shared.first,
              HasSubstr("ranks 0 and 1 would share one GPU (one)"));
  EXPECT_EQ(shared.first, shared.second);
  auto missing = errors([](mgq_device_request *request) {
    if (request->place == 0)
      request->device = std::make_unique<LateDevice>();
    else
      request->fault = "no driver";
  });
  EXPECT_EQ(missing, std::make_pair(std::string("rank 1: no driver"),
                                    std::string("no driver")));
}
