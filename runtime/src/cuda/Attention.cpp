//===- Attention.cpp - Attention by cuDNN ---------------------------------===//
//
// libmgq_cudnn.so (runtime/include/rt_cudnn.h) is loaded when the first
// attention that it may compute is planned.
//
// cuDNN's backward pass reads the statistics of the forward pass, which no
// residual holds: they are made again by a forward pass, whose result goes to
// the spare tensor.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/cuda/Attention.h"
#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/local/Plugin.h"
#include <dlfcn.h>
#include <unistd.h>
#include <utility>

using namespace mgq::rt;

struct mgq::rt::CudnnLibrary {
  mgq_cudnn_open_fn open;
  mgq_cudnn_close_fn close;
  mgq_cudnn_workspace_fn workspace;
  mgq_cudnn_run_fn forward, backward;

  explicit CudnnLibrary(void *handle) {
    find(handle, open, MGQ_CUDNN_OPEN);
    find(handle, close, MGQ_CUDNN_CLOSE);
    find(handle, workspace, MGQ_CUDNN_WORKSPACE);
    find(handle, forward, MGQ_CUDNN_FORWARD);
    find(handle, backward, MGQ_CUDNN_BACKWARD);
  }

private:
  template <typename Function>
  static void find(void *handle, Function &function, const char *name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (!function)
      fail("{} has no {}", MGQ_CUDNN_LIBRARY, name);
  }
};

/// Where the system looks, then where plugins are.
static void *loadLibrary(const char *pluginFolder) {
  void *handle = dlopen(MGQ_CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  std::string fault = handle ? "" : dlerror();
  for (const std::string &folder : pluginFolders(pluginFolder)) {
    std::string path = fmt::format("{}/{}", folder, MGQ_CUDNN_LIBRARY);
    if (handle || access(path.c_str(), F_OK) != 0)
      continue;
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) // It is there: why it does not load says more.
      fault = dlerror();
  }
  if (!handle)
    fail("{}; it comes with the compiler and may lie beside the executable",
         fault);
  return handle;
}

static std::string textOf(const mgq_cudnn_problem &p) {
  return fmt::format("attention of {} x {} heads, {} queries, {} keys, head "
                     "sizes {} and {}",
                     p.batch, p.heads, p.query_length, p.key_length,
                     p.head_size, p.value_size);
}

/// cuDNN reads and writes these 16 bytes at once, wherever they begin
/// (cudnn_frontend, sdpa_support_surface.h); the program's kernels do not.
static bool areAligned(const mgq_cuda_attention_table &table,
                       void *const *tensors) {
  uintptr_t bits = 0;
  for (int32_t i = 0; i < attentionTensors(table); ++i)
    if (i != MGQ_ATTENTION_BIAS)
      bits |= reinterpret_cast<uintptr_t>(tensors[i]);
  return bits % 16 == 0;
}

Attention::Attention(const char *pluginFolder) : pluginFolder(pluginFolder) {}

Attention::~Attention() {
  for (auto &[table, planned] : plans)
    if (planned.handle && !isAbandoned())
      library->close(planned.handle);
}

bool Attention::load() {
  if (!missing.empty()) // It is not asked again for each attention.
    return false;
  if (library)
    return true;
  try {
    library = std::make_unique<CudnnLibrary>(loadLibrary(pluginFolder));
  } catch (const Error &error) {
    missing = error.what();
  }
  return library != nullptr;
}

void Attention::plan(const mgq_cuda_attention_table &table,
                     void *const *tensors) {
  if (!table.library || plans.count(&table) || !areAligned(table, tensors) ||
      !load())
    return;
  Planned planned;
  std::copy_n(tensors, attentionTensors(table), planned.tensors.begin());
  open(table, planned);
  plans.emplace(&table, planned);
}

