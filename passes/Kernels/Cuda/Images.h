//===- Images.h - Cubins of device code, and their tables -----------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_IMAGES_H
#define MGQ_PASSES_KERNELS_CUDA_IMAGES_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

#include <string>
#include <vector>

namespace mgq::kernels {

struct CudaImageOptions {
  std::vector<std::string> architectures = {"sm_80", "sm_86", "sm_89", "sm_90"};
  /// Folder of the CUDA toolkit; empty: searched for.
  std::string toolkit;
  /// Where the bitcode of each image is left, as HASH.bc, for host twins; HASH
  /// is the mgq_hash of the image, 16 hexadecimal digits. That of PTX is a link
  /// to its cubin's. Empty: nowhere.
  std::string twins;
  /// Prefix of files to keep: PREFIX.sm_80.ptx, PREFIX.sm_80.ptxas.txt (what
  /// ptxas says of registers and spills). Empty: none.
  std::string keep;
};

/// Whether `name` is an architecture there can be code for (sm_80 or later).
bool isCudaArchitecture(llvm::StringRef name);

/// Makes a cubin of the device code of `kernels` for each architecture, PTX for
/// those after the newest, and puts them in its place as mgq_cuda_module_table
/// (rt_cuda.h).
llvm::Error embedImages(mlir::ModuleOp kernels,
                        const CudaImageOptions &options);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_IMAGES_H
