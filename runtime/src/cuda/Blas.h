//===- Blas.h - Products by cuBLASLt ----------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_BLAS_H
#define MGQ_RUNTIME_CUDA_BLAS_H

#include "runtime/include/rt_cuda.h"
#include "runtime/src/cuda/Driver.h"
#include <array>
#include <cublasLt.h>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace mgq::rt {

struct BlasLibrary;

/// What mgq_cuda_matmul gets; null: there is none.
struct ProductOperands {
  const void *a, *b;
  void *c;
  const void *added, *bias;
};

/// The products of a rank. Each table's algorithm is chosen when the product is
/// first run, by shapes, types, epilogue and how its matrices are aligned, and
/// kept: the library's first choice that it does then run.
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

  /// Whether a product has run on matrices that are aligned like these.
  bool knows(const mgq_cuda_product &product,
             const ProductOperands &operands) const {
    return plans.find(keyOf(product, operands)) != plans.end();
  }
  /// Enqueues a product. Throws Error, with what it is a product of.
  void run(const mgq_cuda_product &product, const ProductOperands &operands,
           CUstream stream);

private:
  struct Plan;
  /// The bytes, at most 16, that the matrices of a, b, c and those added are
  /// multiples of.
  using Alignments = std::array<uint32_t, 4>;
  using Key = std::pair<const mgq_cuda_product *, Alignments>;
  static Key keyOf(const mgq_cuda_product &product,
                   const ProductOperands &operands);
  using Multiply = std::function<cublasStatus_t(const cublasLtMatmulAlgo_t &)>;
  void choose(Plan &plan, const Key &key, const Multiply &multiply);

  const BlasLibrary &library;
  cublasLtHandle_t handle = nullptr;
  std::unique_ptr<DeviceMemory> workspace;
  std::map<Key, std::unique_ptr<Plan>> plans;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_BLAS_H
