//===- Driver.h - What host programs do first -------------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_PROGRAMS_DRIVER_H
#define MGQ_TEST_DEVICE_PROGRAMS_DRIVER_H

#include "test/device/programs/Scenario.h"
#include <cuda.h>
#include <memory>

namespace mgq::scenario {

/// A context on device 0, or another.
inline CUcontext openDevice(int ordinal = 0) {
  CUdevice device;
  CUcontext context;
  CHECK_OK(cuInit(0));
  CHECK_OK(cuDeviceGet(&device, ordinal));
  CHECK_OK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK_OK(cuCtxSetCurrent(context));
  return context;
}

struct Stream {
  CUstream handle;
  Stream() { CHECK_OK(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { CHECK_OK(cuStreamDestroy(handle)); }
  Stream(const Stream &) = delete;
  void wait() { CHECK_OK(cuStreamSynchronize(handle)); }
};

struct Event {
  CUevent handle;
  Event() { CHECK_OK(cuEventCreate(&handle, CU_EVENT_DISABLE_TIMING)); }
  ~Event() { CHECK_OK(cuEventDestroy(handle)); }
  Event(const Event &) = delete;
  void record(Stream &stream) {
    CHECK_OK(cuEventRecord(handle, stream.handle));
  }
  void before(Stream &stream) {
    CHECK_OK(cuStreamWaitEvent(stream.handle, handle, 0));
  }
};

/// Device memory for elements of type T.
template <typename T>
struct Memory {
  CUdeviceptr address = 0;
  size_t count;
  explicit Memory(size_t count) : count(count) {
    CHECK_OK(cuMemAlloc(&address, count * sizeof(T)));
  }
  explicit Memory(const std::vector<T> &values) : Memory(values.size()) {
    CHECK_OK(cuMemcpyHtoD(address, values.data(), count * sizeof(T)));
  }
  ~Memory() { cuMemFree(address); } // Fails after a device's fault.
  Memory(const Memory &) = delete;
  std::vector<T> read() const {
    std::vector<T> values(count);
    CHECK_OK(cuMemcpyDtoH(values.data(), address, count * sizeof(T)));
    return values;
  }
  void *pointer() const { return reinterpret_cast<void *>(address); }
};

struct Module {
  CUmodule handle;
  explicit Module(const char *image) {
    CHECK_OK(cuModuleLoadData(&handle, image));
  }
  ~Module() { cuModuleUnload(handle); }
  Module(const Module &) = delete;
  CUfunction function(const char *name) const {
    CUfunction result;
    CHECK_OK(cuModuleGetFunction(&result, handle, name));
    return result;
  }
};

/// Launches with grid and blocks of one axis.
template <typename... Arguments>
CUresult launch(CUfunction function, unsigned blocks, unsigned threads,
                CUstream stream, Arguments... arguments) {
  void *params[] = {&arguments...};
  return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream,
                        params, nullptr);
}

} // namespace mgq::scenario

#endif // MGQ_TEST_DEVICE_PROGRAMS_DRIVER_H
