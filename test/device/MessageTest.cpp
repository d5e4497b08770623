//===- MessageTest.cpp - The stand-in of libnccl --------------------------===//

#include "test/device/programs/Driver.h"
#include <cstring>
#include <gmock/gmock.h>
#include <nccl.h>
#include <thread>

using namespace mgq::scenario;
using testing::AnyOf;
using testing::HasSubstr;

static constexpr int faultStatus = 86;
static constexpr size_t count = 3000;

static bool has(const char *fault) {
  const char *seeded = std::getenv("FAULT");
  return seeded && std::string(seeded) == fault;
}

//===----------------------------------------------------------------------===//
// Host programs
//===----------------------------------------------------------------------===//

namespace {
/// A rank's end. Words: rank, ranks, an id that all know.
struct Comm {
  ncclComm_t handle;
  int rank, size;

  explicit Comm(const Words &words, const char *suffix = "")
      : rank(std::stoi(words.at(1))), size(std::stoi(words.at(2))) {
    ncclUniqueId id{};
    std::snprintf(id.internal, sizeof id.internal, "test-%s%s",
                  words.at(3).c_str(), suffix);
    CHECK_OK(ncclCommInitRank(&handle, size, id, rank));
  }
  Comm(const Comm &) = delete;
  ~Comm() { CHECK_OK(ncclCommDestroy(handle)); }

  /// What the host of a rank does while it waits: it looks for faults.
  void wait(Stream &stream) {
    while (cuStreamQuery(stream.handle) == CUDA_ERROR_NOT_READY) {
      check();
      std::this_thread::yield();
    }
    check();
  }
  void check() {
    ncclResult_t fault;
    CHECK_OK(ncclCommGetAsyncError(handle, &fault));
    if (fault == ncclSuccess)
      return;
    std::printf("%s: %s\n", ncclGetErrorString(fault),
                ncclGetLastError(handle));
    std::fflush(nullptr);
    std::exit(1);
  }
};

cudaStream_t runtime(Stream &stream) {
  return reinterpret_cast<cudaStream_t>(stream.handle);
}

float valueOf(int rank, size_t i) {
  return float(int(i % 7) - 3) + float(rank);
}
std::vector<float> valuesOf(int rank, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i)
    values[i] = valueOf(rank, i);
  return values;
}
} // namespace

SCENARIO(collectives) {
  openDevice(std::stoi(words.at(1)));
  Comm comm(words);
  Stream stream;
  auto n = size_t(comm.size);
  Memory<float> mine(valuesOf(comm.rank, count * n)), whole(count * n),
      part(count);
  CHECK_OK(ncclAllReduce(mine.pointer(), whole.pointer(), count * n,
                         ncclFloat32, ncclSum, comm.handle, runtime(stream)));
  comm.wait(stream);
  std::vector<float> sums = whole.read();
  for (size_t i = 0; i < count * n; ++i)
    CHECK_THAT(sums[i] == float(n) * valueOf(0, i) +
                              float(comm.size * (comm.size - 1) / 2));
  CHECK_OK(ncclReduceScatter(mine.pointer(), part.pointer(), count, ncclFloat32,
                             ncclMax, comm.handle, runtime(stream)));
  comm.wait(stream);
  std::vector<float> most = part.read();
  for (size_t i = 0; i < count; ++i)
    CHECK_THAT(most[i] ==
               valueOf(comm.size - 1, size_t(comm.rank) * count + i));
  CHECK_OK(ncclAllGather(part.pointer(), whole.pointer(), count, ncclFloat32,
                         comm.handle, runtime(stream)));
  CHECK_OK(ncclBroadcast(mine.pointer(), part.pointer(), count, ncclFloat32,
                         comm.size - 1, comm.handle, runtime(stream)));
  comm.wait(stream);
  std::vector<float> gathered = whole.read(), root = part.read();
  for (size_t i = 0; i < count * n; ++i)
    CHECK_THAT(gathered[i] == valueOf(comm.size - 1, i));
  for (size_t i = 0; i < count; ++i)
    CHECK_THAT(root[i] == valueOf(comm.size - 1, i));
  CHECK_OK(ncclReduce(mine.pointer(), part.pointer(), count, ncclFloat32,
                      ncclAvg, 0, comm.handle, runtime(stream)));
  comm.wait(stream);
  if (comm.rank == 0)
    CHECK_THAT(part.read()[1] == valueOf(0, 1) + float(comm.size - 1) / 2);
  return 0;
}

