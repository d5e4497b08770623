//===- Blas.h - Products by cuBLASLt -------------------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_CUDA_BLAS_H
#define MGQ_RUNTIME_CUDA_BLAS_H

#include "runtime/include/rt_cuda.h"
#include "runtime/src/cuda/Driver.h"
#include <cublasLt.h>
#include <memory>
#include <unordered_map>

namespace mgq::rt {

struct BlasLibrary;

/// The products of a rank. Each table's algorithm is chosen when the product is
/// first run, by shapes and types alone, and kept.
class Blas {
public:
  /// Throws Error: no cuBLASLt, or one that is too old.
  Blas();
  Blas(const Blas &) = delete;
  Blas &operator=(const Blas &) = delete;
  ~Blas();

  /// Device memory that it takes.
  static int64_t workspaceBytes();
  /// Takes it: after the arena, whose lack of memory has more to say.
  void allocate();

  /// Whether a product has run.
  bool knows(const mgq_cuda_product &product) const {
    return plans.find(&product) != plans.end();
  }
  /// Enqueues a product. Throws Error, with what it is a product of.
  void run(const mgq_cuda_product &product, const void *a, const void *b,
           void *c, CUstream stream);

private:
  struct Plan;
  Plan &planOf(const mgq_cuda_product &product);

  const BlasLibrary &library;
  cublasLtHandle_t handle = nullptr;
  std::unique_ptr<DeviceMemory> workspace;
  std::unordered_map<const mgq_cuda_product *, std::unique_ptr<Plan>> plans;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_BLAS_H
