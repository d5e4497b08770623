//===- Driver.h - The CUDA driver -------------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_DRIVER_H
#define MGQ_RUNTIME_CUDA_DRIVER_H

#include "runtime/src/cuda/Library.h"
#include <cuda.h>

// Functions that are used, each by the name that cuda.h gives it.
#define MGQ_DRIVER_FUNCTIONS(X)                                                \
  X(cuInit)                                                                    \
  X(cuDriverGetVersion)                                                        \
  X(cuGetErrorName)                                                            \
  X(cuGetErrorString)                                                          \
  X(cuDeviceGetCount)                                                          \
  X(cuDeviceGet)                                                               \
  X(cuDeviceGetName)                                                           \
  X(cuDeviceGetUuid)                                                           \
  X(cuDeviceGetAttribute)                                                      \
  X(cuDevicePrimaryCtxRetain)                                                  \
  X(cuDevicePrimaryCtxRelease)                                                 \
  X(cuCtxSetCurrent)                                                           \
  X(cuMemGetInfo)                                                              \
  X(cuMemAlloc)                                                                \
  X(cuMemFree)                                                                 \
  X(cuMemHostAlloc)                                                            \
  X(cuMemFreeHost)                                                             \
  X(cuMemcpyHtoDAsync)                                                         \
  X(cuMemcpyDtoHAsync)                                                         \
  X(cuMemcpyDtoDAsync)                                                         \
  X(cuMemsetD8Async)                                                           \
  X(cuStreamCreate)                                                            \
  X(cuStreamDestroy)                                                           \
  X(cuStreamWaitEvent)                                                         \
  X(cuStreamBeginCapture)                                                      \
  X(cuStreamEndCapture)                                                        \
  X(cuGraphGetNodes)                                                           \
  X(cuGraphInstantiate)                                                        \
  X(cuGraphUpload)                                                             \
  X(cuGraphLaunch)                                                             \
  X(cuGraphDestroy)                                                            \
  X(cuGraphExecDestroy)                                                        \
  X(cuEventCreate)                                                             \
  X(cuEventDestroy)                                                            \
  X(cuEventRecord)                                                             \
  X(cuEventQuery)                                                              \
  X(cuEventElapsedTime)                                                        \
  X(cuModuleLoadData)                                                          \
  X(cuModuleLoadDataEx)                                                        \
  X(cuModuleUnload)                                                            \
  X(cuModuleGetFunction)                                                       \
  X(cuFuncLoad)                                                                \
  X(cuLaunchKernel)

namespace mgq::rt {

struct Driver {
  /// Throws Error: no driver, or one that is too old.
  Driver();

  Library library;
#define MGQ_MEMBER(name) decltype(&::name) name;
  MGQ_DRIVER_FUNCTIONS(MGQ_MEMBER)
#undef MGQ_MEMBER
};

/// The process' driver, loaded by the first call.
const Driver &driver();

/// "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)".
std::string driverText(CUresult status);

/// Throws Error "CALL: TEXT" unless a call has succeeded.
void checkDriver(CUresult status, const char *call);

// cuCall(cuMemAlloc, &address, bytes) throws; cuTry gives the status.
#define cuTry(function, ...) (::mgq::rt::driver().function(__VA_ARGS__))
#define cuCall(function, ...)                                                  \
  ::mgq::rt::checkDriver(cuTry(function, __VA_ARGS__), #function)

/// Whether the calling thread gives nothing back any more: its device is broken
/// or never gets done, and would be waited for.
bool &isAbandoned();
#define cuGiveBack(function, ...)                                              \
  (::mgq::rt::isAbandoned() ? CUDA_SUCCESS : cuTry(function, __VA_ARGS__))

/// Work on a device, one after the other.
class Stream {
public:
  Stream() { cuCall(cuStreamCreate, &handle, CU_STREAM_NON_BLOCKING); }
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;
  ~Stream() { cuGiveBack(cuStreamDestroy, handle); }
  operator CUstream() const { return handle; }

private:
  CUstream handle = nullptr;
};

/// A point in a stream.
class Event {
public:
  explicit Event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    cuCall(cuEventCreate, &handle, flags);
  }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  ~Event() { cuGiveBack(cuEventDestroy, handle); }
  operator CUevent() const { return handle; }
  void record(CUstream stream) { cuCall(cuEventRecord, handle, stream); }
  /// What `stream` is given from here on comes after it.
  void before(CUstream stream) const {
    cuCall(cuStreamWaitEvent, stream, handle, 0);
  }

private:
  CUevent handle = nullptr;
};

/// Device memory.
class DeviceMemory {
public:
  /// Throws Error, with what is free.
  explicit DeviceMemory(int64_t bytes);
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;
  ~DeviceMemory() { cuGiveBack(cuMemFree, start); }
  CUdeviceptr address() const { return start; }
  template <typename T>
  T *as() const {
    return reinterpret_cast<T *>(start);
  }

private:
  CUdeviceptr start = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_DRIVER_H
