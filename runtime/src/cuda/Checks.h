//===- Checks.h - Indices out of range on a GPU -----------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_CHECKS_H
#define MGQ_RUNTIME_CUDA_CHECKS_H

#include "runtime/include/rt_cuda.h"
#include "runtime/src/cuda/Staging.h"

namespace mgq::rt {

/// A mgq_cuda_check for each layer function of a rank, so that a fault names
/// its layer.
class Checks {
public:
  /// `most`: layer functions that have checks, at most.
  Checks(int64_t most, CUstream stream);

  /// Where a kernel of layer function `name` reports.
  CUdeviceptr &placeOf(const char *name);
  /// Enqueues the copy to the host of what was reported.
  void enqueueRead(CUstream stream);
  /// When that has been copied. Throws Error for the first fault.
  void throwFirst() const;

private:
  static constexpr int64_t size = sizeof(mgq_cuda_check);
  int64_t most;
  DeviceMemory memory;
  PinnedMemory found;
  std::vector<const char *> names;
  std::vector<CUdeviceptr> places; ///< Of each name.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_CHECKS_H
