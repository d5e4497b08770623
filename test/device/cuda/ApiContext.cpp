//===- ApiContext.cpp - Devices, contexts, errors -------------------------===//

#include "test/device/cuda/Api.h"
#include "test/device/cuda/Settings.h"
#include <atomic>
#include <cstring>
#include <dlfcn.h>

using namespace mgq::device;

/// A context is a device; one device has one.
struct CUctx_st {
  int device;
};

static std::atomic<bool> initialized{false};
static thread_local std::vector<CUcontext> contexts;

static CUcontext contextOf(int device) {
  static CUctx_st table[64];
  table[device].device = device;
  return &table[device];
}

static bool isDevice(CUdevice device) {
  return device >= 0 && device < settings().devices && device < 64;
}

int mgq::device::currentDevice() {
  return contexts.empty() || !contexts.back() ? -1 : contexts.back()->device;
}

CUresult mgq::device::enter(const char *function, Needs needs) {
  if (int code = injectedFailure(function))
    return CUresult(code);
  if (needs == Needs::Nothing)
    return CUDA_SUCCESS;
  if (!initialized)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::Init)
    return CUDA_SUCCESS;
  int device = currentDevice();
  if (device < 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  return CUresult(stickyFault(device));
}

CUresult mgq::device::findStream(CUstream handle, StreamState *&stream) {
  stream = streamOf(handle, currentDevice());
  if (!stream) {
    report(handle == CU_STREAM_PER_THREAD
               ? "not supported yet: the per-thread default stream"
               : "there is no such CUDA stream");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->device != currentDevice()) {
    report("stream " + std::to_string(stream->id) +
           " is used in a context of "
           "another device");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return CUDA_SUCCESS;
}

int mgq::device::enqueueOn(CUstream handle, const std::string &name, Work work,
                           Run how, const std::vector<Chain *> &chains) {
  StreamState *stream;
  if (CUresult status = enter("enqueue", Needs::Context))
    return status;
  if (CUresult status = findStream(handle, stream))
    return status;
  return enqueue(stream, name, std::move(work), how, chains);
}

//===----------------------------------------------------------------------===//
// Start, devices
//===----------------------------------------------------------------------===//

/// Twins find what they need of this library, however it was loaded.
static void makeGlobal() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void *>(&makeGlobal), &self))
    dlopen(self.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

MGQ_API cuInit(unsigned flags) {
  MGQ_ENTER(Nothing);
  if (flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (settings().devices == 0)
    return CUDA_ERROR_NO_DEVICE;
  makeGlobal();
  initialized = true;
  return CUDA_SUCCESS;
}

MGQ_API cuDriverGetVersion(int *version) {
  MGQ_ENTER(Nothing);
  *version = settings().driver ? settings().driver : CUDA_VERSION;
  return CUDA_SUCCESS;
}

MGQ_API cuDeviceGetCount(int *count) {
  MGQ_ENTER(Init);
  *count = settings().devices;
  return CUDA_SUCCESS;
}

MGQ_API cuDeviceGet(CUdevice *device, int ordinal) {
  MGQ_ENTER(Init);
  if (!isDevice(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

MGQ_API cuDeviceGetName(char *name, int length, CUdevice device) {
  MGQ_ENTER(Init);
  if (!isDevice(device) || length <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, size_t(length), "mgq test device %d (sm_%d)", device,
                settings().architecture);
  return CUDA_SUCCESS;
}

MGQ_API cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  MGQ_ENTER(Init);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *bytes = size_t(settings().memory);
  return CUDA_SUCCESS;
}

MGQ_API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  MGQ_ENTER(Init);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = char(device + 1);
  return CUDA_SUCCESS;
}

MGQ_API cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
  MGQ_ENTER(Init);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, size_t(length), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

/// Bytes of shared memory that a block can have, if it asks for them.
int sharedLimitOf(int architecture) {
  switch (architecture) {
  case 80:
  case 87:
    return 163 << 10;
  case 86:
  case 89:
  case 120:
    return 99 << 10;
  default:
    return architecture >= 90 ? 227 << 10 : 48 << 10;
  }
}

static int attributeOf(CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    return settings().architecture / 10;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    return settings().architecture % 10;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    return multiprocessors;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    return 32;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
    return 1024;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
    return 64;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    return 0x7fffffff;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
    return 65535;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
    return 1536;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    return 65536;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
    return 48 << 10;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    return sharedLimitOf(settings().architecture);
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    return sharedLimitOf(settings().architecture) + 1024;
  case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
    return 64 << 10;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
    return 4 << 20;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
    return 1000000; // kHz
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
    return 256;
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    return device + 1;
  case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    return 2;
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    return 1;
  default:
    return 0;
  }
}

MGQ_API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                             CUdevice device) {
  MGQ_ENTER(Init);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *value = attributeOf(attribute, device);
  return CUDA_SUCCESS;
}

MGQ_API cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice) {
  MGQ_ENTER(Init);
  *can = 0;
  return CUDA_SUCCESS;
}

//===----------------------------------------------------------------------===//
// Contexts
//===----------------------------------------------------------------------===//

MGQ_API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  MGQ_ENTER(Init);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *context = contextOf(device);
  return CUDA_SUCCESS;
}

