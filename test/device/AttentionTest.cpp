//===- AttentionTest.cpp - The stand-in of libmgq_cudnn.so ----------------===//

#include "runtime/include/rt_cudnn.h"
#include "test/device/programs/Driver.h"
#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <gmock/gmock.h>

using namespace mgq::scenario;
using testing::HasSubstr;

static constexpr int faultStatus = 86;

static bool has(const char *fault) {
  const char *seeded = std::getenv("FAULT");
  return seeded && std::string(seeded) == fault;
}

//===----------------------------------------------------------------------===//
// Host programs
//===----------------------------------------------------------------------===//

namespace {
/// The library, loaded as a program does.
struct Library {
  void *handle = dlopen(MGQ_CUDNN_LIBRARY, RTLD_NOW);
  template <typename T>
  T find(const char *name) {
    CHECK_THAT(handle != nullptr);
    auto function = reinterpret_cast<T>(dlsym(handle, name));
    CHECK_THAT(function != nullptr);
    return function;
  }
  mgq_cudnn_open_fn open = find<mgq_cudnn_open_fn>(MGQ_CUDNN_OPEN);
  mgq_cudnn_close_fn close = find<mgq_cudnn_close_fn>(MGQ_CUDNN_CLOSE);
  mgq_cudnn_workspace_fn workspace =
      find<mgq_cudnn_workspace_fn>(MGQ_CUDNN_WORKSPACE);
  mgq_cudnn_run_fn forward = find<mgq_cudnn_run_fn>(MGQ_CUDNN_FORWARD);
  mgq_cudnn_run_fn backward = find<mgq_cudnn_run_fn>(MGQ_CUDNN_BACKWARD);
};

/// bf16 values, and the same as floats.
struct Tensor {
  std::vector<double> values;
  std::unique_ptr<Memory<uint16_t>> memory;
  Tensor(size_t count, int seed) {
    std::vector<uint16_t> halves;
    for (size_t i = 0; i < count; ++i) {
      float value = float(int((i * 53 + size_t(seed) * 17) % 41) - 20) / 16;
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      halves.push_back(uint16_t(bits >> 16));
      values.push_back(value);
    }
    memory = std::make_unique<Memory<uint16_t>>(halves);
  }
  void *pointer() const { return memory->pointer(); }
  std::vector<double> read() const {
    std::vector<double> result;
    for (uint16_t half : memory->read()) {
      uint32_t bits = uint32_t(half) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      result.push_back(value);
    }
    return result;
  }
};

/// Tensors lie as [batch, row, head, column].
struct Setup {
  mgq_cudnn_problem p{};
  Tensor q, k, v, bias, result, grad, dq, dk, dv;

  static mgq_cudnn_problem problem(int32_t causal, bool hasBias) {
    mgq_cudnn_problem p{};
    p.type = MGQ_BF16;
    p.causal = causal;
    p.backward = 1;
    p.has_bias = hasBias;
    p.scale = 0.375;
    p.batch = 2;
    p.heads = 4;
    p.kv_heads = 2;
    p.query_length = 5;
    p.key_length = 7;
    p.head_size = 8;
    p.value_size = 16;
    strides(p.q_strides, p.heads, p.query_length, p.head_size);
    strides(p.k_strides, p.kv_heads, p.key_length, p.head_size);
    strides(p.v_strides, p.kv_heads, p.key_length, p.value_size);
    strides(p.result_strides, p.heads, p.query_length, p.value_size);
    const int64_t extents[] = {1, p.heads, p.query_length, p.key_length};
    const int64_t step[] = {0, p.query_length * p.key_length, p.key_length, 1};
    std::copy(extents, extents + 4, p.bias_extents);
    std::copy(step, step + 4, p.bias_strides);
    return p;
  }
  static void strides(int64_t *to, int64_t heads, int64_t rows,
                      int64_t columns) {
    to[0] = heads * rows * columns;
    to[1] = columns;
    to[2] = heads * columns;
    to[3] = 1;
  }
  explicit Setup(const mgq_cudnn_problem &p)
      : p(p), q(size_t(p.batch * p.q_strides[0]), 1),
        k(size_t(p.batch * p.k_strides[0]), 2),
        v(size_t(p.batch * p.v_strides[0]), 3),
        bias(size_t(p.heads * p.query_length * p.key_length), 4),
        result(size_t(p.batch * p.result_strides[0]), 5),
        grad(size_t(p.batch * p.result_strides[0]), 6),
        dq(size_t(p.batch * p.q_strides[0]), 7),
        dk(size_t(p.batch * p.k_strides[0]), 8),
        dv(size_t(p.batch * p.v_strides[0]), 9) {}

