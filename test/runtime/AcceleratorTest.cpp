//===- AcceleratorTest.cpp - Common code on an accelerator ----------------===//
//
// An accelerator that is host memory, and does late what may be done late: what
// is written arrives, and what is read is there, at synchronize() only.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/DeviceTimes.h"
#include "runtime/src/common/Optimizer.h"
#include "runtime/src/common/Transfer.h"
#include "runtime/src/common/Weights.h"
#include "runtime/src/local/Executor.h"
#include "runtime/src/local/ThreadTransport.h"
#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <numeric>
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
  std::string model() const override { return "late"; }
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
  std::unique_ptr<Collective> makeShardGather(const RankView &,
                                              const Bucket &) override {
    return nullptr;
  }
  void rehearse(bool) override {}
  void record(bool on) override {
    recording = on;
    if (on)
      records.clear();
  }
  void enqueueRecorded(const WorkKey &key, const char *,
                       const std::function<void()> &work) override {
    auto found = records.find(key);
    launches += !recording && found != records.end();
    if (!recording && found == records.end())
      return work();
    if (recording) {
      std::vector<std::function<void()>> before = std::move(queue);
      queue.clear();
      work();
      records[key] = std::exchange(queue, std::move(before));
      return;
    }
    queue.insert(queue.end(), found->second.begin(), found->second.end());
  }
  void connect() override {}
  void end() override {}
  void timeMessages() override {}
  int32_t mark() override { return marks++; } // One a second.
  double secondsAt(int32_t mark) override { return mark; }
  void clearMarks() override {}

  void enqueue(std::function<void()> work) { queue.push_back(std::move(work)); }
  static LateDevice *current;
  int launches = 0; ///< Of what was recorded.
  int32_t marks = 0;

protected:
  void *allocateHost(int64_t bytes) override { return malloc(bytes); }
  void freeHost(void *memory) override { free(memory); }

private:
  std::string id;
  std::byte *arena = nullptr;
  void *target = nullptr;
  std::vector<std::byte> room;
  std::vector<std::function<void()>> queue;
  bool recording = false;
  std::map<WorkKey, std::vector<std::function<void()>>> records;
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

// Of weights that are spread a rank loads its slice, which may end inside one.
TEST(Accelerator, LoadsSlices) {
  TempDir dir;
  std::vector<float> values(180);
  std::iota(values.begin(), values.end(), 1);
  std::ofstream(dir / "w", std::ios::binary)
      .write(reinterpret_cast<const char *>(values.data()), 720);
  int64_t shapes[] = {150, 30};
  mgq_param params[2] = {};
  for (int i : {0, 1}) {
    params[i].name = i ? "b" : "a";
    params[i].stored = {MGQ_F32, 1, &shapes[i], shapes[i] * 4};
    params[i].file = "w";
    params[i].file_offset = int64_t{i} * 600;
  }
  // 300 bytes and 120, in two slices of 256.
  mgq_place copies[] = {{0, MGQ_BF16, 256, -1, -1, -1},
                        {1, -1, 576, -1, -1, -1}};
  mgq_shard shard = {{nullptr, 0, nullptr, 0}, copies, 2, 256, 0, 256};
  mgq_rank rank = {};
  rank.shards = &shard;
  rank.shard_count = 1;
  mgq_program program = {};
  program.ranks = &rank;
  program.params = params;
  program.param_count = 2;
  program.stages = 1;
  program.replicas = 2;
  std::vector<std::byte> found, expected(512);
  convertFromFloat(MGQ_BF16, values.data(), expected.data(), 150);
  memcpy(expected.data() + 320, &values[150], 120);
  for (int32_t replica : {0, 1}) {
    Arena arena(768);
    Weights(RankView(program, replica), dir.path).load(arena);
    found.insert(found.end(), arena.at(0), arena.at(256));
  }
  EXPECT_EQ(found, expected);
  auto error = [&] {
    Arena arena(768);
    return errorOf(
        [&] { Weights(RankView(program, 1), dir.path).load(arena); });
  };
  shard.slice_bytes = 255;
  EXPECT_EQ(error(), "the program's tables are damaged: parameter 'a' in "
                     "slices of 255 bytes");
  shard.slice = 600;
  EXPECT_EQ(error(), "the program's tables are damaged: shard 0");
}

