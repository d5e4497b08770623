//===- ApiMemory.cpp - Memory and copies ----------------------------------===//

#include "runtime/include/rt.h"
#include "test/device/cuda/Api.h"
#include "test/device/cuda/Settings.h"
#include <cstdlib>
#include <cstring>

using namespace mgq::device;

//===----------------------------------------------------------------------===//
// Allocation
//===----------------------------------------------------------------------===//

MGQ_API cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  MGQ_ENTER(Context);
  if (bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  void *made = allocate(currentDevice(), int64_t(bytes));
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  handleMade("device memory", made);
  *address = reinterpret_cast<CUdeviceptr>(made);
  return CUDA_SUCCESS;
}

MGQ_API cuMemFree(CUdeviceptr address) {
  MGQ_ENTER(Context);
  if (address == 0)
    return CUDA_SUCCESS;
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  synchronizeDevice(currentDevice());
  auto *memory = reinterpret_cast<void *>(address);
  if (!handleGone("device memory", memory) || !release(memory))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

MGQ_API cuMemGetInfo(size_t *free, size_t *total) {
  MGQ_ENTER(Context);
  *free = size_t(freeBytes(currentDevice()));
  *total = size_t(settings().memory);
  return CUDA_SUCCESS;
}

MGQ_API cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes,
                             CUdeviceptr address) {
  MGQ_ENTER(Context);
  void *start;
  int64_t length;
  int device;
  if (!findAllocation(reinterpret_cast<void *>(address), &start, &length,
                      &device))
    return CUDA_ERROR_NOT_FOUND;
  if (base)
    *base = reinterpret_cast<CUdeviceptr>(start);
  if (bytes)
    *bytes = size_t(length);
  return CUDA_SUCCESS;
}

