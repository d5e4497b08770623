//===- RuntimeTest.cpp - Parts of the CUDA runtime on the test device -----===//
//
// What training small models does not reach: rings that are full, that wrap,
// that grow; work that cannot be recorded.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Error.h"
#include "runtime/src/cuda/AllReduce.h"
#include "runtime/src/cuda/Context.h"
#include "runtime/src/cuda/Graphs.h"
#include "runtime/src/cuda/Staging.h"
#include "test/device/programs/Scenario.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <unistd.h>

using namespace mgq::rt;
using namespace mgq::scenario;

/// No kernels.
const mgq_cuda_module mgq_cuda_module_table = {
    MGQ_CUDA_ABI_VERSION, nullptr, 0, nullptr, 0, nullptr, 0, nullptr};

/// Writes of random sizes and bytes, to one place after the other.
struct Writes {
  std::mt19937 random{5};
  std::vector<std::byte> expected;

  void add(Staging &staging, CUdeviceptr base, int64_t bytes) {
    size_t at = expected.size();
    expected.resize(at + bytes);
    uint64_t seed = random();
    for (int64_t i = 0; i < bytes; ++i)
      expected[at + i] = std::byte((seed * (i + 1)) >> 24);
    memcpy(staging.begin(bytes), expected.data() + at, bytes);
    staging.end(base + at);
  }
};

/// Writes of up to 3 MB, with one of 10 MB among them, then many small ones.
SCENARIO(staging) {
  Context context(0, 1, true);
  Stream stream;
  DeviceMemory memory(int64_t{128} << 20);
  int waits = 0;
  Staging staging(stream, [&](CUevent event) {
    ++waits;
    while (cuTry(cuEventQuery, event) == CUDA_ERROR_NOT_READY)
      usleep(20);
  });
  Writes writes;
  for (int i = 0; i < 40; ++i) {
    writes.add(staging, memory.address(), writes.random() % 3000000);
    if (i == 20)
      writes.add(staging, memory.address(), 10000000);
  }
  for (int i = 0; i < 300; ++i) // More than may be open at once.
    writes.add(staging, memory.address(), 4);
  PinnedMemory found(static_cast<int64_t>(writes.expected.size()));
  cuCall(cuMemcpyDtoHAsync, found.data(), memory.address(),
         writes.expected.size(), stream);
  Event done;
  done.record(stream);
  while (cuTry(cuEventQuery, done) == CUDA_ERROR_NOT_READY)
    usleep(20);
  CHECK_THAT(waits > 0);
  CHECK_THAT(memcmp(found.data(), writes.expected.data(),
                    writes.expected.size()) == 0);
  return 0;
}

/// What is recorded, what is not worth it, what cannot be.
SCENARIO(graphs) {
  Context context(0, 1, true);
  Stream stream;
  Graphs graphs(stream);
  DeviceMemory memory(16);
  auto fill = [&](unsigned char value, int times) {
    for (int i = 0; i < times; ++i)
      cuCall(cuMemsetD8Async, memory.address(), value, 16, stream);
  };
  auto byte = [&] {
    PinnedMemory found(1);
    cuCall(cuMemcpyDtoHAsync, found.data(), memory.address(), 1, stream);
    Event done;
    done.record(stream);
    while (cuTry(cuEventQuery, done) == CUDA_ERROR_NOT_READY)
      usleep(20);
    return static_cast<int>(*found.data());
  };
  auto launches = [&](const WorkKey &key) {
    fill(1, 1);
    return graphs.launch(key) ? byte() : -byte();
  };
  CHECK_THAT(graphs.record({1, 2}, [&] { fill(7, 4); }).empty());
  CHECK_THAT(graphs.record({1, 3}, [&] { fill(9, 5); }).empty());
  // Known: it is not asked again.
  CHECK_THAT(graphs.record({1, 2}, [&] { fill(8, 4); }).empty());
  CHECK_THAT(graphs.record({2}, [&] { fill(5, 3); }).empty()); // Not worth it.
  CHECK_THAT(launches({1, 2}) == 7 && launches({1, 3}) == 9);
  CHECK_THAT(launches({2}) == -1 && launches({1}) == -1);

  // What would take memory in each launch cannot be recorded.
  std::string text = graphs.record({4}, [&] {
    CHECK_THAT(graphs.isRecording());
    DeviceMemory more(16);
  });
  CHECK_THAT(text == "cuStreamEndCapture: operation failed due to a previous "
                     "error during capture "
                     "(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)");
  // What fails by itself does.
  std::string fault;
  try {
    graphs.record({5}, [&] {
      fill(3, 9);
      fail("broken");
    });
  } catch (const Error &error) {
    fault = error.what();
  }
  CHECK_THAT(fault == "broken" && !graphs.isRecording());
  CHECK_THAT(launches({4}) == -1 && launches({5}) == -1);
  graphs.clear();
  CHECK_THAT(launches({1, 2}) == -1);
  return 0;
}

TEST(Runtime, GraphsAreWhatWasEnqueued) {
  Result result = run("graphs");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

TEST(Runtime, StagingHandsOverAllBytes) {
  // Some copies come so late that the ring is full.
  Result result = run("staging", {"MGQ_FAKE_SEED=1", "MGQ_FAKE_DELAY=100000"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

TEST(Runtime, CompressedSumsNeedCode) {
  std::string text;
  try {
    compressionCode();
  } catch (const Error &error) {
    text = error.what();
  }
  EXPECT_EQ(text, "the program's tables are damaged: it has no code for "
                  "compressed gradients");
}
