//===- Checks.cpp - Indices out of range on a GPU -------------------------===//

#include "runtime/src/cuda/Checks.h"
#include "runtime/src/common/Error.h"
#include <algorithm>

using namespace mgq::rt;

Checks::Checks(int64_t most, CUstream stream)
    : most(most), memory(most * size), found(most * size) {
  names.reserve(most);
  places.reserve(most);
  cuCall(cuMemsetD8Async, memory.address(), 0, static_cast<size_t>(most * size),
         stream);
}

CUdeviceptr &Checks::placeOf(const char *name) {
  auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end())
    return places[it - names.begin()];
  if (static_cast<int64_t>(names.size()) == most)
    fail("the program's tables are damaged: layer function {}", name);
  places.push_back(memory.address() + names.size() * size);
  names.push_back(name);
  return places.back();
}

void Checks::enqueueRead(CUstream stream) {
  if (!names.empty())
    cuCall(cuMemcpyDtoHAsync, found.data(), memory.address(),
           names.size() * size, stream);
}

void Checks::throwFirst() const {
  const auto *checks = reinterpret_cast<const mgq_cuda_check *>(found.data());
  for (size_t i = 0; i < names.size(); ++i)
    if (const mgq_cuda_check &check = checks[i]; check.failed) {
      const char *node =
          check.failed > 0 && check.failed <= mgq_cuda_module_table.check_count
              ? mgq_cuda_module_table.checks[check.failed - 1]
              : "?";
      fail("index {} is outside [0, {}) in node '{}' (layer {})", check.index,
           check.size, node, names[i]);
    }
}
