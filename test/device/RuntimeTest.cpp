//===- RuntimeTest.cpp - Parts of the CUDA runtime on the test device -----===//
//
// What training small models does not reach: rings that are full, that wrap,
// that grow; work that cannot be recorded; every epilogue of products for every
// type; what does not fit the runtime.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Error.h"
#include "runtime/src/common/Types.h"
#include "runtime/src/cuda/AllReduce.h"
#include "runtime/src/cuda/Attention.h"
#include "runtime/src/cuda/Blas.h"
#include "runtime/src/cuda/Context.h"
#include "runtime/src/cuda/Graphs.h"
#include "runtime/src/cuda/Staging.h"
#include "test/device/programs/Scenario.h"
#include <cmath>
#include <deque>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <unistd.h>

using namespace mgq::rt;
using namespace mgq::scenario;
using testing::HasSubstr;

/// No kernels; of a version that the environment may have, too.
const mgq_cuda_module mgq_cuda_module_table = {
    getenv("TABLE") ? atoi(getenv("TABLE")) : MGQ_CUDA_ABI_VERSION,
    nullptr,
    0,
    nullptr,
    0,
    nullptr,
    0,
    nullptr};

// Generated code, which the runtime is linked with; nothing here runs it.
void mgq_cuda_sq_norm(double *, double *, const float *, int64_t) {}
void mgq_cuda_scale(float *, double, int64_t) {}

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

  // All together have a limit, 65536 kernels and copies.
  for (uint64_t i = 0; i < 4; ++i)
    CHECK_THAT(graphs.record({i}, [&] { fill(6, 20000); }).empty());
  CHECK_THAT(launches({3}) == -1 && launches({2}) == 6);
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

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

namespace {
/// Numbers of a type in device memory, eighths of whole ones that each type
/// has.
struct Numbers {
  mgq_type type;
  std::vector<double> values;
  DeviceMemory memory;

  Numbers(mgq_type type, int64_t count, int seed, const Stream &stream)
      : type(type), values(count), memory(count * typeBytes(type)) {
    for (int64_t i = 0; i < count; ++i)
      values[i] = double((i * 29 + seed * 7) % 19 - 9) / 8;
    PinnedMemory staged(count * typeBytes(type));
    for (int64_t i = 0; i < count; ++i)
      put(reinterpret_cast<char *>(staged.data()) + i * typeBytes(type),
          values[i]);
    cuCall(cuMemcpyHtoDAsync, memory.address(), staged.data(),
           static_cast<size_t>(count * typeBytes(type)), stream);
    wait(stream);
  }
  static void wait(const Stream &stream) {
    Event done;
    done.record(stream);
    while (cuTry(cuEventQuery, done) == CUDA_ERROR_NOT_READY)
      usleep(20);
  }
  void put(char *to, double wide) const {
    auto value = static_cast<float>(wide);
    auto half = static_cast<_Float16>(value);
    const void *from = type == MGQ_F64   ? static_cast<const void *>(&wide)
                       : type == MGQ_F32 ? static_cast<const void *>(&value)
                       : type == MGQ_F16
                           ? static_cast<const void *>(&half)
                           : reinterpret_cast<const char *>(&value) + 2;
    memcpy(to, from, typeBytes(type));
  }
  double get(const char *from) const {
    double wide = 0;
    float value = 0;
    _Float16 half;
    switch (type) {
    case MGQ_F64:
      memcpy(&wide, from, 8);
      return wide;
    case MGQ_F32:
      memcpy(&value, from, 4);
      return value;
    case MGQ_F16:
      memcpy(&half, from, 2);
      return static_cast<double>(half);
    default:
      memcpy(reinterpret_cast<char *>(&value) + 2, from, 2);
      return value;
    }
  }
  std::vector<double> read(const Stream &stream) const {
    auto bytes = static_cast<int64_t>(values.size()) * typeBytes(type);
    PinnedMemory found(bytes);
    cuCall(cuMemcpyDtoHAsync, found.data(), memory.address(),
           static_cast<size_t>(bytes), stream);
    wait(stream);
    std::vector<double> result;
    for (int64_t at = 0; at < bytes; at += typeBytes(type))
      result.push_back(get(reinterpret_cast<char *>(found.data()) + at));
    return result;
  }
};
} // namespace