  static double &at(std::vector<double> &values, const int64_t *strides,
                    int64_t b, int64_t h, int64_t r, int64_t c) {
    return values[size_t(b * strides[0] + h * strides[1] + r * strides[2] +
                         c * strides[3])];
  }
  bool sees(int64_t i, int64_t j) const {
    return p.causal == MGQ_CUDNN_SEES_ALL ||
           j <= i + (p.causal == MGQ_CUDNN_SEES_FROM_END
                         ? p.key_length - p.query_length
                         : 0);
  }
  /// sum(grad result) for given q, k, v, in double.
  double loss(std::vector<double> &qs, std::vector<double> &ks,
              std::vector<double> &vs, std::vector<double> *results) {
    double loss = 0;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads; ++h)
        for (int64_t i = 0; i < p.query_length; ++i) {
          std::vector<double> row(static_cast<size_t>(p.key_length));
          double sum = 0;
          int64_t kv = h / (p.heads / p.kv_heads);
          for (int64_t j = 0; j < p.key_length; ++j) {
            if (!sees(i, j))
              continue;
            double score = 0;
            for (int64_t d = 0; d < p.head_size; ++d)
              score += at(qs, p.q_strides, b, h, i, d) *
                       at(ks, p.k_strides, b, kv, j, d);
            score *= p.scale;
            if (p.has_bias)
              score += bias.values[size_t(
                  (h * p.query_length + i) * p.key_length + j)];
            sum += row[size_t(j)] = std::exp(score);
          }
          for (int64_t d = 0; d < p.value_size; ++d) {
            double each = 0;
            for (int64_t j = 0; j < p.key_length; ++j)
              each += row[size_t(j)] / sum * at(vs, p.v_strides, b, kv, j, d);
            loss += each * at(grad.values, p.result_strides, b, h, i, d);
            if (results)
              at(*results, p.result_strides, b, h, i, d) = each;
          }
        }
    return loss;
  }
  /// Central differences of the loss along one operand.
  void checkGradient(std::vector<double> &operand,
                     const std::vector<double> &found) {
    for (size_t i = 0; i < operand.size(); i += 11) {
      double kept = operand[i], step = 1e-4;
      operand[i] = kept + step;
      double above = loss(q.values, k.values, v.values, nullptr);
      operand[i] = kept - step;
      double below = loss(q.values, k.values, v.values, nullptr);
      operand[i] = kept;
      double expected = (above - below) / (2 * step);
      // bf16 result in, bf16 gradient out.
      CHECK_THAT(std::fabs(found[i] - expected) <=
                 0.02 * (1 + std::fabs(expected)));
    }
  }
};
} // namespace

static void checkProblem(const mgq_cudnn_problem &problem) {
  Library library;
  Stream stream;
  Setup setup(problem);
  char error[256];
  mgq_cudnn_attention *attention;
  CHECK_OK(library.open(MGQ_CUDNN_ABI_VERSION, &problem, &attention, error,
                        sizeof error));
  Memory<float> stats(
      size_t(problem.batch * problem.heads * problem.query_length));
  Memory<char> workspace(size_t(library.workspace(attention, 1)));
  mgq_cudnn_tensors tensors{
      setup.q.pointer(),      setup.k.pointer(),
      setup.v.pointer(),      problem.has_bias ? setup.bias.pointer() : nullptr,
      setup.result.pointer(), static_cast<float *>(stats.pointer()),
      setup.grad.pointer(),   setup.dq.pointer(),
      setup.dk.pointer(),     setup.dv.pointer(),
      workspace.pointer()};
  CHECK_OK(
      library.forward(attention, stream.handle, &tensors, error, sizeof error));
  CHECK_OK(library.backward(attention, stream.handle, &tensors, error,
                            sizeof error));
  stream.wait();
  std::vector<double> expected(setup.result.values.size());
  setup.loss(setup.q.values, setup.k.values, setup.v.values, &expected);
  std::vector<double> found = setup.result.read();
  for (size_t i = 0; i < found.size(); ++i)
    CHECK_THAT(std::fabs(found[i] - expected[i]) <=
               0.005 * (1 + std::fabs(expected[i])));
  setup.checkGradient(setup.q.values, setup.dq.read());
  setup.checkGradient(setup.k.values, setup.dk.read());
  setup.checkGradient(setup.v.values, setup.dv.read());
  library.close(attention);
}