namespace {
void enqueueOn(void *const *args, void (*change)(float &)) {
  LateDevice::current->enqueue(
      [value = static_cast<float *>(args[0]), change] { change(*value); });
}
void addOne(void *const *args, void *) {
  enqueueOn(args, [](float &value) { value += 1; });
}
void timesThree(void *const *args, void *) {
  enqueueOn(args, [](float &value) { value *= 3; });
}
void timesFive(void *const *args, void *) {
  enqueueOn(args, [](float &value) { value *= 5; });
}

/// Behind each of three calls adds ten; behind the first begins something else.
struct Tens : CallHook {
  explicit Tens(float *value) : value(value) {}
  void afterCall(int32_t call) override {
    enqueue(call);
    finish(call);
  }
  void plan(int32_t, WorkKey &key) override { key.push_back(ten); }
  void enqueue(int32_t) override {
    LateDevice::current->enqueue(
        [value = value, ten = ten] { *value += static_cast<float>(ten); });
  }
  void finish(int32_t call) override { finished.push_back(call); }
  bool enqueuesMore(int32_t call) const override { return call == 0; }

  float *value;
  uint64_t ten = 10;
  std::vector<int32_t> finished;
};
} // namespace

// What is recorded is launched where it is the same, and computes the same.
TEST(Accelerator, RecordsWhatItEnqueues) {
  mgq_layer layer = {"layer", 0, 0, /*late_from=*/5};
  mgq_ref place = {MGQ_SPACE_ARENA, 0, 0};
  mgq_call calls[] = {{addOne, "a", &place, 1, 0, 0, 0, nullptr},
                      {timesThree, "b", &place, 1, 0, 0, 0, timesFive},
                      {addOne, "c", &place, 1, 0, 0, 0, nullptr}};
  mgq_sequence sequence = {nullptr, 0, calls, 3};
  mgq_rank rank = {};
  rank.arena_bytes = 64;
  mgq_program program = {};
  program.stages = program.replicas = program.layer_count = 1;
  program.layers = &layer;
  program.ranks = &rank;
  program.model_path = "";
  RankView view(program, 0);
  LateDevice device;
  LateDevice::current = &device;
  Arena arena(rank.arena_bytes, device);
  Weights weights(view, "");
  Trace trace(0);
  Executor executor(view, arena, weights, trace, [] {});
  const Runnable &runnable = executor.prepare(sequence, -1, {});
  auto *value = reinterpret_cast<float *>(arena.at(0));
  Tens hook(value);
  auto run = [&] {
    *value = 1;
    device.launches = 0;
    hook.finished.clear();
    executor.run(runnable, Phase::Backward, 0, &hook);
    EXPECT_EQ(hook.finished, (std::vector<int32_t>{0, 1, 2}));
    device.synchronize();
    return std::make_pair(*value, device.launches);
  };
  // ((1 + 1 + 10) * 3 + 10) + 1 + 10
  EXPECT_EQ(run(), std::make_pair(57.0F, 0));
  device.record(true);
  executor.record(runnable, &hook);
  device.record(false);
  device.synchronize();
  EXPECT_EQ(*value, 57) << "recording enqueues nothing";
  EXPECT_EQ(hook.finished.size(), 3U) << "nor does it finish anything";
  EXPECT_EQ(run(), std::make_pair(57.0F, 2)); // The first call; the others.
  EXPECT_TRUE(executor.changesIn(5));
  EXPECT_FALSE(executor.changesIn(4));
  executor.setStep(5);
  EXPECT_EQ(run(), std::make_pair(81.0F, 1)); // 12 * 5 + 21
  hook.ten = 20;
  EXPECT_EQ(run(), std::make_pair(151.0F, 0)); // (22 * 5 + 20) + 21
}