MGQ_API cuDevicePrimaryCtxRelease(CUdevice device) {
  MGQ_ENTER(Init);
  return isDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

MGQ_API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned) {
  MGQ_ENTER(Init);
  return isDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

MGQ_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
                                   int *active) {
  MGQ_ENTER(Init);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

MGQ_API cuCtxCreate(CUcontext *context, CUctxCreateParams *, unsigned,
                    CUdevice device) {
  MGQ_ENTER(Init);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *context = contextOf(device);
  contexts.push_back(*context);
  return CUDA_SUCCESS;
}

MGQ_API cuCtxDestroy(CUcontext context) {
  MGQ_ENTER(Init);
  if (!contexts.empty() && contexts.back() == context)
    contexts.pop_back();
  return CUDA_SUCCESS;
}

MGQ_API cuCtxSetCurrent(CUcontext context) {
  MGQ_ENTER(Init);
  if (!contexts.empty())
    contexts.pop_back();
  if (context)
    contexts.push_back(context);
  return CUDA_SUCCESS;
}

MGQ_API cuCtxGetCurrent(CUcontext *context) {
  MGQ_ENTER(Init);
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}

MGQ_API cuCtxPushCurrent(CUcontext context) {
  MGQ_ENTER(Init);
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

MGQ_API cuCtxPopCurrent(CUcontext *context) {
  MGQ_ENTER(Init);
  if (contexts.empty())
    return CUDA_ERROR_INVALID_CONTEXT;
  if (context)
    *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

MGQ_API cuCtxGetDevice(CUdevice *device) {
  MGQ_ENTER(Context);
  *device = currentDevice();
  return CUDA_SUCCESS;
}

MGQ_API cuCtxSetFlags(unsigned) {
  MGQ_ENTER(Context);
  return CUDA_SUCCESS;
}

MGQ_API cuCtxSetLimit(CUlimit, size_t) {
  MGQ_ENTER(Context);
  return CUDA_SUCCESS;
}

MGQ_API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  MGQ_ENTER(Context);
  if (least)
    *least = 0;
  if (greatest)
    *greatest = -5;
  return CUDA_SUCCESS;
}

MGQ_API cuCtxSynchronize() {
  MGQ_ENTER(Context);
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  synchronizeDevice(currentDevice());
  return CUresult(stickyFault(currentDevice()));
}

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

namespace {
struct ErrorText {
  CUresult code;
  const char *name, *text;
};
} // namespace

#define ERROR_TEXT(code, text) {code, #code, text}
static const ErrorText errorTexts[] = {
    ERROR_TEXT(CUDA_SUCCESS, "no error"),
    ERROR_TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR_TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR_TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR_TEXT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR_TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR_TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR_TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR_TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR_TEXT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    ERROR_TEXT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
               "the provided PTX was compiled with an unsupported toolchain."),
    ERROR_TEXT(CUDA_ERROR_JIT_COMPILATION_DISABLED,
               "PTX JIT compilation was disabled"),
    ERROR_TEXT(CUDA_ERROR_NO_BINARY_FOR_GPU,
               "no kernel image is available for execution on the device"),
    ERROR_TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed "
                                         "in the present state"),
    ERROR_TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR_TEXT(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_ADDRESS,
               "an illegal memory access was encountered"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
               "too many resources requested for launch"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_TIMEOUT,
               "the launch timed out and was terminated"),
    ERROR_TEXT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
               "pointer does not correspond to a registered memory region"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_INSTRUCTION,
               "an illegal instruction was encountered"),
    ERROR_TEXT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR_TEXT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR_TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               "operation not permitted when stream is capturing"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
               "operation failed due to a previous error during capture"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_MERGE,
               "operation would result in a merge of separate capture "
               "sequences"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
               "capture was not ended in the same stream as it began"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
               "capturing stream has unjoined work"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
               "dependency created on uncaptured work in another stream"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
               "operation would make the legacy stream depend on a capturing "
               "blocking stream"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
               "attempt to terminate a thread-local capture sequence from "
               "another thread"),
    ERROR_TEXT(CUDA_ERROR_CAPTURED_EVENT,
               "operation not permitted on an event last recorded in a "
               "capturing stream"),
    ERROR_TEXT(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static const ErrorText *errorText(CUresult code) {
  for (const ErrorText &each : errorTexts)
    if (each.code == code)
      return &each;
  return nullptr;
}

MGQ_API cuGetErrorString(CUresult code, const char **text) {
  const ErrorText *found = errorText(code);
  *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

MGQ_API cuGetErrorName(CUresult code, const char **name) {
  const ErrorText *found = errorText(code);
  *name = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// The newest version of a function that this library has.
static void *functionNamed(const std::string &symbol) {
  static void *self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void *>(&makeGlobal), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  for (const char *version : {"_v4", "_v3", "_v2", "", "WithFlags"})
    if (void *function = dlsym(self, (symbol + version).c_str()))
      return function;
  return nullptr;
}

MGQ_API cuGetProcAddress(const char *symbol, void **function, int, cuuint64_t,
                         CUdriverProcAddressQueryResult *status) {
  MGQ_ENTER(Nothing);
  *function = functionNamed(symbol);
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
