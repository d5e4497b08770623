//===- Context.cpp - A rank's GPU and its code ----------------------------===//

#include "runtime/src/cuda/Context.h"
#include "runtime/src/common/Error.h"
#include <algorithm>
#include <iterator>

using namespace mgq::rt;

// The first that the compiler makes code for.
static constexpr int oldestArchitecture = 80;

static int attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  cuCall(cuDeviceGetAttribute, &value, which, device);
  return value;
}

Context::Context(int32_t place, int32_t ranksHere, bool inProcess) {
  CUresult status = cuTry(cuInit, 0);
  if (status != CUDA_ERROR_NO_DEVICE)
    checkDriver(status, "cuInit");
  int count = 0;
  if (status == CUDA_SUCCESS)
    cuCall(cuDeviceGetCount, &count);
  if (count == 0)
    fail("no GPU is visible to this process; CUDA_VISIBLE_DEVICES says which "
         "are");
  if (inProcess && count < ranksHere)
    fail("{} ranks need a GPU each, this machine has {}; start them on several "
         "machines with mpirun, torchrun or srun, or compile for {} rank{}",
         ranksHere, count, count, count == 1 ? "" : "s");
  ordinal = place % count;
  cuCall(cuDeviceGet, &device, ordinal);
  sm = 10 * attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
       attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  CUcontext context = nullptr;
  cuCall(cuDevicePrimaryCtxRetain, &context, device);
  cuCall(cuCtxSetCurrent, context);
}

Context::~Context() { cuGiveBack(cuDevicePrimaryCtxRelease, device); }

std::string Context::name() const {
  return fmt::format("GPU {} ({})", ordinal, model());
}

std::string Context::model() const {
  char text[128] = "?";
  cuTry(cuDeviceGetName, text, sizeof text, device);
  return text;
}

std::string Context::uuid() const {
  CUuuid id = {};
  cuCall(cuDeviceGetUuid, &id, device);
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i)
    text += fmt::format(
        "{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
        static_cast<unsigned char>(id.bytes[i]));
  return text;
}

/// The cubin of the same generation with the newest architecture that the GPU
/// has; null: none.
static const mgq_cuda_image *bestCubin(int sm) {
  const mgq_cuda_module &table = mgq_cuda_module_table;
  const mgq_cuda_image *best = nullptr;
  for (int32_t i = 0; i < table.image_count; ++i) {
    const mgq_cuda_image &image = table.images[i];
    if (!image.is_ptx && image.sm / 10 == sm / 10 && image.sm <= sm &&
        (!best || image.sm > best->sm))
      best = &image;
  }
  return best;
}

/// The PTX that the driver can compile for the GPU; null: none.
static const mgq_cuda_image *ptxFor(int sm) {
  const mgq_cuda_module &table = mgq_cuda_module_table;
  for (int32_t i = 0; i < table.image_count; ++i)
    if (table.images[i].is_ptx && table.images[i].sm <= sm)
      return &table.images[i];
  return nullptr;
}

static std::string architectures() {
  const mgq_cuda_module &table = mgq_cuda_module_table;
  std::string text;
  for (int32_t i = 0; i < table.image_count; ++i)
    if (!table.images[i].is_ptx)
      text +=
          fmt::format("{}sm_{}", text.empty() ? "" : ", ", table.images[i].sm);
  return text;
}

/// Has the driver compile the program's PTX: for GPUs that are newer than its
/// cubins, and those that refuse them, as embedded ones do.
static CUmodule compilePtx(const Context &context, const Notify &notify) {
  int sm = context.architecture();
  std::string lack = fmt::format("the program has code for {}, {} is sm_{}",
                                 architectures(), context.name(), sm);
  const mgq_cuda_image *image = ptxFor(sm);
  if (sm < oldestArchitecture)
    fail("{} is sm_{}; sm_{} (Ampere) or later is needed", context.name(), sm,
         oldestArchitecture);
  if (!image)
    fail("{}; compile it with --gpu-arch=sm_{}", lack, sm);
  notify(fmt::format("{}: the driver compiles it, which takes a while the "
                     "first time; --gpu-arch=sm_{} saves that",
                     lack, sm));
  char log[1024] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER,
                            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, reinterpret_cast<void *>(sizeof log - 1)};
  CUmodule module = nullptr;
  CUresult status =
      cuTry(cuModuleLoadDataEx, &module, image->data, 2, options, values);
  std::replace(std::begin(log), std::end(log), '\n', ' ');
  if (status != CUDA_SUCCESS)
    fail("{}, and the driver does not compile it: cuModuleLoadDataEx: {}{}{}; "
         "compile the program with --gpu-arch=sm_{}",
         lack, driverText(status), *log ? ": " : "", log, sm);
  return module;
}

static CUmodule loadImage(const Context &context, const Notify &notify) {
  CUmodule module = nullptr;
  const mgq_cuda_image *cubin = bestCubin(context.architecture());
  if (!cubin)
    return compilePtx(context, notify);
  CUresult status = cuTry(cuModuleLoadData, &module, cubin->data);
  if (status == CUDA_ERROR_NO_BINARY_FOR_GPU)
    return compilePtx(context, notify);
  checkDriver(status, "cuModuleLoadData");
  return module;
}

Module::Module(const Context &context, const Notify &notify) {
  const mgq_cuda_module &table = mgq_cuda_module_table;
  if (table.abi_version != MGQ_CUDA_ABI_VERSION)
    fail("the program's GPU code was made for version {} of the runtime, this "
         "is {}; compile it again",
         table.abi_version, MGQ_CUDA_ABI_VERSION);
  module = loadImage(context, notify);
  for (int32_t i = 0; i < table.kernel_count; ++i) {
    CUfunction function = nullptr;
    CUresult status =
        cuTry(cuModuleGetFunction, &function, module, table.kernels[i].name);
    if (status != CUDA_SUCCESS)
      fail("cuModuleGetFunction of kernel {}: {}", table.kernels[i].name,
           driverText(status));
    // A lazy load in a step would wait for the GPU, which may wait for a peer.
    cuCall(cuFuncLoad, function);
    functions.push_back(function);
  }
}

Module::~Module() { cuGiveBack(cuModuleUnload, module); }
