//===- KernelTest.cpp - Twins of kernels, and faults in them --------------===//

#include "test/device/programs/Driver.h"
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>

using namespace mgq::scenario;
using testing::HasSubstr;

static constexpr int faultStatus = 86;

//===----------------------------------------------------------------------===//
// Host programs
//===----------------------------------------------------------------------===//

static std::vector<float> ramp(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = float(int(i * 37 % 101) - 50) / 8;
  return values;
}

/// Rows of a module named in IMAGE.
SCENARIO(rows) {
  openDevice();
  Module module(std::getenv("IMAGE"));
  std::vector<float> x = ramp(3 * 128);
  Memory<float> in(x), out(3);
  CHECK_OK(launch(module.function("row_range"), 3, 64, nullptr, in.address,
                  out.address));
  std::vector<float> y = out.read();
  for (int row = 0; row < 3; ++row) {
    float most = -1e9f, sum = 0;
    for (int i = 0; i < 128; ++i)
      most = std::max(most, x[row * 128 + i]);
    for (int i = 0; i < 128; ++i)
      sum += x[row * 128 + i] - most;
    if (!std::getenv("SEEDED"))
      CHECK_THAT(y[row] == sum); // Exact: eighths.
  }
  return 0;
}

/// KERNEL of faults.c with BLOCKS of THREADS, on 64 elements.
SCENARIO(fault) {
  openDevice();
  Module module("faults");
  auto number = [](const char *name, int otherwise) {
    const char *value = std::getenv(name);
    return value ? std::atoi(value) : otherwise;
  };
  std::vector<float> x = ramp(64);
  int n = number("N", 64);
  {
    Memory<float> in(x), out(std::vector<float>(64));
    CUresult status = launch(module.function(std::getenv("KERNEL")),
                             number("BLOCKS", 1), number("THREADS", 64),
                             nullptr, in.address, out.address, 2.0f, n);
    if (status == CUDA_SUCCESS)
      status = cuCtxSynchronize();
    std::printf("status %d\n", status);
  }
  return 0;
}

SCENARIO(scale) {
  openDevice();
  Module module("faults");
  std::vector<float> x = ramp(1000);
  Memory<float> in(x), out(1000);
  CHECK_OK(launch(module.function("scale"), 4, 256, nullptr, in.address,
                  out.address, 2.0f, 1000));
  std::vector<float> y = out.read();
  for (int i = 0; i < 1000; ++i)
    CHECK_THAT(y[i] == 2 * x[i]);
  return 0;
}

static bool isClose(double value, double expected) {
  return std::fabs(value - expected) <= 2e-7 * std::fabs(expected);
}

/// The number of `bits` significant bits next to `x`; even where it lies
/// between two.
static float nearest(double x, int bits = 8) {
  int exponent;
  double fraction = std::frexp(x, &exponent);
  double whole = std::nearbyint(std::ldexp(fraction, bits));
  return float(std::ldexp(whole, exponent - bits));
}

SCENARIO(approximations) {
  openDevice();
  Module module("leaves");
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i)
    x[i] = 0.05f + 0.11f * float(i);
  Memory<float> in(x), out(64 * 8);
  CHECK_OK(launch(module.function("approximations"), 2, 32, nullptr, in.address,
                  out.address));
  std::vector<float> y = out.read();
  for (int i = 0; i < 64; ++i) {
    double v = x[i];
    const float *at = &y[8 * i];
    CHECK_THAT(isClose(at[0], std::exp2(v)));
    CHECK_THAT(isClose(at[1], std::log2(v)));
    CHECK_THAT(isClose(at[2], 1 / std::sqrt(v)));
    CHECK_THAT(isClose(at[3], 1 / v));
    CHECK_THAT(at[4] == std::sqrt(x[i]));
    // Rounded down: at most the exact value, and by less than one step.
    double exact = v * v + double(1e-9f);
    CHECK_THAT(at[5] <= exact && std::nextafter(at[5], INFINITY) > exact);
    CHECK_THAT(at[6] == nearest(x[i]));
    CHECK_THAT(at[7] == std::min(x[i], 1.0f));
  }
  return 0;
}

