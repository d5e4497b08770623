//===- ImageTable.h - mgq_cuda_module_table -------------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_IMAGETABLE_H
#define MGQ_PASSES_KERNELS_CUDA_IMAGETABLE_H

#include "mlir/Dialect/GPU/IR/GPUDialect.h"

#include <string>

namespace mgq::kernels {

/// Device code for one architecture, or from it on.
struct CudaImage {
  int sm;           ///< 80, ...
  std::string code; ///< A cubin, or PTX.
  bool isPtx = false;
};

/// Adds the table of rt_cuda.h to `kernels`: images, the kernels of `device`
/// and what its checks name.
void addImageTable(mlir::ModuleOp kernels, mlir::gpu::GPUModuleOp device,
                   llvm::ArrayRef<CudaImage> images);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_IMAGETABLE_H
