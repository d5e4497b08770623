//===- ApiModule.cpp - Modules and kernels --------------------------------===//
//
// A module is the twin of the image: MGQ_TWIN_DIR/HASH.so, where HASH is the
// FNV-1a hash of the image's bytes. So the executable is as it would be on a
// GPU, and a twin of other code is never used.
//
//===----------------------------------------------------------------------===//

#include "runtime/include/rt.h"
#include "test/device/cuda/Api.h"
#include "test/device/cuda/Block.h"
#include "test/device/cuda/Settings.h"
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>

using namespace mgq::device;

int sharedLimitOf(int architecture);

static constexpr const char *moduleKind = "CUDA module";
static constexpr int64_t plainShared = 48 << 10;

namespace {
struct ModuleState;

struct FunctionState {
  ModuleState *module;
  const mgq_twin_kernel *kernel;
  int64_t dynamicLimit = plainShared;
};

struct ModuleState {
  void *library;
  const mgq_twin_module *table;
  std::vector<FunctionState> functions;
};
} // namespace

//===----------------------------------------------------------------------===//
// Images
//===----------------------------------------------------------------------===//

/// Bytes of an ELF file, or of a text up to its end.
static int64_t imageBytes(const void *image) {
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0)
    return int64_t(std::strlen(static_cast<const char *>(image)));
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  uint64_t end = header.e_phoff + uint64_t(header.e_phnum) * header.e_phentsize;
  end = std::max(end, header.e_shoff +
                          uint64_t(header.e_shnum) * header.e_shentsize);
  for (int i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section,
                static_cast<const char *>(image) + header.e_shoff +
                    uint64_t(i) * header.e_shentsize,
                sizeof section);
    if (section.sh_type != SHT_NOBITS)
      end = std::max(end, section.sh_offset + section.sh_size);
  }
  return int64_t(end);
}

/// The architecture that a cubin was compiled for.
static int imageArchitecture(const void *image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  bool isNew = header.e_ident[EI_ABIVERSION] >= 8;
  return int(header.e_flags >> (isNew ? 8 : 0) & 0xff);
}

/// Code of sm_86 runs on sm_86 to sm_89, no other generation. On modules of
/// vehicles and robots (sm_87) only their own does.
static bool runsHere(int architecture) {
  int mine = settings().architecture;
  if (mine == 87)
    return architecture == mine;
  return architecture / 10 == mine / 10 && architecture <= mine;
}

/// The number behind `word` in a text, 0: there is none.
static double numberBehind(const char *text, const char *word) {
  const char *found = std::strstr(text, word);
  return found ? std::strtod(found + std::strlen(word), nullptr) : 0;
}

/// The newest version of PTX that the driver's compiler knows: that of CUDA
/// 12.9 is 8.8, that of 13.1 is 9.1.
static double newestPtx() {
  int driver = settings().driver ? settings().driver : CUDA_VERSION;
  int major = driver / 1000, minor = driver % 1000 / 10;
  return major - 4 + 0.1 * (major == 12 && minor >= 6 ? minor - 1 : minor);
}

/// Compiles PTX: for an architecture from its own on. A text without a version
/// is the name of a test's kernels.
static CUresult ptxRefusal(const char *text) {
  double version = numberBehind(text, ".version "),
         architecture = numberBehind(text, ".target sm_");
  if (version == 0)
    return CUDA_SUCCESS;
  if (std::getenv("CUDA_DISABLE_PTX_JIT"))
    return CUDA_ERROR_JIT_COMPILATION_DISABLED;
  if (architecture == 0 || architecture > settings().architecture)
    return CUDA_ERROR_INVALID_PTX;
  return version > newestPtx() + 0.01 ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION
                                      : CUDA_SUCCESS;
}

/// Why an image is not loaded. A text is PTX.
static CUresult imageRefusal(const void *image) {
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0)
    return ptxRefusal(static_cast<const char *>(image));
  return runsHere(imageArchitecture(image)) ? CUDA_SUCCESS
                                            : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

