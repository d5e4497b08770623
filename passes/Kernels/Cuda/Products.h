//===- Products.h - Products that cuBLASLt computes -----------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_PRODUCTS_H
#define MGQ_PASSES_KERNELS_CUDA_PRODUCTS_H

#include "dialects/Kern/Kern.h"

namespace mgq::kernels {

/// Whether a product on memrefs is one that the runtime's library can compute:
/// of floats, with rows of contiguous elements and a bias that is aligned.
bool isLibraryProduct(kern::MatmulOp op);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_PRODUCTS_H
