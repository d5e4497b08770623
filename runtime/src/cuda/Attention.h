//===- Attention.h - Attention by cuDNN -------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_ATTENTION_H
#define MGQ_RUNTIME_CUDA_ATTENTION_H

#include "runtime/include/rt_cuda.h"
#include "runtime/src/cuda/Driver.h"
#include <array>
#include <map>
#include <memory>
#include <vector>

namespace mgq::rt {

struct CudnnLibrary;

/// How many tensors a call has.
inline int32_t attentionTensors(const mgq_cuda_attention_table &table) {
  return table.problem.backward ? MGQ_ATTENTION_TENSORS
                                : MGQ_ATTENTION_RESULT + 1;
}

/// The attentions of a rank that cuDNN computes. Each table is planned once, at
/// the start; what cuDNN does not take, or all where it is not installed, is
/// left to the program's kernels.
class Attention {
public:
  /// `pluginFolder`: where libmgq_cudnn.so may be besides; null: nowhere.
  explicit Attention(const char *pluginFolder);
  Attention(const Attention &) = delete;
  Attention &operator=(const Attention &) = delete;
  ~Attention();

  /// Plans a call that will come, if it is not known yet.
  void plan(const mgq_cuda_attention_table &table, void *const *tensors);
  /// After all of plan(): takes the workspace, of up to `room` bytes, and runs
  /// each plan once, so that cuDNN loads its code. What needs more, or does not
  /// run, is left to the program's kernels.
  void prepare(CUstream stream, int64_t room);
  /// What the user should know of where attention is computed; empty: nothing.
  std::string note() const;

  /// Enqueues a call. False: the program's kernels compute it. Throws Error.
  bool run(const mgq_cuda_attention_table &table, void *const *tensors,
           CUstream stream);

private:
  struct Planned {
    mgq_cudnn_attention *handle = nullptr; ///< null: refused
    int64_t workspaceBytes = 0;
    std::array<void *, MGQ_ATTENTION_TENSORS> tensors{};
  };
  bool load();
  void open(const mgq_cuda_attention_table &table, Planned &planned);
  /// The program's kernels do it: `text` says why.
  void refuse(const std::string &text);
  void refuse(Planned &planned, const std::string &text);
  void runPlan(const mgq_cuda_attention_table &table, const Planned &planned,
               void *const *tensors, CUstream stream);

  const char *pluginFolder;
  std::unique_ptr<CudnnLibrary> library;
  std::string missing; ///< Why there is no library; empty: there is.
  std::map<const mgq_cuda_attention_table *, Planned> plans;
  std::string refused; ///< What cuDNN said first of a problem.
  int refusals = 0;
  std::unique_ptr<DeviceMemory> workspace;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_ATTENTION_H
