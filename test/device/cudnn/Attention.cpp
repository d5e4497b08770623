//===- Attention.cpp - The stand-in of libmgq_cudnn.so --------------------===//
//
// Attention forward and backward, row by row in float, with all scores of a row
// at once. Refuses what cuDNN refuses, as far as its documentation says.
//
//===----------------------------------------------------------------------===//

#include "runtime/include/rt_cudnn.h"
#include "test/device/cuda/Settings.h"
#include "test/device/cuda/Stream.h"
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace mgq::device;

static constexpr const char *handleKind = "cuDNN attention";
/// Of a backward call: a workspace that must be there, and is touched.
static constexpr int64_t backwardWorkspace = 1024;

struct mgq_cudnn_attention {
  mgq_cudnn_problem problem;
};

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

namespace {
/// A tensor [batch, heads, rows, columns] of the problem.
struct Tensor {
  const void *base;
  int32_t type;
  int64_t extents[4];
  const int64_t *strides;

  /// An extent of 1 is the same everywhere.
  int64_t index(int64_t b, int64_t h, int64_t r, int64_t c) const {
    const int64_t at[] = {b, h, r, c};
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i)
      sum += extents[i] == 1 ? 0 : at[i] * strides[i];
    return sum;
  }
  float get(int64_t b, int64_t h, int64_t r, int64_t c) const {
    int64_t i = index(b, h, r, c);
    if (type == MGQ_F16)
      return float(static_cast<const _Float16 *>(base)[i]);
    uint32_t bits = uint32_t(static_cast<const uint16_t *>(base)[i]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  void set(int64_t b, int64_t h, int64_t r, int64_t c, float value) const {
    int64_t i = index(b, h, r, c);
    auto *to = const_cast<void *>(base);
    if (type == MGQ_F16) {
      static_cast<_Float16 *>(to)[i] = _Float16(value);
      return;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bool isNaN = (bits & 0x7fffffff) > 0x7f800000;
    static_cast<uint16_t *>(to)[i] =
        isNaN ? 0x7fff : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }

  /// Rows are touched one by one: between them may lie something else.
  bool touch(mgq_twin_access_kind kind) const {
    bool isInside = true;
    for (int64_t b = 0; b < extents[0]; ++b)
      for (int64_t h = 0; h < extents[1]; ++h)
        for (int64_t r = 0; r < extents[2]; ++r)
          isInside = isInside && touchOrReport(static_cast<const char *>(base) +
                                                   2 * index(b, h, r, 0),
                                               2 * extents[3], kind);
    return isInside;
  }
};

/// The tensors of a call.
struct Attention {
  const mgq_cudnn_problem &p;
  const mgq_cudnn_tensors &t;

  Tensor q(const void *at) const {
    return {at,
            p.type,
            {p.batch, p.heads, p.query_length, p.head_size},
            p.q_strides};
  }
  Tensor k(const void *at) const {
    return {at,
            p.type,
            {p.batch, p.kv_heads, p.key_length, p.head_size},
            p.k_strides};
  }
  Tensor v(const void *at) const {
    return {at,
            p.type,
            {p.batch, p.kv_heads, p.key_length, p.value_size},
            p.v_strides};
  }
  Tensor result(const void *at) const {
    return {at,
            p.type,
            {p.batch, p.heads, p.query_length, p.value_size},
            p.result_strides};
  }
  Tensor bias() const {
    const int64_t *e = p.bias_extents;
    return {t.bias, p.type, {e[0], e[1], e[2], e[3]}, p.bias_strides};
  }
  int64_t kvHead(int64_t h) const { return h / (p.heads / p.kv_heads); }

  bool sees(int64_t query, int64_t key) const {
    switch (p.causal) {
    case MGQ_CUDNN_SEES_UP_TO_ITSELF:
      return key <= query;
    case MGQ_CUDNN_SEES_FROM_END:
      return key <= query + p.key_length - p.query_length;
    default:
      return true;
    }
  }
  /// scale q k^T + bias of a row; -inf where nothing is seen.
  std::vector<float> scores(int64_t b, int64_t h, int64_t row) const;
  bool touchInputs() const;
  int forward() const;
  int backward() const;
  void backwardRow(int64_t b, int64_t h, int64_t row, std::vector<float> &dk,
                   std::vector<float> &dv) const;
};
} // namespace

std::vector<float> Attention::scores(int64_t b, int64_t h, int64_t row) const {
  constexpr float never = -std::numeric_limits<float>::infinity();
  std::vector<float> result(size_t(p.key_length), never);
  Tensor query = q(t.q), key = k(t.k);
  for (int64_t j = 0; j < p.key_length; ++j) {
    if (!sees(row, j))
      continue;
    float sum = 0;
    for (int64_t d = 0; d < p.head_size; ++d)
      sum = std::fma(query.get(b, h, row, d), key.get(b, kvHead(h), j, d), sum);
    result[size_t(j)] =
        float(p.scale) * sum + (p.has_bias ? bias().get(b, h, row, j) : 0);
  }
  return result;
}

bool Attention::touchInputs() const {
  return q(t.q).touch(MGQ_TWIN_READ) && k(t.k).touch(MGQ_TWIN_READ) &&
         v(t.v).touch(MGQ_TWIN_READ) &&
         (!p.has_bias || bias().touch(MGQ_TWIN_READ));
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

int Attention::forward() const {
  int64_t statsBytes = 4 * p.batch * p.heads * p.query_length;
  if (!touchInputs() || !result(t.result).touch(MGQ_TWIN_WRITE) ||
      (t.stats && !touchOrReport(t.stats, statsBytes, MGQ_TWIN_WRITE)))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  Tensor value = v(t.v), out = result(t.result);
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t row = 0; row < p.query_length; ++row) {
        std::vector<float> weights = scores(b, h, row);
        float most = -std::numeric_limits<float>::infinity(), sum = 0;
        for (float score : weights)
          most = std::max(most, score);
        bool seesAny = most > -std::numeric_limits<float>::infinity();
        for (float &weight : weights)
          sum += weight = seesAny ? std::exp(weight - most) : 0;
        for (int64_t d = 0; d < p.value_size; ++d) {
          float each = 0;
          for (int64_t j = 0; j < p.key_length; ++j)
            each = std::fma(weights[size_t(j)], value.get(b, kvHead(h), j, d),
                            each);
          out.set(b, h, row, d, seesAny ? each / sum : 0);
        }
        if (t.stats)
          t.stats[(b * p.heads + h) * p.query_length + row] =
              seesAny ? most + std::log(sum) : most;
      }
  return 0;
}

//===----------------------------------------------------------------------===//
// Backward
//===----------------------------------------------------------------------===//

/// Writes a row of grad_q, adds to the head's sums of the other gradients:
/// p = exp(score - stats), ds = p (grad v^T - sum(grad result)).
void Attention::backwardRow(int64_t b, int64_t h, int64_t row,
                            std::vector<float> &dk,
                            std::vector<float> &dv) const {
  int64_t kv = kvHead(h), size = p.head_size, valueSize = p.value_size;
  Tensor query = q(t.q), key = k(t.k), value = v(t.v);
  Tensor out = result(t.result), grad = result(t.grad);
  float stats = t.stats[(b * p.heads + h) * p.query_length + row];
  bool seesAny = stats > -std::numeric_limits<float>::infinity();
  float inner = 0;
  for (int64_t d = 0; d < valueSize; ++d)
    inner += grad.get(b, h, row, d) * out.get(b, h, row, d);
  std::vector<float> weights = scores(b, h, row), dq(static_cast<size_t>(size));
  for (int64_t j = 0; seesAny && j < p.key_length; ++j) {
    float weight = std::exp(weights[size_t(j)] - stats), dp = 0;
    for (int64_t d = 0; d < valueSize; ++d) {
      float each = grad.get(b, h, row, d);
      dp += each * value.get(b, kv, j, d);
      dv[size_t(j * valueSize + d)] += weight * each;
    }
    float ds = float(p.scale) * weight * (dp - inner);
    for (int64_t d = 0; d < size; ++d) {
      dq[size_t(d)] += ds * key.get(b, kv, j, d);
      dk[size_t(j * size + d)] += ds * query.get(b, h, row, d);
    }
  }
  for (int64_t d = 0; d < size; ++d)
    q(t.grad_q).set(b, h, row, d, dq[size_t(d)]);
}

int Attention::backward() const {
  int64_t statsBytes = 4 * p.batch * p.heads * p.query_length;
  if (!touchInputs() || !result(t.result).touch(MGQ_TWIN_READ) ||
      !result(t.grad).touch(MGQ_TWIN_READ) ||
      !touchOrReport(t.stats, statsBytes, MGQ_TWIN_READ) ||
      !touchOrReport(t.workspace, backwardWorkspace, MGQ_TWIN_WRITE) ||
      !q(t.grad_q).touch(MGQ_TWIN_WRITE) ||
      !k(t.grad_k).touch(MGQ_TWIN_WRITE) || !v(t.grad_v).touch(MGQ_TWIN_WRITE))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  int64_t group = p.heads / p.kv_heads;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t kv = 0; kv < p.kv_heads; ++kv) {
      std::vector<float> dk(size_t(p.key_length * p.head_size));
      std::vector<float> dv(size_t(p.key_length * p.value_size));
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        for (int64_t row = 0; row < p.query_length; ++row)
          backwardRow(b, h, row, dk, dv);
      for (int64_t j = 0; j < p.key_length; ++j) {
        for (int64_t d = 0; d < p.head_size; ++d)
          k(t.grad_k).set(b, kv, j, d, dk[size_t(j * p.head_size + d)]);
        for (int64_t d = 0; d < p.value_size; ++d)
          v(t.grad_v).set(b, kv, j, d, dv[size_t(j * p.value_size + d)]);
      }
    }
  return 0;
}

//===----------------------------------------------------------------------===//
// Entry
//===----------------------------------------------------------------------===//

#define ENTRY extern "C" __attribute__((visibility("default")))

static int32_t say(int32_t status, const std::string &text, char *error,
                   int64_t bytes) {
  if (error && bytes > 0)
    std::snprintf(error, size_t(bytes), "%s", text.c_str());
  return status;
}

/// Why cuDNN would not take the problem, "": it would.
static std::string refusal(const mgq_cudnn_problem &p) {
  if (p.type != MGQ_BF16 && p.type != MGQ_F16)
    return "types other than bf16 and f16";
  if (p.head_size % 8 || p.value_size % 8 || p.head_size > 128 ||
      p.value_size > 128)
    return "head sizes that are no multiple of 8, or above 128";
  if (p.kv_heads <= 0 || p.heads % p.kv_heads)
    return "heads that are no multiple of kv heads";
  if (p.query_length <= 0 || p.key_length <= 0)
    return "no queries or keys";
  for (const int64_t *strides :
       {p.q_strides, p.k_strides, p.v_strides, p.result_strides})
    if (strides[3] != 1)
      return "elements of a row that lie apart";
  for (const int64_t *strides :
       {p.q_strides, p.k_strides, p.v_strides, p.result_strides})
    if ((strides[0] | strides[1] | strides[2]) % 8)
      return "strides that are no multiples of 16 bytes";
  if (p.causal == MGQ_CUDNN_SEES_FROM_END &&
      (p.has_bias || p.query_length > p.key_length))
    return "a causal mask from the end with a bias, or more queries than keys";
  return "";
}

ENTRY int64_t mgq_cudnn_version() { return 91900; }

ENTRY int32_t mgq_cudnn_open(int32_t version, const mgq_cudnn_problem *problem,
                             mgq_cudnn_attention **attention, char *error,
                             int64_t errorBytes) {
  if (int code = injectedFailure("mgq_cudnn_open"))
    return code == MGQ_CUDNN_MISSING
               ? say(code, "no libcudnn.so.9", error, errorBytes)
               : say(MGQ_CUDNN_FAILED, "CUDNN_STATUS_INTERNAL_ERROR", error,
                     errorBytes);
  if (version != MGQ_CUDNN_ABI_VERSION)
    return say(MGQ_CUDNN_FAILED, "another version of rt_cudnn.h", error,
               errorBytes);
  if (std::string text = refusal(*problem); !text.empty())
    return say(MGQ_CUDNN_REFUSED, "CUDNN_STATUS_NOT_SUPPORTED: " + text, error,
               errorBytes);
  *attention = new mgq_cudnn_attention{*problem};
  handleMade(handleKind, *attention);
  return MGQ_CUDNN_DONE;
}

ENTRY void mgq_cudnn_close(mgq_cudnn_attention *attention) {
  if (attention && handleGone(handleKind, attention))
    delete attention;
}

ENTRY int64_t mgq_cudnn_workspace(const mgq_cudnn_attention *,
                                  int32_t backward) {
  return backward ? backwardWorkspace : 0;
}

/// What is missing among the tensors of a call, "": nothing.
static std::string missing(const mgq_cudnn_problem &p,
                           const mgq_cudnn_tensors &t, bool backward) {
  if (!t.q || !t.k || !t.v || !t.result || (p.has_bias && !t.bias))
    return "an operand is null";
  if (!backward)
    return "";
  if (!p.backward)
    return "the plan has no backward pass";
  if (!t.stats || !t.grad || !t.grad_q || !t.grad_k || !t.grad_v ||
      !t.workspace)
    return "an operand of the backward pass is null";
  return "";
}

/// What is not aligned to 16 bytes, as it is on a GPU: "": nothing.
static std::string unaligned(const mgq_cudnn_tensors &t) {
  const void *const all[] = {t.q,    t.k,      t.v,      t.result,
                             t.grad, t.grad_q, t.grad_k, t.grad_v};
  for (const void *tensor : all)
    if (reinterpret_cast<uintptr_t>(tensor) % 16)
      return "a tensor at " + describeAddress(tensor) +
             " is not aligned to 16 bytes";
  return "";
}

static int32_t run(const mgq_cudnn_attention *attention, void *stream,
                   const mgq_cudnn_tensors *tensors, bool backward, char *error,
                   int64_t errorBytes) {
  const char *name = backward ? "mgq_cudnn_backward" : "mgq_cudnn_forward";
  if (injectedFailure(name))
    return say(MGQ_CUDNN_FAILED, "CUDNN_STATUS_EXECUTION_FAILED", error,
               errorBytes);
  mgq_cudnn_problem problem = attention->problem;
  mgq_cudnn_tensors copy = *tensors;
  std::string text = missing(problem, copy, backward);
  if (text.empty())
    text = unaligned(copy);
  if (!text.empty()) {
    report(std::string(name) + ": " + text);
    return say(MGQ_CUDNN_FAILED, "CUDNN_STATUS_BAD_PARAM: " + text, error,
               errorBytes);
  }
  int status = enqueueOn(
      static_cast<CUstream>(stream), name,
      [problem, copy, backward] {
        Attention run{problem, copy};
        return backward ? run.backward() : run.forward();
      },
      Run::Exclusive);
  return status ? say(MGQ_CUDNN_FAILED, "CUDNN_STATUS_EXECUTION_FAILED", error,
                      errorBytes)
                : int32_t(MGQ_CUDNN_DONE);
}

ENTRY int32_t mgq_cudnn_forward(mgq_cudnn_attention *attention, void *stream,
                                const mgq_cudnn_tensors *tensors, char *error,
                                int64_t errorBytes) {
  return run(attention, stream, tensors, false, error, errorBytes);
}

ENTRY int32_t mgq_cudnn_backward(mgq_cudnn_attention *attention, void *stream,
                                 const mgq_cudnn_tensors *tensors, char *error,
                                 int64_t errorBytes) {
  return run(attention, stream, tensors, true, error, errorBytes);
}