/// bf16: one rounding of the sum, the same bits everywhere.
SCENARIO(halves) {
  openDevice(std::stoi(words.at(1)));
  Comm comm(words);
  Stream stream;
  auto bits = [](float value) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    return uint16_t(word >> 16);
  };
  std::vector<uint16_t> values(count,
                               bits(comm.rank == 0 ? 1.0f : 0.00390625f));
  Memory<uint16_t> memory(values);
  CHECK_OK(ncclAllReduce(memory.pointer(), memory.pointer(), count,
                         ncclBfloat16, ncclSum, comm.handle, runtime(stream)));
  comm.wait(stream);
  // 1 + 3 / 256 rounds to 1 + 2 / 128; each alone would be lost.
  float expected = comm.size == 4 ? 1.015625f : 1.0f;
  for (uint16_t each : memory.read())
    CHECK_THAT(each == bits(expected));
  return 0;
}

/// Values go around a ring, in a group; then two messages in one direction.
SCENARIO(ring) {
  openDevice(std::stoi(words.at(1)));
  Comm comm(words);
  Stream stream;
  int right = (comm.rank + 1) % comm.size;
  int left = (comm.rank + comm.size - 1) % comm.size;
  Memory<float> mine(valuesOf(comm.rank, count)), theirs(count), more(16);
  for (int round = 0; round < 3; ++round) {
    CHECK_OK(ncclGroupStart());
    CHECK_OK(ncclSend(mine.pointer(), count, ncclFloat32, right, comm.handle,
                      runtime(stream)));
    CHECK_OK(ncclRecv(theirs.pointer(), count, ncclFloat32, left, comm.handle,
                      runtime(stream)));
    CHECK_OK(ncclSend(mine.pointer(), 16, ncclFloat32, right, comm.handle,
                      runtime(stream)));
    CHECK_OK(ncclRecv(more.pointer(), 16, ncclFloat32, left, comm.handle,
                      runtime(stream)));
    CHECK_OK(
        ncclSend(nullptr, 0, ncclFloat32, right, comm.handle, runtime(stream)));
    CHECK_OK(
        ncclRecv(nullptr, 0, ncclFloat32, left, comm.handle, runtime(stream)));
    CHECK_OK(ncclGroupEnd());
  }
  comm.wait(stream);
  CHECK_THAT(theirs.read() == valuesOf(left, count));
  CHECK_THAT(more.read() == valuesOf(left, 16));
  return 0;
}

/// Rank 0 computes and sends, rank 1 receives and computes.
SCENARIO(pipeline) {
  openDevice(std::stoi(words.at(1)));
  Stream compute, messages;
  Event made, sent, arrived;
  Memory<float> x(std::vector<float>(4096, 1)), y(4096);
  Module module("faults");
  Comm comm(words);
  CUfunction scale = module.function("scale");
  if (comm.rank == 0) {
    for (int step = 0; step < 3; ++step) {
      if (step > 0 && !has("wait after send"))
        sent.before(compute);
      CHECK_OK(launch(scale, 16, 256, compute.handle, x.address, y.address,
                      float(step), 4096));
      made.record(compute);
      if (!has("wait before send"))
        made.before(messages);
      CHECK_OK(ncclSend(y.pointer(), has("count") && step == 1 ? 4095 : 4096,
                        ncclFloat32, 1, comm.handle, runtime(messages)));
      sent.record(messages);
    }
    comm.wait(messages);
  } else {
    for (int step = 0; step < 3; ++step) {
      if (step > 0)
        made.before(messages);
      CHECK_OK(ncclRecv(y.pointer(), 4096,
                        has("type") ? ncclInt32 : ncclFloat32, 0, comm.handle,
                        runtime(messages)));
      arrived.record(messages);
      if (!has("wait after receive"))
        arrived.before(compute);
      CHECK_OK(launch(scale, 16, 256, compute.handle, y.address, x.address,
                      2.0f, 4096));
      made.record(compute);
    }
    comm.wait(messages);
    compute.wait();
    if (!std::getenv("FAULT"))
      CHECK_THAT(x.read() == std::vector<float>(4096, 4));
  }
  CHECK_OK(cuCtxSynchronize());
  if (has("leak"))
    new Comm(words, "-again");
  return 0;
}

