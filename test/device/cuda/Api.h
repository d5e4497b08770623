//===- Api.h - What all driver functions do first ---------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUDA_API_H
#define MGQ_TEST_DEVICE_CUDA_API_H

#include "test/device/cuda/Stream.h"
#include <cuda.h>

namespace mgq::device {

/// What a function needs to have been called before.
enum class Needs { Nothing, Init, Context };

/// What the call must fail with: an injected failure, a missing cuInit or
/// context, or the fault of an earlier operation on the device.
CUresult enter(const char *function, Needs needs);

/// A stream's handle in the current context; reports one that does not exist.
CUresult findStream(CUstream handle, StreamState *&stream);

} // namespace mgq::device

#define MGQ_API extern "C" __attribute__((visibility("default"))) CUresult

#define MGQ_ENTER(needs)                                                       \
  do {                                                                         \
    CUresult entered =                                                         \
        mgq::device::enter(__func__, mgq::device::Needs::needs);               \
    if (entered != CUDA_SUCCESS)                                               \
      return entered;                                                          \
  } while (false)

#endif // MGQ_TEST_DEVICE_CUDA_API_H