static CUresult loadTwin(const void *image, ModuleState &module) {
  uint64_t hash = mgq_hash(MGQ_HASH_START, image, imageBytes(image));
  char name[32];
  std::snprintf(name, sizeof name, "%016llx.so", (unsigned long long)hash);
  const std::string &folder = settings().twinFolder;
  if (folder.empty()) {
    report("MGQ_TWIN_DIR is not set, so kernels cannot run");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  std::string path = folder + "/" + name;
  module.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module.library) {
    report("there is no twin of a module: " + std::string(dlerror()) +
           " (mgq-compile --emit-twins and mgq-twin make it)");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  module.table = static_cast<const mgq_twin_module *>(
      dlsym(module.library, MGQ_TWIN_TABLE));
  if (!module.table || module.table->version != MGQ_TWIN_VERSION) {
    report(path + " was made by another version of mgq-twin");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  return CUDA_SUCCESS;
}

MGQ_API cuModuleLoadData(CUmodule *handle, const void *image) {
  MGQ_ENTER(Context);
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (CUresult refused = imageRefusal(image))
    return refused;
  auto module = std::make_unique<ModuleState>();
  if (CUresult status = loadTwin(image, *module))
    return status;
  const mgq_twin_module &table = *module->table;
  if (!table.checked)
    ignoreUnwritten();
  for (int i = 0; i < table.global_count; ++i)
    addVariable(table.globals[i].address, table.globals[i].bytes,
                table.globals[i].name);
  for (int i = 0; i < table.kernel_count; ++i)
    module->functions.push_back({module.get(), &table.kernels[i]});
  handleMade(moduleKind, module.get());
  *handle = reinterpret_cast<CUmodule>(module.release());
  return CUDA_SUCCESS;
}

/// The compiler of PTX says why it refuses one.
MGQ_API cuModuleLoadDataEx(CUmodule *handle, const void *image, unsigned count,
                           CUjit_option *options, void **values) {
  CUresult status = cuModuleLoadData(handle, image);
  char *log = nullptr;
  size_t room = 0;
  for (unsigned i = 0; i < count; ++i)
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
      log = static_cast<char *>(values[i]);
    else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
      room = reinterpret_cast<size_t>(values[i]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  if (log && status == CUDA_ERROR_INVALID_PTX)
    std::snprintf(log, room, "ptxas fatal: this text is not for sm_%d",
                  settings().architecture);
  return status;
}

MGQ_API cuModuleUnload(CUmodule handle) {
  MGQ_ENTER(Context);
  synchronizeDevice(currentDevice());
  if (!handleGone(moduleKind, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  auto *module = reinterpret_cast<ModuleState *>(handle);
  for (int i = 0; i < module->table->global_count; ++i)
    removeVariable(module->table->globals[i].address);
  dlclose(module->library);
  delete module;
  return CUDA_SUCCESS;
}

MGQ_API cuModuleGetFunction(CUfunction *function, CUmodule handle,
                            const char *name) {
  MGQ_ENTER(Context);
  if (!handleExists(moduleKind, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  for (FunctionState &each : reinterpret_cast<ModuleState *>(handle)->functions)
    if (std::strcmp(each.kernel->name, name) == 0) {
      *function = reinterpret_cast<CUfunction>(&each);
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}

MGQ_API cuFuncLoad(CUfunction handle) {
  MGQ_ENTER(Context);
  return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

MGQ_API cuModuleGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule handle,
                          const char *name) {
  MGQ_ENTER(Context);
  if (!handleExists(moduleKind, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  const mgq_twin_module &table =
      *reinterpret_cast<ModuleState *>(handle)->table;
  for (int i = 0; i < table.global_count; ++i)
    if (std::strcmp(table.globals[i].name, name) == 0) {
      if (address)
        *address = reinterpret_cast<CUdeviceptr>(table.globals[i].address);
      if (bytes)
        *bytes = size_t(table.globals[i].bytes);
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

MGQ_API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute,
                           int value) {
  MGQ_ENTER(Context);
  auto *function = reinterpret_cast<FunctionState *>(handle);
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value + function->kernel->shared_bytes >
        sharedLimitOf(settings().architecture))
      return CUDA_ERROR_INVALID_VALUE;
    function->dynamicLimit = value;
  }
  return CUDA_SUCCESS;
}

MGQ_API cuFuncGetAttribute(int *value, CUfunction_attribute attribute,
                           CUfunction handle) {
  MGQ_ENTER(Context);
  const FunctionState &function = *reinterpret_cast<FunctionState *>(handle);
  const int32_t *most = function.kernel->max_threads;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = most[0] ? most[0] * most[1] * most[2] : 1024;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    *value = int(function.kernel->shared_bytes);
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *value = int(function.dynamicLimit);
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *value = 32;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    *value = int(function.kernel->stack_bytes);
    return CUDA_SUCCESS;
  default:
    *value = 0;
    return CUDA_SUCCESS;
  }
}

MGQ_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction,
                                                    int threads, size_t) {
  MGQ_ENTER(Context);
  if (threads <= 0 || threads > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  *count = std::max(1, 1536 / threads);
  return CUDA_SUCCESS;
}

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

namespace {
/// Values of a kernel's parameters, as they were when it was launched.
struct Arguments {
  std::vector<std::vector<char>> values;
  std::vector<void *> pointers;

  Arguments(const mgq_twin_kernel &kernel, void **params) {
    for (int i = 0; i < kernel.param_count; ++i) {
      auto *first = static_cast<char *>(params[i]);
      values.emplace_back(first, first + kernel.param_bytes[i]);
    }
    for (std::vector<char> &value : values)
      pointers.push_back(value.data());
  }
};
} // namespace

static int runKernel(const mgq_twin_kernel &kernel, const LaunchShape &shape,
                     const Arguments &arguments) {
  static auto *block = new Block;
  if (int code = injectedFailure("kernel"))
    return code;
  return block->run(kernel, shape, arguments.pointers.data());
}

static CUresult launch(CUfunction handle, const LaunchShape &shape,
                       CUstream streamHandle, void **params, void **extra) {
  StreamState *stream;
  if (CUresult status = findStream(streamHandle, stream))
    return status;
  if (extra)
    return CUDA_ERROR_NOT_SUPPORTED;
  auto &function = *reinterpret_cast<FunctionState *>(handle);
  const mgq_twin_kernel &kernel = *function.kernel;
  if (kernel.param_count > 0 && !params)
    return CUDA_ERROR_INVALID_VALUE;
  int64_t limit =
      std::max(function.dynamicLimit, plainShared - kernel.shared_bytes);
  if (shape.dynamicShared > limit) {
    report("launch of kernel " + std::string(kernel.name) + ": " +
           std::to_string(shape.dynamicShared) +
           " bytes of dynamic shared memory, above the limit of " +
           std::to_string(limit) + " that its attribute says");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (int refused = Block::check(kernel, shape))
    return CUresult(refused);
  auto arguments = std::make_shared<Arguments>(kernel, params);
  return enqueue(stream, "kernel " + std::string(kernel.name),
                 [&kernel, shape, arguments] {
                   return runKernel(kernel, shape, *arguments);
                 });
}

MGQ_API cuLaunchKernel(CUfunction function, unsigned gridX, unsigned gridY,
                       unsigned gridZ, unsigned blockX, unsigned blockY,
                       unsigned blockZ, unsigned shared, CUstream stream,
                       void **params, void **extra) {
  MGQ_ENTER(Context);
  return launch(function,
                {{gridX, gridY, gridZ}, {blockX, blockY, blockZ}, shared},
                stream, params, extra);
}

MGQ_API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                         void **params, void **extra) {
  MGQ_ENTER(Context);
  if (config->numAttrs != 0)
    return CUDA_ERROR_NOT_SUPPORTED; // Clusters, programmatic launches.
  return launch(function,
                {{config->gridDimX, config->gridDimY, config->gridDimZ},
                 {config->blockDimX, config->blockDimY, config->blockDimZ},
                 config->sharedMemBytes},
                config->hStream, params, extra);
}