void Attention::open(const mgq_cuda_attention_table &table, Planned &planned) {
  char text[512] = "";
  int32_t status = library->open(MGQ_CUDNN_ABI_VERSION, &table.problem,
                                 &planned.handle, text, sizeof text);
  if (status != MGQ_CUDNN_DONE) {
    planned.handle = nullptr;
    if (status == MGQ_CUDNN_MISSING)
      missing = text;
    else
      refuse(fmt::format("{}: {}", textOf(table.problem), text));
    return;
  }
  for (int32_t backward = 0; backward <= table.problem.backward; ++backward)
    planned.workspaceBytes = std::max(
        planned.workspaceBytes, library->workspace(planned.handle, backward));
}

void Attention::prepare(CUstream stream, int64_t room) {
  int64_t most = 0;
  for (auto &[table, planned] : plans) {
    if (planned.workspaceBytes <= room) {
      most = std::max(most, planned.workspaceBytes);
      continue;
    }
    char texts[2][32];
    refuse(planned,
           fmt::format("{}: its workspace of {} does not fit into the {} that "
                       "are left",
                       textOf(table->problem),
                       bytesText(planned.workspaceBytes, texts[0]),
                       bytesText(room, texts[1])));
  }
  if (most)
    workspace = std::make_unique<DeviceMemory>(most);
  for (auto &[table, planned] : plans) {
    if (!planned.handle)
      continue;
    try {
      runPlan(*table, planned, planned.tensors.data(), stream);
    } catch (const Error &error) { // A plan is no promise to run.
      refuse(planned, error.what());
    }
  }
}

void Attention::refuse(const std::string &text) {
  if (!refusals++)
    refused = text;
}

void Attention::refuse(Planned &planned, const std::string &text) {
  library->close(std::exchange(planned.handle, nullptr));
  planned.workspaceBytes = 0;
  refuse(text);
}

std::string Attention::note() const {
  if (!missing.empty())
    return fmt::format("attention runs on the program's own kernels, not on "
                       "cuDNN: {}",
                       missing);
  if (refusals)
    return fmt::format("{} kind{} of attention run{} on the program's own "
                       "kernels, not on cuDNN: {}",
                       refusals, refusals == 1 ? "" : "s",
                       refusals == 1 ? "s" : "", refused);
  return "";
}

void Attention::runPlan(const mgq_cuda_attention_table &table,
                        const Planned &planned, void *const *tensors,
                        CUstream stream) {
  mgq_cudnn_tensors all = {};
  all.q = tensors[MGQ_ATTENTION_Q];
  all.k = tensors[MGQ_ATTENTION_K];
  all.v = tensors[MGQ_ATTENTION_V];
  all.bias = tensors[MGQ_ATTENTION_BIAS];
  all.result = tensors[MGQ_ATTENTION_RESULT];
  all.workspace = workspace ? workspace->as<void>() : nullptr;
  bool isBackward = table.problem.backward;
  if (isBackward) {
    all.result = tensors[MGQ_ATTENTION_SPARE];
    all.stats = static_cast<float *>(tensors[MGQ_ATTENTION_STATS]);
  }
  char text[512] = "";
  auto check = [&](int32_t status, const char *call) {
    if (status != MGQ_CUDNN_DONE)
      fail("{}: {} ({})", call, text, textOf(table.problem));
  };
  check(library->forward(planned.handle, stream, &all, text, sizeof text),
        MGQ_CUDNN_FORWARD);
  if (!isBackward)
    return;
  all.result = tensors[MGQ_ATTENTION_RESULT];
  all.grad = tensors[MGQ_ATTENTION_GRAD];
  all.grad_q = tensors[MGQ_ATTENTION_GRAD_Q];
  all.grad_k = tensors[MGQ_ATTENTION_GRAD_K];
  all.grad_v = tensors[MGQ_ATTENTION_GRAD_V];
  check(library->backward(planned.handle, stream, &all, text, sizeof text),
        MGQ_CUDNN_BACKWARD);
}

bool Attention::run(const mgq_cuda_attention_table &table, void *const *tensors,
                    CUstream stream) {
  auto found = plans.find(&table);
  if (found == plans.end() || !found->second.handle ||
      !areAligned(table, tensors))
    return false;
  runPlan(table, found->second, tensors, stream);
  return true;
}