SCENARIO(conversions) {
  openDevice();
  Module module("leaves");
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) // Between two bf16, and between two f16.
    x[i] = (1 + float(i) / 128 + 1.0f / 256) * (i % 2 ? 1 : 1 + 0x1p-11f);
  Memory<float> in(x), out(64 * 4);
  CHECK_OK(launch(module.function("conversions"), 2, 32, nullptr, in.address,
                  out.address));
  std::vector<float> y = out.read();
  for (int i = 0; i < 64; ++i) {
    double wide = double(x[i]) * (1 + 1e-9);
    CHECK_THAT(y[4 * i] == nearest(wide));
    CHECK_THAT(y[4 * i + 1] == nearest(wide, 11));
    CHECK_THAT(y[4 * i + 2] == nearest(double(nearest(x[i])) * 3));
    CHECK_THAT(y[4 * i + 3] == nearest(i - 20));
  }
  return 0;
}

SCENARIO(shuffles) {
  openDevice();
  Module module("leaves");
  std::vector<float> x = ramp(32);
  Memory<float> in(x), out(32 * 4);
  CHECK_OK(launch(module.function("shuffles"), 1, 32, nullptr, in.address,
                  out.address));
  std::vector<float> y = out.read();
  for (int i = 0; i < 32; ++i) {
    CHECK_THAT(y[4 * i] == x[i + 3 < 32 ? i + 3 : i]);
    CHECK_THAT(y[4 * i + 1] == x[i >= 5 ? i - 5 : i]);
    CHECK_THAT(y[4 * i + 2] == x[7]);
    CHECK_THAT(y[4 * i + 3] == 1);
  }
  return 0;
}

SCENARIO(product) {
  openDevice();
  Module module(std::getenv("IMAGE"));
  std::vector<uint16_t> x(16 * 16 + 16 * 8);
  std::vector<float> values(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    values[i] = float(int(i * 29 % 31) - 15);
    uint32_t bits;
    std::memcpy(&bits, &values[i], 4);
    x[i] = uint16_t(bits >> 16);
  }
  Memory<uint16_t> in(x);
  Memory<float> out(16 * 8);
  CHECK_OK(launch(module.function("product"), 1, 32, nullptr, in.address,
                  out.address));
  std::vector<float> y = out.read();
  for (int i = 0; i < 16 && !std::getenv("SEEDED"); ++i)
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k)
        sum += values[i * 16 + k] * values[256 + j * 16 + k];
      CHECK_THAT(y[i * 8 + j] == sum);
    }
  return 0;
}

//===----------------------------------------------------------------------===//
// Tests
//===----------------------------------------------------------------------===//

namespace {
struct Kernels : testing::Test {
  static void SetUpTestSuite() {
    makeTwin("faults", "faults.c");
    makeTwin("leaves", "leaves.c");
    makeTwin("rows", "rows.c");
    makeTwin("product", "product.ll");
  }

  /// Runs a kernel of faults.c.
  static Result fault(const std::string &kernel, Words more = {}) {
    more.push_back("KERNEL=" + kernel);
    return run("fault", more);
  }
};

std::string word(int value) { return std::to_string(value); }
} // namespace

/// Forward, backward, and two random orders of threads.
static const char *const orders[] = {"MGQ_FAKE_SEED=0", "MGQ_FAKE_SEED=1",
                                     "MGQ_FAKE_SEED=2", "MGQ_FAKE_SEED=3"};

TEST_F(Kernels, RightOnesAreRightInEveryOrder) {
  for (const char *order : orders) {
    for (const char *name :
         {"scale", "approximations", "conversions", "shuffles"}) {
      Result result = run(name, {order});
      EXPECT_EQ(result.status, 0) << name << result.output;
    }
    for (const char *name : {"rows", "product"}) {
      Result result = run(name, {order, std::string("IMAGE=") + name});
      EXPECT_EQ(result.status, 0) << name << result.output;
      EXPECT_EQ(result.output, "");
    }
  }
}

TEST_F(Kernels, EachMissingBarrierIsReportedInEveryOrder) {
  for (int omit = 1; omit <= 3; ++omit) {
    std::string image = "rows-" + word(omit);
    makeTwin(image, "rows.c", "-DOMIT=" + word(omit));
    for (const char *order : orders) {
      Result result = run("rows", {order, "IMAGE=" + image, "SEEDED=1"});
      EXPECT_EQ(result.status, faultStatus) << omit << result.output;
      EXPECT_THAT(result.output,
                  HasSubstr("mgq test device: kernel row_range: race: thread"));
      EXPECT_THAT(result.output, HasSubstr("with no barrier between"));
    }
  }
}