static CUresult allocateHost(void **address, size_t bytes) {
  if (bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  void *made = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  handleMade("page-locked host memory", made);
  addPinned(made, int64_t(bytes));
  *address = made;
  return CUDA_SUCCESS;
}

MGQ_API cuMemHostAlloc(void **address, size_t bytes, unsigned) {
  MGQ_ENTER(Context);
  return allocateHost(address, bytes);
}

MGQ_API cuMemAllocHost(void **address, size_t bytes) {
  MGQ_ENTER(Context);
  return allocateHost(address, bytes);
}

MGQ_API cuMemFreeHost(void *address) {
  MGQ_ENTER(Context);
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  synchronizeDevice(currentDevice());
  if (!handleGone("page-locked host memory", address))
    return CUDA_ERROR_INVALID_VALUE;
  removePinned(address);
  std::free(address);
  return CUDA_SUCCESS;
}

MGQ_API cuMemHostRegister(void *address, size_t bytes, unsigned) {
  MGQ_ENTER(Context);
  if (!address || bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (isPinned(address, 1))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  handleMade("registered host memory", address);
  addPinned(address, int64_t(bytes));
  return CUDA_SUCCESS;
}

MGQ_API cuMemHostUnregister(void *address) {
  MGQ_ENTER(Context);
  synchronizeDevice(currentDevice());
  if (!handleGone("registered host memory", address))
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  removePinned(address);
  return CUDA_SUCCESS;
}

MGQ_API cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                              CUdeviceptr address) {
  MGQ_ENTER(Init);
  auto *at = reinterpret_cast<void *>(address);
  void *base;
  int64_t bytes;
  int device;
  bool onDevice = findAllocation(at, &base, &bytes, &device);
  if (!onDevice && !isPinned(at, 1))
    return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *static_cast<unsigned *>(data) =
        onDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *static_cast<int *>(data) = onDevice ? device : 0;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

//===----------------------------------------------------------------------===//
// Copies
//===----------------------------------------------------------------------===//

namespace {
enum class Side { Host, Device };

struct Copy {
  void *to;
  const void *from;
  int64_t bytes;
  Side target, source;
};
} // namespace

static bool isOnDevice(const void *address) {
  void *base;
  int64_t bytes;
  int device;
  return findAllocation(address, &base, &bytes, &device);
}

/// A range of device memory that a call names; reports one that is none.
static bool isInside(const char *call, const void *address, int64_t count) {
  void *base;
  int64_t bytes;
  int device;
  if (findAllocation(address, &base, &bytes, &device) &&
      static_cast<const char *>(address) + count <=
          static_cast<char *>(base) + bytes)
    return true;
  report(std::string(call) + " of " + std::to_string(count) +
         " bytes out of bounds, at " + describeAddress(address));
  return false;
}

static int runCopy(const Copy &copy) {
  bool bothOnDevice =
      copy.source == Side::Device && copy.target == Side::Device;
  // The call has checked the ranges, and what is released is not in use.
  if (copy.source == Side::Device)
    touch(copy.from, copy.bytes, MGQ_TWIN_READ, !bothOnDevice);
  if (copy.target == Side::Device)
    touch(copy.to, copy.bytes, MGQ_TWIN_WRITE);
  if (bothOnDevice)
    copyWritten(copy.to, copy.from, copy.bytes);
  std::memmove(copy.to, copy.from, size_t(copy.bytes));
  return 0;
}

/// From page-locked memory: bytes are read when the copy runs, and must be then
/// what they were when it was enqueued.
static Work copyFromPinned(const Copy &copy) {
  uint64_t before = mgq_hash(MGQ_HASH_START, copy.from, copy.bytes);
  return [copy, before] {
    if (mgq_hash(MGQ_HASH_START, copy.from, copy.bytes) != before)
      report(runningOperation() +
             ": the host changed its source before the copy ran");
    return runCopy(copy);
  };
}

/// From pageable memory: bytes are read before the call returns.
static Work copyFromPageable(Copy copy) {
  auto *first = static_cast<const char *>(copy.from);
  auto staged = std::make_shared<std::vector<char>>(first, first + copy.bytes);
  copy.from = staged->data();
  return [copy, staged] { return runCopy(copy); };
}

static const char *nameOf(const Copy &copy) {
  if (copy.source == Side::Host)
    return copy.target == Side::Device ? "copy to device" : "copy on host";
  return copy.target == Side::Device ? "copy on device" : "copy to host";
}

static CUresult enqueueCopy(const char *call, Copy copy, CUstream handle) {
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  if (copy.bytes == 0)
    return CUDA_SUCCESS;
  if ((copy.source == Side::Device && !isInside(call, copy.from, copy.bytes)) ||
      (copy.target == Side::Device && !isInside(call, copy.to, copy.bytes)))
    return CUDA_ERROR_INVALID_VALUE;
  Work work = [copy] { return runCopy(copy); };
  bool pinned = copy.source == Side::Host ? isPinned(copy.from, copy.bytes)
                                          : isPinned(copy.to, copy.bytes);
  if (copy.source == Side::Host && !stream->capture)
    work = pinned ? copyFromPinned(copy) : copyFromPageable(copy);
  // What a host reads too early shall show.
  if (copy.target == Side::Host && !stream->capture)
    std::memset(copy.to, 0xff, size_t(copy.bytes));
  CUresult status = enqueue(stream, nameOf(copy), std::move(work));
  // To pageable memory the call returns when the bytes are there.
  if (copy.target == Side::Host && !pinned && !stream->capture)
    synchronize(stream);
  return status;
}

static CUresult copyNow(const char *call, const Copy &copy) {
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (CUresult status = enqueueCopy(call, copy, nullptr))
    return status;
  synchronize(streamOf(nullptr, currentDevice()));
  return CUresult(stickyFault(currentDevice()));
}

static Copy toDevice(CUdeviceptr to, const void *from, size_t bytes) {
  return {reinterpret_cast<void *>(to), from, int64_t(bytes), Side::Device,
          Side::Host};
}
static Copy toHost(void *to, CUdeviceptr from, size_t bytes) {
  return {to, reinterpret_cast<void *>(from), int64_t(bytes), Side::Host,
          Side::Device};
}
static Copy onDevice(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return {reinterpret_cast<void *>(to), reinterpret_cast<void *>(from),
          int64_t(bytes), Side::Device, Side::Device};
}
static Copy anyWay(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  Copy copy = onDevice(to, from, bytes);
  copy.target = isOnDevice(copy.to) ? Side::Device : Side::Host;
  copy.source = isOnDevice(copy.from) ? Side::Device : Side::Host;
  return copy;
}

MGQ_API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes,
                          CUstream stream) {
  MGQ_ENTER(Context);
  return enqueueCopy("cuMemcpyHtoDAsync", toDevice(to, from, bytes), stream);
}
MGQ_API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes,
                          CUstream stream) {
  MGQ_ENTER(Context);
  return enqueueCopy("cuMemcpyDtoHAsync", toHost(to, from, bytes), stream);
}
MGQ_API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                          CUstream stream) {
  MGQ_ENTER(Context);
  return enqueueCopy("cuMemcpyDtoDAsync", onDevice(to, from, bytes), stream);
}
MGQ_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                      CUstream stream) {
  MGQ_ENTER(Context);
  return enqueueCopy("cuMemcpyAsync", anyWay(to, from, bytes), stream);
}
MGQ_API cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
  MGQ_ENTER(Context);
  return copyNow("cuMemcpyHtoD", toDevice(to, from, bytes));
}
MGQ_API cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
  MGQ_ENTER(Context);
  return copyNow("cuMemcpyDtoH", toHost(to, from, bytes));
}
MGQ_API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  MGQ_ENTER(Context);
  return copyNow("cuMemcpyDtoD", onDevice(to, from, bytes));
}
MGQ_API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  MGQ_ENTER(Context);
  return copyNow("cuMemcpy", anyWay(to, from, bytes));
}

//===----------------------------------------------------------------------===//
// Filling
//===----------------------------------------------------------------------===//

template <typename T>
static CUresult enqueueFill(CUdeviceptr address, T value, size_t count,
                            CUstream handle) {
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  if (address % sizeof(T))
    return CUDA_ERROR_INVALID_VALUE;
  auto *to = reinterpret_cast<T *>(address);
  auto bytes = int64_t(count * sizeof(T));
  if (bytes == 0)
    return CUDA_SUCCESS;
  if (!isInside("cuMemset", to, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, "fill", [=]() -> int {
    if (!touchOrReport(to, bytes, MGQ_TWIN_WRITE))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::fill(to, to + count, value);
    return 0;
  });
}

MGQ_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                        CUstream stream) {
  MGQ_ENTER(Context);
  return enqueueFill<uint8_t>(to, value, count, stream);
}
MGQ_API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count,
                         CUstream stream) {
  MGQ_ENTER(Context);
  return enqueueFill<uint16_t>(to, value, count, stream);
}
MGQ_API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count,
                         CUstream stream) {
  MGQ_ENTER(Context);
  return enqueueFill<uint32_t>(to, value, count, stream);
}
MGQ_API cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  MGQ_ENTER(Context);
  return enqueueFill<uint8_t>(to, value, count, nullptr);
}
MGQ_API cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  MGQ_ENTER(Context);
  return enqueueFill<uint16_t>(to, value, count, nullptr);
}
MGQ_API cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  MGQ_ENTER(Context);
  return enqueueFill<uint32_t>(to, value, count, nullptr);
}
