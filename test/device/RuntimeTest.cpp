//===- RuntimeTest.cpp - Parts of the CUDA runtime on the test device -----===//
//
// What training small models does not reach: rings that are full, that wrap,
// that grow.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Error.h"
#include "runtime/src/cuda/AllReduce.h"
#include "runtime/src/cuda/Context.h"
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
