//===- Driver.cpp - The CUDA driver ---------------------------------------===//

#include "runtime/src/cuda/Driver.h"
#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Error.h"
#include <cstdlib>

using namespace mgq::rt;

// Of CUDA 13: what the libraries that are loaded beside it need.
static constexpr int oldestDriver = 13000;

static constexpr LibraryPlace place = {
    "libcuda.so.1", nullptr,
    "the program runs on an NVIDIA GPU and needs its driver"};

Driver::Driver() : library(place) {
  // Streams that share a queue of the GPU wait for each other. Messages wait
  // for other ranks, so each stream should have its own.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // First: an old one lacks functions.
  int version = 0;
  library.find(cuDriverGetVersion, "cuDriverGetVersion");
  if (cuDriverGetVersion(&version) == CUDA_SUCCESS && version < oldestDriver)
    fail("the NVIDIA driver is for CUDA {}.{}, {}.{} or later is needed; "
         "update the driver",
         version / 1000, version % 1000 / 10, oldestDriver / 1000,
         oldestDriver % 1000 / 10);
#define MGQ_FIND_NAMED(name, text) library.find(name, text);
#define MGQ_FIND(name) MGQ_FIND_NAMED(name, MGQ_TEXT(name))
#define MGQ_TEXT(name) #name
  MGQ_DRIVER_FUNCTIONS(MGQ_FIND)
#undef MGQ_TEXT
#undef MGQ_FIND
#undef MGQ_FIND_NAMED
}

const Driver &mgq::rt::driver() {
  static const Driver loaded;
  return loaded;
}

bool &mgq::rt::isAbandoned() {
  static thread_local bool abandoned = false;
  return abandoned;
}

std::string mgq::rt::driverText(CUresult status) {
  const char *name = nullptr, *text = nullptr;
  driver().cuGetErrorName(status, &name);
  driver().cuGetErrorString(status, &text);
  return fmt::format("{} ({})", text ? text : "unknown error",
                     name ? name : std::to_string(status));
}

void mgq::rt::checkDriver(CUresult status, const char *call) {
  if (status != CUDA_SUCCESS)
    fail("{}: {}", call, driverText(status));
}

DeviceMemory::DeviceMemory(int64_t bytes) {
  CUresult status =
      cuTry(cuMemAlloc, &start, static_cast<size_t>(bytes > 0 ? bytes : 1));
  size_t free = 0, total = 0;
  if (status == CUDA_ERROR_OUT_OF_MEMORY &&
      cuTry(cuMemGetInfo, &free, &total) == CUDA_SUCCESS) {
    char texts[3][32];
    fail("cuMemAlloc of {}: {}; of the GPU's {}, {} are free, perhaps in "
         "pieces; nvidia-smi shows who has the rest",
         bytesText(bytes, texts[0]), driverText(status),
         bytesText(static_cast<int64_t>(total), texts[1]),
         bytesText(static_cast<int64_t>(free), texts[2]));
  }
  checkDriver(status, "cuMemAlloc");
}
