//===- Toolkit.h - What of CUDA compiling needs ---------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_TOOLKIT_H
#define MGQ_PASSES_KERNELS_CUDA_TOOLKIT_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <string>

namespace mgq::kernels {

/// A folder with bin/ptxas and nvvm/libdevice/libdevice.10.bc.
struct CudaToolkit {
  std::string folder;
  std::string ptxas;
};

/// Looks in `given` alone if that is not empty; else in $CUDA_HOME, in
/// /usr/local/cuda and where the build found one. An error says what to do.
llvm::Expected<CudaToolkit> findCudaToolkit(llvm::StringRef given);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_TOOLKIT_H