TEST_F(Kernels, MissingWaitForCopiesIsReported) {
  makeTwin("product-no-wait", "product.ll", "",
           "@llvm.nvvm.cp.async.wait.group(i32 0)");
  Result result = run("product", {"IMAGE=product-no-wait", "SEEDED=1"});
  EXPECT_EQ(result.status, faultStatus) << result.output;
  EXPECT_THAT(result.output, HasSubstr("which nobody has written"));
  EXPECT_THAT(result.output, HasSubstr("that it has not waited for"));
}

TEST_F(Kernels, MissingWarpBarrierIsReported) {
  Result wrong = fault("within_warp", {"N=0"});
  EXPECT_EQ(wrong.status, faultStatus);
  EXPECT_THAT(wrong.output, HasSubstr("kernel within_warp: race"));
  Result right = fault("within_warp", {"N=1"});
  EXPECT_EQ(right.status, 0) << right.output;
  Result many = fault("read_by_warp", {"N=0"});
  EXPECT_EQ(many.status, faultStatus);
  EXPECT_THAT(many.output, HasSubstr("kernel read_by_warp: race"));
  EXPECT_THAT(many.output, HasSubstr("which several threads reads"));
  EXPECT_EQ(fault("read_by_warp", {"N=1"}).output, "status 0\n");
}

TEST_F(Kernels, OutOfBoundsEndsTheKernel) {
  Result result = fault("out_of_bounds", {"BLOCKS=2"});
  EXPECT_EQ(result.status, faultStatus);
  EXPECT_THAT(result.output, HasSubstr("status 700"));
  EXPECT_THAT(
      result.output,
      HasSubstr("kernel out_of_bounds: thread (0, 0, 0) of block (1, 0, "
                "0) reads 4 bytes out of bounds, at address"));
  EXPECT_EQ(fault("scale", {"BLOCKS=2"}).status, 0);
}

TEST_F(Kernels, MisalignedVectorIsReported) {
  Result result = fault("misaligned");
  EXPECT_EQ(result.status, faultStatus);
  EXPECT_THAT(result.output, HasSubstr("status 716"));
  EXPECT_THAT(result.output,
              HasSubstr("is not aligned to the 16 bytes that the "
                        "code relies on"));
  EXPECT_EQ(fault("aligned").status, 0);
}

TEST_F(Kernels, DivergentShuffleIsADeadlock) {
  Result result = fault("divergent_shuffle");
  EXPECT_EQ(result.status, faultStatus);
  EXPECT_THAT(result.output, HasSubstr("deadlock in block (0, 0, 0): 0 threads "
                                       "wait at a barrier, 32 in a warp"));
}

TEST_F(Kernels, TwoShufflesDoNotMeet) {
  Result result = fault("two_shuffles");
  EXPECT_EQ(result.status, faultStatus);
  EXPECT_THAT(result.output, HasSubstr("in a branch that not all take"));
}

TEST_F(Kernels, BarrierInABranchIsReported) {
  Result result = fault("divergent_barrier");
  EXPECT_EQ(result.status, faultStatus) << result.output;
  EXPECT_THAT(result.output, HasSubstr("wait at different barriers"));
}

TEST_F(Kernels, EndedThreadsAreMissed) {
  Result result = fault("too_few");
  EXPECT_EQ(result.status, faultStatus);
  EXPECT_THAT(result.output, HasSubstr("deadlock in block"));
}

TEST_F(Kernels, BlocksRaceUnlessAtomic) {
  Result race = fault("block_race", {"BLOCKS=3", "THREADS=32"});
  EXPECT_EQ(race.status, faultStatus);
  EXPECT_THAT(race.output,
              HasSubstr("thread (0, 0, 0) of another block writes"));
  EXPECT_EQ(fault("atomic_sum", {"BLOCKS=3", "THREADS=32"}).status, 0);
  EXPECT_EQ(fault("bytes").status, 0);
  EXPECT_EQ(fault("halves").status, 0);
  EXPECT_EQ(fault("by_value").status, 0);
}