SCENARIO(attention) {
  openDevice();
  for (int32_t causal : {MGQ_CUDNN_SEES_ALL, MGQ_CUDNN_SEES_UP_TO_ITSELF,
                         MGQ_CUDNN_SEES_FROM_END})
    for (bool hasBias : {false, true})
      if (!hasBias || causal != MGQ_CUDNN_SEES_FROM_END)
        checkProblem(Setup::problem(causal, hasBias));
  return 0;
}

SCENARIO(faults) {
  openDevice();
  Library library;
  Stream stream, other;
  mgq_cudnn_problem problem = Setup::problem(MGQ_CUDNN_SEES_ALL, false);
  Setup setup(problem);
  char error[256];
  mgq_cudnn_attention *attention;
  problem.head_size = 12;
  CHECK_THAT(library.open(MGQ_CUDNN_ABI_VERSION, &problem, &attention, error,
                          sizeof error) == MGQ_CUDNN_REFUSED);
  CHECK_THAT(std::string(error).find("no multiple of 8") != std::string::npos);
  problem.head_size = 8;
  for (auto change : {+[](mgq_cudnn_problem &p) { p.k_strides[1] += 4; },
                      +[](mgq_cudnn_problem &p) {
                        p.causal = MGQ_CUDNN_SEES_FROM_END;
                        p.has_bias = 1;
                      },
                      +[](mgq_cudnn_problem &p) {
                        p.causal = MGQ_CUDNN_SEES_FROM_END;
                        p.query_length = 8;
                      }}) {
    mgq_cudnn_problem other = problem;
    change(other);
    CHECK_THAT(library.open(MGQ_CUDNN_ABI_VERSION, &other, &attention, error,
                            sizeof error) == MGQ_CUDNN_REFUSED);
  }
  CHECK_THAT(library.open(MGQ_CUDNN_ABI_VERSION + 1, &problem, &attention,
                          error, sizeof error) == MGQ_CUDNN_FAILED);
  CHECK_OK(library.open(MGQ_CUDNN_ABI_VERSION, &problem, &attention, error,
                        sizeof error));
  mgq_cudnn_tensors tensors{};
  tensors.q = setup.q.pointer();
  tensors.k = setup.k.pointer();
  tensors.v = setup.v.pointer();
  tensors.result = setup.result.pointer();
  CHECK_OK(
      library.forward(attention, stream.handle, &tensors, error, sizeof error));
  if (has("backward without stats"))
    CHECK_THAT(library.backward(attention, stream.handle, &tensors, error,
                                sizeof error) == MGQ_CUDNN_FAILED);
  tensors.k = static_cast<const char *>(tensors.k) + 8;
  if (has("unaligned"))
    CHECK_THAT(library.forward(attention, stream.handle, &tensors, error,
                               sizeof error) == MGQ_CUDNN_FAILED);
  if (has("race"))
    CHECK_OK(cuMemsetD8Async(setup.q.memory->address, 0, 16, other.handle));
  CHECK_OK(cuCtxSynchronize());
  if (!has("leak"))
    library.close(attention);
  return 0;
}

//===----------------------------------------------------------------------===//
// Tests
//===----------------------------------------------------------------------===//

TEST(Attention, ResultsAndGradientsAreRight) {
  Result result = run("attention");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

TEST(Attention, FaultsAreReported) {
  EXPECT_EQ(run("faults").output, "");
  const struct {
    const char *fault, *text;
  } faults[] = {{"backward without stats",
                 "mgq_cudnn_backward: an operand of the backward pass is null"},
                {"unaligned", "is not aligned to 16 bytes"},
                {"race", "no event orders them"},
                {"leak", "leak: 1 of kind 'cuDNN attention' left at exit"}};
  for (const auto &[fault, text] : faults) {
    Result result = run("faults", {std::string("FAULT=") + fault});
    EXPECT_EQ(result.status, faultStatus) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  }
  Result failing = run("attention", {"MGQ_FAKE_FAIL=mgq_cudnn_forward:2:1"});
  EXPECT_EQ(failing.status, 1);
  EXPECT_THAT(failing.output, HasSubstr("returned 2"));
}