/// Neither rank sends what the other waits for.
SCENARIO(silent) {
  openDevice(std::stoi(words.at(1)));
  Stream stream;
  Memory<float> y(16);
  Comm comm(words);
  if (has("dies") && comm.rank == 1)
    _exit(3);
  CHECK_OK(ncclRecv(y.pointer(), 16, ncclFloat32, 1 - comm.rank, comm.handle,
                    runtime(stream)));
  comm.wait(stream);
  return 0;
}

/// Two ranks that both send first: neither ends, whatever the size.
SCENARIO(cycle) {
  openDevice(std::stoi(words.at(1)));
  Stream stream;
  Memory<float> y(std::vector<float>(4));
  Comm comm(words);
  CHECK_OK(ncclSend(y.pointer(), 4, ncclFloat32, 1 - comm.rank, comm.handle,
                    runtime(stream)));
  CHECK_OK(ncclRecv(y.pointer(), 4, ncclFloat32, 1 - comm.rank, comm.handle,
                    runtime(stream)));
  comm.wait(stream);
  return 0;
}

/// Ranks that are threads of a process, one device each.
SCENARIO(threads) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([rank] {
      openDevice(rank);
      Comm comm({"", std::to_string(rank), "3", std::to_string(getpid())});
      Stream stream;
      Memory<float> memory(valuesOf(rank, count));
      CHECK_OK(ncclAllReduce(memory.pointer(), memory.pointer(), count,
                             ncclFloat32, ncclSum, comm.handle,
                             runtime(stream)));
      comm.wait(stream);
      CHECK_THAT(memory.read()[8] == 3 * valueOf(0, 8) + 3);
    });
  for (std::thread &rank : ranks)
    rank.join();
  return 0;
}

/// One thread that opens several ranks in a group.
SCENARIO(init_group) {
  ncclUniqueId id;
  CHECK_OK(ncclGetUniqueId(&id));
  ncclComm_t comms[2];
  CHECK_OK(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    openDevice(rank);
    CHECK_OK(ncclCommInitRank(&comms[rank], 2, id, rank));
  }
  CHECK_OK(ncclGroupEnd());
  int size, rank, device;
  CHECK_OK(ncclCommCount(comms[1], &size));
  CHECK_OK(ncclCommUserRank(comms[1], &rank));
  CHECK_OK(ncclCommCuDevice(comms[1], &device));
  CHECK_THAT(size == 2 && rank == 1 && device == 1);
  CHECK_THAT(ncclSend(nullptr, 1, ncclFloat32, 2, comms[0], nullptr) ==
             ncclInvalidArgument);
  CHECK_THAT(std::string(ncclGetLastError(comms[0])) == "rank 2 of 2");
  for (ncclComm_t comm : comms)
    CHECK_OK(ncclCommAbort(comm));
  return 0;
}

SCENARIO(same_device) {
  openDevice(0);
  ncclUniqueId id{};
  std::snprintf(id.internal, sizeof id.internal, "same-%s",
                words.at(3).c_str());
  ncclComm_t comm;
  ncclResult_t status = ncclCommInitRank(&comm, 2, id, std::stoi(words.at(1)));
  std::printf("status %d\n", status);
  return status != ncclSuccess;
}

