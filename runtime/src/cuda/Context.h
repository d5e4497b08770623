//===- Context.h - A rank's GPU and its code --------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_CONTEXT_H
#define MGQ_RUNTIME_CUDA_CONTEXT_H

#include "runtime/include/rt_cuda.h"
#include "runtime/src/cuda/Driver.h"
#include <functional>
#include <string>
#include <vector>

namespace mgq::rt {

/// The primary context of a GPU, current for the thread that made it.
class Context {
public:
  /// `place`: the rank's number among `ranksHere` on this machine; where a
  /// process sees fewer GPUs than that, its launcher may have given each its
  /// own. Throws Error: no driver, no GPU.
  Context(int32_t place, int32_t ranksHere, bool inProcess);
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;
  ~Context();

  /// "GPU 0 (NAME)"
  std::string name() const;
  /// "NAME"
  std::string model() const;
  /// As nvidia-smi writes it.
  std::string uuid() const;
  /// 86: sm_86.
  int architecture() const { return sm; }

private:
  CUdevice device = 0;
  int ordinal = 0, sm = 0;
};

/// Tells the user something.
using Notify = std::function<void(const std::string &)>;

/// The kernels of the program.
class Module {
public:
  /// Loads the best image for the GPU, or has the driver compile the program's
  /// PTX, which takes a while. Throws Error that says what the program has and
  /// what the GPU is.
  Module(const Context &context, const Notify &notify);
  Module(const Module &) = delete;
  Module &operator=(const Module &) = delete;
  ~Module();

  CUfunction function(int32_t kernel) const { return functions[kernel]; }

private:
  CUmodule module = nullptr;
  std::vector<CUfunction> functions;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_CONTEXT_H