TEST_F(Kernels, WritesWaitForAllReaders) {
  for (const char *order : orders) {
    Result race = fault("many_readers", {"N=0", order});
    EXPECT_EQ(race.status, faultStatus) << order;
    EXPECT_THAT(race.output, HasSubstr("kernel many_readers: race: thread"));
    Result right = fault("many_readers", {"N=1", order});
    EXPECT_EQ(right.status, 0) << right.output;
  }
}

TEST_F(Kernels, SharedMemoryIsChecked) {
  Result uninitialized = fault("shared_uninitialized");
  EXPECT_EQ(uninitialized.status, faultStatus);
  EXPECT_THAT(uninitialized.output,
              HasSubstr("of shared memory, which nobody has written"));
  Result bounds = fault("shared_bounds");
  EXPECT_EQ(bounds.status, faultStatus);
  EXPECT_THAT(bounds.output, HasSubstr("out of bounds, at byte"));
  EXPECT_EQ(fault("shared_bounds", {"N=0"}).status, 0);
  // A kernel has no memory of other kernels of its module.
  for (const char *kernel : {"shared_mine", "shared_others"}) {
    Result behind = fault(kernel, {"N=1"});
    EXPECT_EQ(behind.status, faultStatus) << kernel;
    EXPECT_THAT(behind.output, HasSubstr("out of bounds, at byte"));
    EXPECT_EQ(fault(kernel, {"N=0"}).status, 0) << kernel;
  }
}

TEST_F(Kernels, BlocksAreNotTooLarge) {
  Result result = fault("scale", {"THREADS=1056"});
  EXPECT_EQ(result.status, faultStatus);
  EXPECT_THAT(result.output,
              HasSubstr("a block cannot have (1056, 1, 1) threads"));
  EXPECT_THAT(result.output, HasSubstr("status 1\n"));
}

TEST_F(Kernels, CodeWithoutALeafIsRefused) {
  std::string file = twinFolder() + "/missing.ll";
  FILE *out = std::fopen(file.c_str(), "w");
  std::fputs("target triple = \"nvptx64-nvidia-cuda\"\n"
             "declare i32 @llvm.nvvm.read.ptx.sreg.nsmid()\n"
             "define ptx_kernel void @k(ptr %x) {\n"
             "  %n = call i32 @llvm.nvvm.read.ptx.sreg.nsmid()\n"
             "  store i32 %n, ptr %x\n  ret void\n}\n",
             out);
  std::fclose(out);
  Result result = shell(MGQ_TWIN_TOOL " " + file);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("uses what has no twin"));
  EXPECT_THAT(result.output, HasSubstr("twin_nvvm_read_ptx_sreg_nsmid"));
}

TEST_F(Kernels, HostCodeIsRefused) {
  std::string file = twinFolder() + "/host.ll";
  FILE *out = std::fopen(file.c_str(), "w");
  std::fputs("target triple = \"x86_64-pc-linux-gnu\"\n", out);
  std::fclose(out);
  Result result = shell(MGQ_TWIN_TOOL " " + file);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              HasSubstr("is no device code: its target is 'x86_64"));
}

TEST_F(Kernels, ChecksCanBeLeftOut) {
  makeTwin("rows-unchecked", "rows.c", "", "", "--unchecked");
  Result right = run("rows", {"IMAGE=rows-unchecked"});
  EXPECT_EQ(right.status, 0) << right.output;
  makeTwin("rows-wrong", "rows.c", "-DOMIT=2", "", "--unchecked");
  Result wrong = run("rows", {"IMAGE=rows-wrong", "SEEDED=1"});
  EXPECT_EQ(wrong.status, 0) << wrong.output;
}

TEST_F(Kernels, BarriersHaveNumbers) {
  std::string code = codeOf("rows");
  Result list = shell(MGQ_TWIN_TOOL " --list-barriers " + code);
  EXPECT_EQ(list.output, "row_range\nrow_range\nrow_range\n");
  Result none = shell(MGQ_TWIN_TOOL " --omit-barrier=3 " + code);
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.output, HasSubstr("has 3 barriers"));
  makeTwin("rows-omitted", "rows.c", "", "", "--omit-barrier=1");
  Result omitted = run("rows", {"IMAGE=rows-omitted", "SEEDED=1"});
  EXPECT_EQ(omitted.status, faultStatus) << omitted.output;
}
