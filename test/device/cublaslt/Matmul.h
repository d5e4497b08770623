//===- Matmul.h - Products on the test device -------------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUBLASLT_MATMUL_H
#define MGQ_TEST_DEVICE_CUBLASLT_MATMUL_H

#include <cstdint>
#include <cublasLt.h>
#include <string>

namespace mgq::device {

/// What a cublasLtMatrixLayout_t holds.
struct Layout {
  cudaDataType_t type;
  cublasLtOrder_t order;
  uint64_t rows, columns;
  int64_t leading; ///< Elements from a column (row-major: row) to the next.
  int32_t batch;
  int64_t stride; ///< Elements from a matrix of the batch to the next.
};

/// What a cublasLtMatmulDesc_t holds.
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transposeA, transposeB;
  cublasLtPointerMode_t pointers;
  cublasLtEpilogue_t epilogue;
  const void *bias;
  int32_t biasType; ///< -1: the type of D
  void *aux;        ///< What the epilogue leaves for its backward pass.
  int64_t auxLeading;
};

/// D = epilogue(alpha op(A) op(B) + beta C).
struct Product {
  Description description;
  Layout a, b, c, d;
  double alpha, beta; ///< Floats, but for f64.
  const void *A, *B, *C;
  void *D;
  void *workspace;
  int64_t workspaceBytes; ///< That the algorithm uses.
};

/// Why cuBLASLt would refuse it, "": it would not.
std::string refusal(const Product &product);

/// Touches and computes. Each element is one chain of fused multiply-adds over
/// k, in float (f64 in double), whatever the shape. Returns a CUresult.
int compute(const Product &product);

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_CUBLASLT_MATMUL_H