namespace {
/// Two stages: a message there, one back, one for the next step; a gather, and
/// one for the next step.
struct TwoStages {
  TwoStages() {
    auto op = [](int32_t kind, int32_t peer, int32_t tag, bool ahead = false) {
      mgq_op made = {};
      made.kind = kind;
      made.peer = peer;
      made.tag = tag;
      made.ahead = ahead;
      return made;
    };
    ops[0] = {op(MGQ_OP_FORWARD, 0, 0), op(MGQ_OP_SEND, 1, 3),
              op(MGQ_OP_RECEIVE, 1, 4), op(MGQ_OP_BACKWARD, 0, 0),
              op(MGQ_OP_SEND, 1, 5, true)};
    ops[1] = {op(MGQ_OP_RECEIVE, 0, 3), op(MGQ_OP_FORWARD, 0, 0),
              op(MGQ_OP_BACKWARD, 0, 0), op(MGQ_OP_SEND, 0, 4),
              op(MGQ_OP_RECEIVE, 0, 5, true)};
    for (int stage = 0; stage < 2; ++stage) {
      for (int32_t bucket : {0, 1}) {
        mgq_op gather = op(MGQ_OP_ALL_GATHER, -1, -1, /*ahead=*/bucket == 1);
        gather.bucket = bucket;
        auto at = stage == 0 ? ops[stage].begin() : ops[stage].end();
        ops[stage].insert(at, gather);
      }
      ranks[stage].stage = stage;
      ranks[stage].ops = ops[stage].data();
      ranks[stage].op_count = static_cast<int32_t>(ops[stage].size());
    }
    program.stages = 2;
    program.replicas = 1;
    program.ranks = ranks;
  }
  std::vector<mgq_op> ops[2];
  mgq_rank ranks[2] = {};
  mgq_program program = {};
};
} // namespace

// A message travels from when both sides have begun it until its receiver has
// it, a gather from when all have until this rank has all; clocks of ranks
// differ.
TEST(Accelerator, TimesMessages) {
  TwoStages two;
  // By rank 0's clock: 10 to 14 there, 30 to 31 back. Sides begin at other
  // times; a sender is done earlier. A gather from 50.
  std::vector<mgq_span> spans[2] = {
      {{60, 70}, {50, 52}, {0, 0}, {8, 12}, {30, 31}, {0, 0}, {40, 44}},
      {{10, 14}, {0, 0}, {0, 0}, {20, 29}, {40, 44}, {48, 53}, {60, 70}}};
  const double clock[2] = {0, -100}; // What makes a rank's clock rank 0's.
  ThreadTransport transport(2, 20);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Group group(transport.end(rank));
      RankView view(two.program, rank);
      LateDevice device;
      DeviceTimes deviceTimes(view, device, group);
      HiddenTime times(8, 8);
      times.startStep();
      deviceTimes.startStep();
      for (int i = 0; i < 10; ++i)
        device.mark();
      for (int32_t kind : {MGQ_OP_FORWARD, MGQ_OP_BACKWARD}) {
        mgq_op op = {};
        op.kind = kind;
        deviceTimes.beginOp(); // 10 to 13, then 14 to 17
        if (kind == MGQ_OP_BACKWARD)
          deviceTimes.gradientReady();
        device.mark();
        device.marks += kind == MGQ_OP_FORWARD;
        deviceTimes.endOp(op);
      }
      DeviceTimes::Computed computed =
          deviceTimes.read(times, clock[rank], [&](int32_t i) {
            mgq_span span = spans[rank][i];
            return mgq_span{span.begin - clock[rank], span.end - clock[rank]};
          });
      times.endStep();
      EXPECT_EQ(computed.began, 10);
      EXPECT_EQ(computed.ended, 17);
      EXPECT_EQ(computed.busy, 6);
      EXPECT_EQ(times.time().total, rank == 0 ? 7 : 8);
      EXPECT_EQ(times.time().hidden, rank == 0 ? 3 : 0); // 10 to 13
    });
  for (std::thread &thread : threads)
    thread.join();
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
  Options options;
  auto error = [&] {
    return errorOf([&] { checkAccelerated(program, options); });
  };
  EXPECT_EQ(error(), "no error");
  options.cudaGraphs = false;
  EXPECT_EQ(error(), "usage: --cuda-graphs is for programs compiled with "
                     "--target=cuda; this one runs on the CPU");
  program.open_device = [](mgq_device_request *) {};
  EXPECT_EQ(error(), "no error");
  program.variant_count = 2;
  EXPECT_THAT(error(), HasSubstr("--micro-batches=MIN:MAX"));
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
