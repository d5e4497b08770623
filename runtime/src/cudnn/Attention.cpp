//===- Attention.cpp - libmgq_cudnn.so: attention by cuDNN ----------------===//
//
// The one file that includes the cudnn frontend. A problem is one graph for its
// forward pass, which gives the statistics where backward needs them, and one
// for its backward pass. Plans are cuDNN's first choice for the device;
// backward is asked for its deterministic algorithm.
//
// cuDNN, and the CUDA runtime that the frontend calls, are found as the other
// libraries are (Library.h). Nothing links them.
//
//===----------------------------------------------------------------------===//

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include "runtime/include/rt_cudnn.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/cuda/Library.h"
#include <cstdlib>
#include <memory>
#include <optional>

namespace fe = cudnn_frontend;
using mgq::rt::Error;
using mgq::rt::fail;
using mgq::rt::Library;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void *cudnn_frontend::cudnn_dlhandle = nullptr;

static constexpr const char *cudaRuntime = "libcudart.so.13";

/// Names of tensors in a graph; addresses are given in this order.
enum TensorId : int64_t {
  Q = 1,
  K,
  V,
  BIAS,
  RESULT,
  STATS,
  GRAD,
  GRAD_Q,
  GRAD_K,
  GRAD_V
};

namespace {
/// cuDNN for one device: of the calling thread, as the current context is.
struct Handle {
  Handle() {
    cudnnStatus_t status = fe::detail::create_handle(&value);
    if (status != CUDNN_STATUS_SUCCESS)
      fail("cudnnCreate: {}", fe::detail::get_error_string(status));
  }
  Handle(const Handle &) = delete;
  Handle &operator=(const Handle &) = delete;
  ~Handle() { fe::detail::destroy_handle(value); }
  cudnnHandle_t value = nullptr;
};
} // namespace

/// Some of cuDNN's code is compiled when it is planned, by NVRTC, which cuDNN
/// looks for beside itself. It says so where it needs one and there is none.
static void loadCompiler() {
  try {
    static const Library compiler({"libnvrtc.so.13", "nvidia/cu13/lib", ""});
  } catch (const Error &) {
  }
}

/// Loads cuDNN once in a process. Throws Error.
static void loadCudnn() {
  static const bool loaded = [] {
    static const Library runtime(
        {cudaRuntime, "nvidia/cu13/lib",
         "'pip install nvidia-cuda-runtime' or CUDA 13 has it"});
    static const Library cudnn(
        {"libcudnn.so.9", "nvidia/cudnn/lib",
         "'pip install nvidia-cudnn-cu13' has it; LD_LIBRARY_PATH says where"});
    loadCompiler();
    // All are there now, by the names that they have for themselves.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", cudaRuntime, 0);
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
    if (!fe::cudnn_dlhandle)
      fail("libcudnn.so.9 has another name for itself");
    return true;
  }();
  (void)loaded;
}

/// That of the thread, whose plans share it.
static std::shared_ptr<Handle> shareHandle() {
  static thread_local std::weak_ptr<Handle> current;
  std::shared_ptr<Handle> handle = current.lock();
  if (!handle) {
    handle = std::make_shared<Handle>();
    current = handle;
  }
  return handle;
}

//===----------------------------------------------------------------------===//
// Graphs
//===----------------------------------------------------------------------===//

namespace {
/// cuDNN does not take the problem.
struct Refusal : Error {
  using Error::Error;
};

/// The graph of one pass, and its plan.
class Pass {
public:
  Pass(const mgq_cudnn_problem &problem, bool isBackward);
  void build(const Handle &handle);
  void run(const Handle &handle, const mgq_cudnn_tensors &tensors) const;
  int64_t workspaceBytes() const { return bytes; }

private:
  void addForward();
  void addBackward();
  Tensor input(TensorId id, const int64_t *dims, const int64_t *strides);
  void output(const Tensor &tensor, TensorId id, const int64_t *dims,
              const int64_t *strides);
  template <typename Attributes>
  void setTerms(Attributes &attributes);

  const mgq_cudnn_problem problem;
  const bool isBackward;
  int64_t qDims[4], kDims[4], vDims[4], resultDims[4], statsDims[4],
      statsStrides[4];
  fe::graph::Graph graph;
  int64_t bytes = 0;
};
} // namespace