/// Two communicators of one device, which may take as many blocks as it has,
/// or with FAULT=blocks more.
SCENARIO(blocks) {
  openDevice(0);
  ncclComm_t comms[2];
  for (ncclComm_t &comm : comms) {
    ncclUniqueId id;
    CHECK_OK(ncclGetUniqueId(&id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = std::getenv("FAULT") ? 16 : 12;
    CHECK_OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  }
  for (ncclComm_t comm : comms)
    CHECK_OK(ncclCommDestroy(comm));
  return 0;
}

/// A graph with a message in it, launched three times.
SCENARIO(graph) {
  openDevice(std::stoi(words.at(1)));
  Comm comm(words);
  {
    Stream stream;
    Memory<float> memory(std::vector<float>(count, 1));
    CHECK_OK(
        cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_OK(ncclAllReduce(memory.pointer(), memory.pointer(), count,
                           ncclFloat32, ncclSum, comm.handle, runtime(stream)));
    CUgraph graph;
    CHECK_OK(cuStreamEndCapture(stream.handle, &graph));
    CUgraphExec executable;
    CHECK_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 3; ++i)
      CHECK_OK(cuGraphLaunch(executable, stream.handle));
    comm.wait(stream);
    CHECK_THAT(
        memory.read() ==
        std::vector<float>(count, float(comm.size * comm.size * comm.size)));
    CHECK_OK(cuGraphExecDestroy(executable));
    CHECK_OK(cuGraphDestroy(graph));
  }
  return 0;
}

//===----------------------------------------------------------------------===//
// Tests
//===----------------------------------------------------------------------===//

namespace {
struct Messages : testing::Test {
  static void SetUpTestSuite() { makeTwin("faults", "faults.c"); }

  static std::vector<Result> runWith(const std::string &scenario, int ranks,
                                     Words more = {}) {
    more.push_back("MGQ_FAKE_DEVICES=4");
    return runRanks(scenario, ranks, more);
  }
  static std::string together(const std::vector<Result> &results) {
    std::string text;
    for (const Result &result : results)
      text += result.output;
    return text;
  }
};
} // namespace

TEST_F(Messages, ArriveOnOneTwoAndFourRanks) {
  for (int ranks : {1, 2, 4})
    for (const char *scenario : {"collectives", "halves", "ring", "graph"}) {
      if (ranks == 1 && scenario == std::string("ring"))
        continue;
      for (const Result &result : runWith(scenario, ranks)) {
        EXPECT_EQ(result.status, 0) << scenario << ranks << result.output;
        EXPECT_EQ(result.output, "");
      }
    }
}

TEST_F(Messages, ArriveBetweenThreads) {
  for (const char *scenario : {"threads", "init_group"}) {
    Result result = run(scenario, {"MGQ_FAKE_DEVICES=4"});
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.output, "");
  }
}

TEST_F(Messages, MissingWaitsAreReportedInEveryRun) {
  for (const char *seed :
       {"MGQ_FAKE_SEED=1", "MGQ_FAKE_SEED=2", "MGQ_FAKE_SEED=3"}) {
    for (const Result &result : runWith("pipeline", 2, {seed})) {
      EXPECT_EQ(result.status, 0) << result.output;
      EXPECT_EQ(result.output, "");
    }
    const struct {
      const char *fault;
      int rank;
      const char *operation;
    } faults[] = {{"wait before send", 0, "ncclSend on stream"},
                  {"wait after send", 0, "ncclSend on stream"},
                  {"wait after receive", 1, "ncclRecv on stream"}};
    for (const auto &[fault, rank, operation] : faults) {
      std::vector<Result> results =
          runWith("pipeline", 2, {seed, std::string("FAULT=") + fault});
      EXPECT_EQ(results[rank].status, faultStatus) << fault;
      EXPECT_EQ(results[1 - rank].status, 0) << fault;
      EXPECT_THAT(results[rank].output, HasSubstr("stream race: "));
      EXPECT_THAT(results[rank].output, HasSubstr(operation)) << fault;
      EXPECT_THAT(results[rank].output, HasSubstr("no event orders them"));
    }
  }
}

TEST_F(Messages, BlocksThatDoNotFitAreReported) {
  EXPECT_EQ(run("blocks").output, "");
  Result fault = run("blocks", {"FAULT=blocks"});
  EXPECT_EQ(fault.status, faultStatus);
  EXPECT_THAT(fault.output, HasSubstr("may take 32 blocks at once, it has room "
                                      "for 24: messages may wait"));
}

TEST_F(Messages, MismatchesAreReportedInEveryRun) {
  for (const char *seed :
       {"MGQ_FAKE_SEED=1", "MGQ_FAKE_SEED=2", "MGQ_FAKE_SEED=3"}) {
    std::vector<Result> counts = runWith("pipeline", 2, {seed, "FAULT=count"});
    EXPECT_EQ(counts[1].status, faultStatus);
    EXPECT_THAT(counts[1].output,
                HasSubstr("NCCL rank 1: message of 4096 f32 met a message of "
                          "4095 f32 of rank 0"));
    EXPECT_EQ(counts[0].status, 1) << counts[0].output;
    // It learns of it where it looks, or at its next call.
    EXPECT_THAT(counts[0].output, AnyOf(HasSubstr("remote process exited"),
                                        HasSubstr("returned 6\n")));
    std::vector<Result> types = runWith("pipeline", 2, {seed, "FAULT=type"});
    EXPECT_THAT(types[1].output, HasSubstr("message of 4096 i32 met a message "
                                           "of 4096 f32"));
  }
}

TEST_F(Messages, WaitingEnds) {
  std::vector<Result> silent = runWith("silent", 2, {"MGQ_FAKE_TIMEOUT=1"});
  EXPECT_THAT(
      together(silent),
      AnyOf(HasSubstr("NCCL rank 0: waited 1 s in ncclRecv on stream 0: "
                      "receive from rank 1, message of 16 f32"),
            HasSubstr("NCCL rank 1: waited 1 s in ncclRecv on stream 0: "
                      "receive from rank 0, message of 16 f32")));
  std::vector<Result> dead = runWith("silent", 2, {"FAULT=dies"});
  EXPECT_EQ(dead[0].status, 1);
  EXPECT_THAT(dead[0].output, HasSubstr("the peer is gone: receive from rank"));
  std::vector<Result> cycle = runWith("cycle", 2, {"MGQ_FAKE_TIMEOUT=1"});
  EXPECT_THAT(together(cycle), HasSubstr("waited 1 s in ncclSend on stream 0: "
                                         "send to rank"));
  EXPECT_EQ(runWith("ring", 1)[0].status, 1); // To itself: not supported.
}

TEST_F(Messages, RanksHaveDevicesOfTheirOwn) {
  // The other may come when the first has gone, and wait for it.
  std::vector<Result> results =
      runWith("same_device", 2, {"MGQ_FAKE_TIMEOUT=2"});
  EXPECT_THAT(together(results),
              HasSubstr("NCCL rank 0: rank 1 has the same device, 0"));
}

TEST_F(Messages, CommunicatorsLeftAreNamed) {
  for (const Result &result : runWith("pipeline", 2, {"FAULT=leak"})) {
    EXPECT_EQ(result.status, faultStatus);
    EXPECT_THAT(result.output,
                HasSubstr("leak: 1 of kind 'NCCL communicator' left at exit"));
  }
}

TEST_F(Messages, FailuresCanBeAskedFor) {
  Result result =
      runWith("collectives", 1, {"MGQ_FAKE_FAIL=ncclAllGather:1:3"})[0];
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("returned 3\n"));
}
