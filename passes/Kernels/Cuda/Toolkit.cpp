//===- Toolkit.cpp - What of CUDA compiling needs -------------------------===//

#include "passes/Kernels/Cuda/Toolkit.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Process.h"

using namespace llvm;
using namespace mgq::kernels;

/// The file `parts` of `folder`; empty if there is none.
static std::string fileIn(StringRef folder, StringRef a, StringRef b) {
  SmallString<256> path(folder);
  sys::path::append(path, a, b);
  return sys::fs::exists(path) ? std::string(path) : std::string();
}

Expected<CudaToolkit> mgq::kernels::findCudaToolkit(StringRef given) {
  SmallVector<std::string> folders;
  auto add = [&](std::string folder) {
    if (!is_contained(folders, folder))
      folders.push_back(std::move(folder));
  };
  if (!given.empty()) {
    add(given.str());
  } else {
    if (auto home = sys::Process::GetEnv("CUDA_HOME"))
      add(*home);
    add("/usr/local/cuda");
#ifdef MGQ_CUDA_TOOLKIT
    add(MGQ_CUDA_TOOLKIT);
#endif
  }
  for (const std::string &folder : folders) {
    std::string ptxas = fileIn(folder, "bin", "ptxas");
    if (!ptxas.empty() &&
        !fileIn(folder, "nvvm/libdevice", "libdevice.10.bc").empty())
      return CudaToolkit{folder, ptxas};
  }
  return createStringError(
      "--target=cuda needs ptxas and libdevice, and " + join(folders, ", ") +
      (folders.size() > 1 ? " have" : " has") +
      " no bin/ptxas and nvvm/libdevice/libdevice.10.bc: scripts/setup.sh "
      "--cuda installs them, --cuda-toolkit=DIR names another place");
}