Pass::Pass(const mgq_cudnn_problem &p, bool isBackward)
    : problem(p), isBackward(isBackward),
      qDims{p.batch, p.heads, p.query_length, p.head_size},
      kDims{p.batch, p.kv_heads, p.key_length, p.head_size},
      vDims{p.batch, p.kv_heads, p.key_length, p.value_size},
      resultDims{p.batch, p.heads, p.query_length, p.value_size},
      statsDims{p.batch, p.heads, p.query_length, 1},
      statsStrides{p.heads * p.query_length, p.query_length, 1, 1} {
  graph
      .set_io_data_type(p.type == MGQ_F16 ? fe::DataType_t::HALF
                                          : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (isBackward)
    addBackward();
  else
    addForward();
}

Tensor Pass::input(TensorId id, const int64_t *dims, const int64_t *strides) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(id)
                          .set_name("tensor" + std::to_string(id))
                          .set_dim({dims, dims + 4})
                          .set_stride({strides, strides + 4}));
}

void Pass::output(const Tensor &tensor, TensorId id, const int64_t *dims,
                  const int64_t *strides) {
  tensor->set_output(true)
      .set_uid(id)
      .set_dim({dims, dims + 4})
      .set_stride({strides, strides + 4});
}

/// What both passes say beside their tensors.
template <typename Attributes>
void Pass::setTerms(Attributes &attributes) {
  attributes.set_attn_scale(static_cast<float>(problem.scale));
  if (problem.has_bias)
    attributes.set_bias(
        input(BIAS, problem.bias_extents, problem.bias_strides));
  if (problem.causal == MGQ_CUDNN_SEES_ALL)
    return;
  attributes
      .set_diagonal_alignment(problem.causal == MGQ_CUDNN_SEES_FROM_END
                                  ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                  : fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
}

void Pass::addForward() {
  fe::graph::SDPA_attributes attributes;
  attributes.set_name("attention").set_generate_stats(problem.backward != 0);
  setTerms(attributes);
  auto [result, stats] = graph.sdpa(
      input(Q, qDims, problem.q_strides), input(K, kDims, problem.k_strides),
      input(V, vDims, problem.v_strides), attributes);
  output(result, RESULT, resultDims, problem.result_strides);
  if (!problem.backward)
    return;
  output(stats, STATS, statsDims, statsStrides);
  stats->set_data_type(fe::DataType_t::FLOAT);
}

void Pass::addBackward() {
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward").set_deterministic_algorithm(true);
  setTerms(attributes);
  Tensor stats = input(STATS, statsDims, statsStrides);
  stats->set_data_type(fe::DataType_t::FLOAT);
  auto [q, k, v] = graph.sdpa_backward(
      input(Q, qDims, problem.q_strides), input(K, kDims, problem.k_strides),
      input(V, vDims, problem.v_strides),
      input(RESULT, resultDims, problem.result_strides),
      input(GRAD, resultDims, problem.result_strides), stats, attributes);
  output(q, GRAD_Q, qDims, problem.q_strides);
  output(k, GRAD_K, kDims, problem.k_strides);
  output(v, GRAD_V, vDims, problem.v_strides);
}

static std::string textOf(fe::error_t status, const char *call) {
  return fmt::format("{}: {}", call, status.get_message());
}

/// Whatever keeps a plan from being made, the program has kernels of its own.
void Pass::build(const Handle &handle) {
  auto check = [](fe::error_t status, const char *call) {
    if (status.is_bad())
      throw Refusal(textOf(status, call));
  };
  check(graph.validate(), "validate");
  check(graph.build_operation_graph(handle.value), "build_operation_graph");
  check(graph.create_execution_plans({fe::HeurMode_t::A}),
        "create_execution_plans");
  check(graph.check_support(), "check_support");
  check(graph.build_plans(), "build_plans");
  check(graph.get_workspace_size(bytes), "get_workspace_size");
}

void Pass::run(const Handle &handle, const mgq_cudnn_tensors &t) const {
  // In the order of their ids; those that the graph does not have left out.
  void *addresses[GRAD_V];
  int count = 0;
  auto add = [&](bool isThere, const void *address) {
    if (isThere)
      addresses[count++] = const_cast<void *>(address);
  };
  for (const void *address : {t.q, t.k, t.v})
    add(true, address);
  add(problem.has_bias, t.bias);
  add(true, t.result);
  add(problem.backward, t.stats);
  for (const void *address : {t.grad, static_cast<const void *>(t.grad_q),
                              static_cast<const void *>(t.grad_k),
                              static_cast<const void *>(t.grad_v)})
    add(isBackward, address);
  fe::error_t status =
      graph.execute(handle.value, addresses, count, t.workspace);
  if (status.is_bad())
    throw Error(textOf(status, "execute"));
}

//===----------------------------------------------------------------------===//
// Entry
//===----------------------------------------------------------------------===//

struct mgq_cudnn_attention {
  std::shared_ptr<Handle> handle;
  std::optional<Pass> forward, backward;
};

static int32_t say(int32_t status, const char *text, char *error,
                   int64_t bytes) {
  if (error && bytes > 0)
    std::snprintf(error, static_cast<size_t>(bytes), "%s", text);
  return status;
}

/// Runs `body`; what it throws becomes a status and a text.
template <typename Body>
static int32_t guarded(char *error, int64_t bytes, Body body) {
  try {
    body();
    return MGQ_CUDNN_DONE;
  } catch (const Refusal &refusal) {
    return say(MGQ_CUDNN_REFUSED, refusal.what(), error, bytes);
  } catch (const std::exception &fault) {
    return say(MGQ_CUDNN_FAILED, fault.what(), error, bytes);
  }
}

static std::unique_ptr<mgq_cudnn_attention>
makeAttention(const mgq_cudnn_problem &problem,
              const std::shared_ptr<Handle> &handle) {
  if (problem.type != MGQ_BF16 && problem.type != MGQ_F16)
    throw Refusal("types other than bf16 and f16");
  auto made = std::make_unique<mgq_cudnn_attention>();
  made->handle = handle;
  made->forward.emplace(problem, /*isBackward=*/false);
  made->forward->build(*made->handle);
  if (problem.backward) {
    made->backward.emplace(problem, /*isBackward=*/true);
    made->backward->build(*made->handle);
  }
  return made;
}

static int32_t run(mgq_cudnn_attention *attention, void *stream,
                   const mgq_cudnn_tensors *tensors, bool isBackward,
                   char *error, int64_t bytes) {
  return guarded(error, bytes, [&] {
    cudnnHandle_t handle = attention->handle->value;
    cudnnStatus_t status =
        fe::detail::set_stream(handle, static_cast<cudaStream_t>(stream));
    if (status != CUDNN_STATUS_SUCCESS)
      fail("cudnnSetStream: {}", fe::detail::get_error_string(status));
    const auto &pass = isBackward ? attention->backward : attention->forward;
    pass->run(*attention->handle, *tensors);
  });
}

#define ENTRY extern "C" __attribute__((visibility("default")))

ENTRY int64_t mgq_cudnn_version() {
  try {
    loadCudnn();
    return static_cast<int64_t>(fe::detail::get_backend_version());
  } catch (const std::exception &) {
    return 0;
  }
}

ENTRY int32_t mgq_cudnn_open(int32_t version, const mgq_cudnn_problem *problem,
                             mgq_cudnn_attention **attention, char *error,
                             int64_t bytes) {
  if (version != MGQ_CUDNN_ABI_VERSION)
    return say(MGQ_CUDNN_FAILED,
               MGQ_CUDNN_LIBRARY " belongs to another version of the program",
               error, bytes);
  std::shared_ptr<Handle> handle;
  try {
    loadCudnn();
    handle = shareHandle();
  } catch (const std::exception &fault) {
    return say(MGQ_CUDNN_MISSING, fault.what(), error, bytes);
  }
  return guarded(error, bytes, [&] {
    *attention = makeAttention(*problem, handle).release();
  });
}

ENTRY void mgq_cudnn_close(mgq_cudnn_attention *attention) { delete attention; }

ENTRY int64_t mgq_cudnn_workspace(const mgq_cudnn_attention *attention,
                                  int32_t backward) {
  const auto &pass = backward ? attention->backward : attention->forward;
  return pass ? pass->workspaceBytes() : 0;
}

ENTRY int32_t mgq_cudnn_forward(mgq_cudnn_attention *attention, void *stream,
                                const mgq_cudnn_tensors *tensors, char *error,
                                int64_t bytes) {
  return run(attention, stream, tensors, false, error, bytes);
}

ENTRY int32_t mgq_cudnn_backward(mgq_cudnn_attention *attention, void *stream,
                                 const mgq_cudnn_tensors *tensors, char *error,
                                 int64_t bytes) {
  return run(attention, stream, tensors, true, error, bytes);
}