static double gelu(double x) {
  return x / 2 *
         (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/// A product of two 5 x 7 with 7 x 8 matrices, rows of which lie apart.
static mgq_cuda_product productOf(mgq_type in, mgq_type out, int32_t epilogue) {
  mgq_cuda_product p = {in, in, out, 0,  1,  epilogue, 2,  5,  8,  7,
                        8,  9,  12,  16, 40, 72,       61, 80, 0.5};
  return p;
}

/// Runs a product, then again with another bias: the same plan.
static void checkEpilogue(Blas &blas, const Stream &stream, mgq_type in,
                          mgq_type out, int32_t epilogue) {
  static std::deque<mgq_cuda_product> tables; // Addresses are keys.
  const mgq_cuda_product &p = tables.emplace_back(productOf(in, out, epilogue));
  Numbers a(in, 80, 1, stream), b(in, 144, 2, stream), c(out, 122, 3, stream);
  Numbers added(out, 160, 4, stream);
  for (int turn = 0; turn < 2; ++turn) {
    Numbers bias(out, 8, 5 + turn, stream);
    ProductOperands operands = {a.memory.as<void>(), b.memory.as<void>(),
                                c.memory.as<void>(), nullptr, nullptr};
    if (epilogue & MGQ_CUDA_ADD)
      operands.added = added.memory.as<void>();
    if (epilogue & MGQ_CUDA_BIAS)
      operands.bias = bias.memory.as<void>();
    CHECK_THAT(blas.knows(p, operands) == (turn == 1));
    blas.run(p, operands, stream);
    std::vector<double> expected = c.values, found = c.read(stream);
    double unit = out == MGQ_F64   ? 1e-14
                  : out == MGQ_F32 ? 1e-6
                  : out == MGQ_F16 ? 1e-3
                                   : 8e-3;
    for (int i = 0; i < 2; ++i)
      for (int row = 0; row < 5; ++row)
        for (int column = 0; column < 8; ++column) {
          double sum = 0;
          for (int k = 0; k < 7; ++k)
            sum += a.values[i * 40 + row * 8 + k] *
                   b.values[i * 72 + column * 9 + k];
          sum *= p.alpha;
          if (epilogue & MGQ_CUDA_ADD)
            sum += added.values[i * 80 + row * 16 + column];
          if (epilogue & MGQ_CUDA_BIAS)
            sum += bias.values[column];
          expected[i * 61 + row * 12 + column] =
              epilogue & MGQ_CUDA_GELU ? gelu(sum) : sum;
        }
    for (size_t i = 0; i < expected.size(); ++i)
      CHECK_THAT(std::fabs(found[i] - expected[i]) <=
                 unit * (1 + std::fabs(expected[i])));
  }
}

SCENARIO(epilogues) {
  Context context(0, 1, true);
  Stream stream;
  Blas blas;
  blas.allocate();
  const std::pair<mgq_type, mgq_type> types[] = {{MGQ_F32, MGQ_F32},
                                                 {MGQ_BF16, MGQ_F32},
                                                 {MGQ_BF16, MGQ_BF16},
                                                 {MGQ_F16, MGQ_F32},
                                                 {MGQ_F16, MGQ_F16}};
  for (auto [in, out] : types)
    for (int32_t epilogue = 0; epilogue < 8; ++epilogue)
      checkEpilogue(blas, stream, in, out, epilogue);
  for (int32_t epilogue : {0, int32_t(MGQ_CUDA_ADD)})
    checkEpilogue(blas, stream, MGQ_F64, MGQ_F64, epilogue);
  return 0;
}

/// What cuBLASLt refuses: a bias that is not aligned; with DOUBLE, any.
SCENARIO(refused) {
  Context context(0, 1, true);
  Stream stream;
  Blas blas;
  blas.allocate();
  mgq_type type = getenv("DOUBLE") ? MGQ_F64 : MGQ_F32;
  mgq_cuda_product p = productOf(type, type, 7);
  Numbers all(type, 160, 1, stream), c(type, 122, 2, stream);
  char *start = all.memory.as<char>();
  try {
    blas.run(p, {start, start, c.memory.as<void>(), start, start + 4}, stream);
  } catch (const Error &error) {
    std::puts(error.what());
  }
  return 0;
}

TEST(Runtime, ProductsHaveEpilogues) {
  Result result = run("epilogues");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

/// cuBLASLt proposes what it then refuses, or nothing at first: other proposals
/// are tried, and the same one again when the product is.
TEST(Runtime, RefusedAlgorithmsHaveOthers) {
  const char *heuristic = "cublasLtMatmulAlgoGetHeuristic:1:15";
  for (std::string fail :
       {std::string("cublasLtMatmul:1:15"), std::string(heuristic),
        heuristic + std::string(",cublasLtMatmul:1:8"),
        std::string("cublasLtMatmul:1:14,cublasLtMatmul:2:7")}) {
    Result result = run("epilogues", {"MGQ_FAKE_FAIL=" + fail});
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.output, "");
  }
  // A fault of the GPU is none of the algorithm's.
  EXPECT_THAT(run("epilogues", {"MGQ_FAKE_FAIL=cublasLtMatmul:1:13"}).output,
              HasSubstr("CUBLAS_STATUS_EXECUTION_FAILED"));
}

TEST(Runtime, RefusedEpiloguesAreNamed) {
  Result unaligned = run("refused");
  EXPECT_EQ(unaligned.status, 86);
  EXPECT_THAT(unaligned.output, HasSubstr("is not aligned to 16 bytes"));
  EXPECT_THAT(unaligned.output,
              HasSubstr("(product of 5 x 8 x 7, 2 of them, added to a matrix, "
                        "with a bias, with GELU)\n"));
  // f64 has no epilogues.
  Result wide = run("refused", {"DOUBLE=1"});
  EXPECT_EQ(wide.status, 0);
  EXPECT_THAT(
      wide.output,
      HasSubstr("cublasLtMatmulAlgoGetHeuristic: the functionality is not "
                "supported (CUBLAS_STATUS_NOT_SUPPORTED) (product of"));
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// Says where each attention is computed: in a step, and why.
static void tellAttention(const mgq_cuda_attention_table &table,
                          std::vector<void *> tensors, int64_t room,
                          CUstream stream) {
  Attention attention(nullptr);
  attention.plan(table, tensors.data());
  attention.prepare(stream, room);
  bool there = attention.run(table, tensors.data(), stream);
  for (void *&tensor : tensors) // Of another call with the same table.
    tensor = tensor ? static_cast<char *>(tensor) + 8 : nullptr;
  bool unaligned = attention.run(table, tensors.data(), stream);
  std::printf("%d %d %s\n", there, unaligned, attention.note().c_str());
}

/// With a workspace that fits, and none; tensors that are not aligned.
SCENARIO(attention) {
  Context context(0, 1, true);
  Stream stream;
  mgq_cuda_attention_table table = {};
  table.library = 1;
  mgq_cudnn_problem &p = table.problem;
  p.type = MGQ_BF16;
  p.backward = 1;
  p.scale = 1;
  p.batch = p.heads = p.kv_heads = 1;
  p.query_length = p.key_length = p.head_size = p.value_size = 8;
  for (int64_t *strides :
       {p.q_strides, p.k_strides, p.v_strides, p.result_strides})
    std::copy_n(std::begin({64, 64, 8, 1}), 4, strides);
  DeviceMemory memory(MGQ_ATTENTION_TENSORS * 256);
  cuCall(cuMemsetD8Async, memory.address(), 0, MGQ_ATTENTION_TENSORS * 256,
         stream);
  std::vector<void *> tensors, apart;
  for (int i = 0; i < MGQ_ATTENTION_TENSORS; ++i) {
    char *start = memory.as<char>() + i * 256;
    tensors.push_back(i == MGQ_ATTENTION_BIAS ? nullptr : start);
    apart.push_back(i == MGQ_ATTENTION_BIAS ? nullptr : start + 8);
  }
  tellAttention(table, tensors, 1 << 20, stream);
  tellAttention(table, tensors, 100, stream);
  tellAttention(table, apart, 1 << 20, stream);
  return 0;
}

TEST(Runtime, AttentionIsLeftToKernels) {
  Result result = run("attention");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output,
            "1 0 \n"
            "0 0 1 kind of attention runs on the program's own kernels, not on "
            "cuDNN: attention of 1 x 1 heads, 8 queries, 8 keys, head sizes 8 "
            "and 8: its workspace of 1.00 KiB does not fit into the 100 bytes "
            "that are left\n"
            "0 0 \n");
  // A machine with a driver alone.
  std::string folder = twinFolder() + "/driver";
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink(std::string(getenv("LD_LIBRARY_PATH")) +
                                      "/libcuda.so.1",
                                  folder + "/libcuda.so.1");
  Result missing = run("attention", {"LD_LIBRARY_PATH=" + folder});
  EXPECT_EQ(missing.status, 0);
  EXPECT_THAT(
      missing.output,
      testing::MatchesRegex("0 0 attention runs on the program's own kernels, "
                            "not on cuDNN: libmgq_cudnn.so: .*; it comes with "
                            "the compiler and may lie beside the executable\n"
                            "0 0 .*\n0 0 \n"));
}

//===----------------------------------------------------------------------===//
// Versions
//===----------------------------------------------------------------------===//

SCENARIO(versions) {
  try {
    Context context(0, 1, true);
    Blas blas;
    Module module(context, [](const std::string &) {});
  } catch (const Error &error) {
    std::puts(error.what());
  }
  return 0;
}

TEST(Runtime, OtherVersionsAreRefused) {
  EXPECT_EQ(run("versions", {"TABLE=1"}).output,
            fmt::format("the program's GPU code was made for version 1 of the "
                        "runtime, this is {}; compile it again\n",
                        MGQ_CUDA_ABI_VERSION));
  EXPECT_THAT(
      run("versions", {"MGQ_FAKE_FAIL=cublasLtGetVersion:1:120805"}).output,
      testing::StartsWith("libcublasLt.so.13 has version 120805, 130000 or "
                          "later is needed; 'pip install nvidia-cublas'"));
}
