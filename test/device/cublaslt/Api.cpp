//===- Api.cpp - The stand-in of libcublasLt ------------------------------===//

#include "test/device/cublaslt/Matmul.h"
#include "test/device/cuda/Settings.h"
#include "test/device/cuda/Stream.h"
#include <cstring>

using namespace mgq::device;

#define LT_API extern "C" __attribute__((visibility("default")))
#define LT_ENTER()                                                             \
  do {                                                                         \
    if (int code = injectedFailure(__func__))                                  \
      return cublasStatus_t(code);                                             \
  } while (false)

static constexpr const char *handleKind = "cuBLASLt handle";
static constexpr const char *layoutKind = "cuBLASLt matrix layout";
static constexpr const char *descriptionKind = "cuBLASLt product description";
static constexpr const char *preferenceKind = "cuBLASLt preference";

namespace {
struct Preference {
  uint64_t workspaceBytes;
  uint32_t alignment[4]; ///< Of A, B, C, D, bytes.
};

/// What a cublasLtMatmulAlgo_t holds.
struct Algorithm {
  uint32_t mark;
  uint32_t id;
  uint64_t workspaceBytes;
  uint32_t alignment[4];
};
constexpr uint32_t algorithmMark = 0x6d677161;
/// Of the algorithm that wants some.
constexpr uint64_t someWorkspace = 1024;
/// Of vector loads of epilogues: what algorithms are chosen for says nothing of
/// the bias.
constexpr uintptr_t biasAlignment = 16;

template <typename State, typename Opaque>
State &in(Opaque *opaque) {
  static_assert(sizeof(State) <= sizeof(Opaque), "room in the opaque struct");
  return *reinterpret_cast<State *>(opaque);
}

/// Copies an attribute whose size must be right.
template <typename T>
cublasStatus_t set(T &field, const void *value, size_t bytes) {
  if (!value || bytes != sizeof(T))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}
} // namespace

//===----------------------------------------------------------------------===//
// Library
//===----------------------------------------------------------------------===//

LT_API cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  LT_ENTER();
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  handleMade(handleKind, *handle);
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  LT_ENTER();
  if (!handleGone(handleKind, handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  delete reinterpret_cast<int *>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

LT_API size_t cublasLtGetVersion() {
  int other = injectedFailure(__func__);
  return other ? size_t(other) : CUBLAS_VERSION;
}

LT_API size_t cublasLtGetCudartVersion() { return CUDA_VERSION; }

#define STATUS(code, text)                                                     \
  case code:                                                                   \
    return isName ? #code : text;
static const char *statusText(cublasStatus_t status, bool isName) {
  switch (status) {
    STATUS(CUBLAS_STATUS_SUCCESS, "success")
    STATUS(CUBLAS_STATUS_NOT_INITIALIZED, "the library was not initialized")
    STATUS(CUBLAS_STATUS_ALLOC_FAILED, "the resource allocation failed")
    STATUS(CUBLAS_STATUS_INVALID_VALUE, "an invalid value was given")
    STATUS(CUBLAS_STATUS_ARCH_MISMATCH, "an absent device feature is required")
    STATUS(CUBLAS_STATUS_MAPPING_ERROR, "device memory cannot be accessed")
    STATUS(CUBLAS_STATUS_EXECUTION_FAILED, "the program failed to execute")
    STATUS(CUBLAS_STATUS_INTERNAL_ERROR, "an internal operation failed")
    STATUS(CUBLAS_STATUS_NOT_SUPPORTED, "the functionality is not supported")
    STATUS(CUBLAS_STATUS_LICENSE_ERROR, "a license error was detected")
  }
  return "unknown error";
}
#undef STATUS

LT_API const char *cublasLtGetStatusName(cublasStatus_t status) {
  return statusText(status, true);
}
LT_API const char *cublasLtGetStatusString(cublasStatus_t status) {
  return statusText(status, false);
}

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

LT_API cublasStatus_t cublasLtMatrixLayoutInit_internal(
    cublasLtMatrixLayout_t layout, size_t, cudaDataType type, uint64_t rows,
    uint64_t columns, int64_t leading) {
  in<Layout>(layout) = {type, CUBLASLT_ORDER_COL, rows, columns, leading, 1, 0};
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                                 cudaDataType type,
                                                 uint64_t rows,
                                                 uint64_t columns,
                                                 int64_t leading) {
  LT_ENTER();
  *layout = new cublasLtMatrixLayoutOpaque_t;
  handleMade(layoutKind, *layout);
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows,
                                           columns, leading);
}

LT_API cublasStatus_t
cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  if (!handleGone(layoutKind, layout))
    return CUBLAS_STATUS_INVALID_VALUE;
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t opaque, cublasLtMatrixLayoutAttribute_t attribute,
    const void *value, size_t bytes) {
  Layout &layout = in<Layout>(opaque);
  switch (attribute) {
  case CUBLASLT_MATRIX_LAYOUT_TYPE:
    return set(layout.type, value, bytes);
  case CUBLASLT_MATRIX_LAYOUT_ORDER:
    return set(layout.order, value, bytes);
  case CUBLASLT_MATRIX_LAYOUT_ROWS:
    return set(layout.rows, value, bytes);
  case CUBLASLT_MATRIX_LAYOUT_COLS:
    return set(layout.columns, value, bytes);
  case CUBLASLT_MATRIX_LAYOUT_LD:
    return set(layout.leading, value, bytes);
  case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
    return set(layout.batch, value, bytes);
  case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
    return set(layout.stride, value, bytes);
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

//===----------------------------------------------------------------------===//
// Descriptions of products
//===----------------------------------------------------------------------===//

LT_API cublasStatus_t cublasLtMatmulDescInit_internal(
    cublasLtMatmulDesc_t description, size_t, cublasComputeType_t compute,
    cudaDataType_t scale) {
  in<Description>(description) = {compute,
                                  scale,
                                  CUBLAS_OP_N,
                                  CUBLAS_OP_N,
                                  CUBLASLT_POINTER_MODE_HOST,
                                  CUBLASLT_EPILOGUE_DEFAULT,
                                  nullptr,
                                  -1,
                                  nullptr,
                                  0};
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t
cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description,
                         cublasComputeType_t compute, cudaDataType_t scale) {
  LT_ENTER();
  *description = new cublasLtMatmulDescOpaque_t;
  handleMade(descriptionKind, *description);
  return cublasLtMatmulDescInit_internal(*description, sizeof **description,
                                         compute, scale);
}

LT_API cublasStatus_t
cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  if (!handleGone(descriptionKind, description))
    return CUBLAS_STATUS_INVALID_VALUE;
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute,
    const void *value, size_t bytes) {
  Description &description = in<Description>(opaque);
  switch (attribute) {
  case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
    return set(description.compute, value, bytes);
  case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
    return set(description.scale, value, bytes);
  case CUBLASLT_MATMUL_DESC_POINTER_MODE:
    return set(description.pointers, value, bytes);
  case CUBLASLT_MATMUL_DESC_TRANSA:
    return set(description.transposeA, value, bytes);
  case CUBLASLT_MATMUL_DESC_TRANSB:
    return set(description.transposeB, value, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE:
    return set(description.epilogue, value, bytes);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    return set(description.bias, value, bytes);
  case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
    return set(description.biasType, value, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
    return set(description.aux, value, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
    return set(description.auxLeading, value, bytes);
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

//===----------------------------------------------------------------------===//
// Algorithms
//===----------------------------------------------------------------------===//

LT_API cublasStatus_t cublasLtMatmulPreferenceInit_internal(
    cublasLtMatmulPreference_t preference, size_t) {
  in<Preference>(preference) = {0, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t
cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  LT_ENTER();
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  handleMade(preferenceKind, *preference);
  return cublasLtMatmulPreferenceInit_internal(*preference,
                                               sizeof **preference);
}

LT_API cublasStatus_t
cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  if (!handleGone(preferenceKind, preference))
    return CUBLAS_STATUS_INVALID_VALUE;
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t opaque,
    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
    size_t bytes) {
  Preference &preference = in<Preference>(opaque);
  switch (attribute) {
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
    return set(preference.workspaceBytes, value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    return set(preference.alignment[0], value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    return set(preference.alignment[1], value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    return set(preference.alignment[2], value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
    return set(preference.alignment[3], value, bytes);
  default:
    return CUBLAS_STATUS_SUCCESS; // Wishes that change no result.
  }
}

static Product describe(cublasLtMatmulDesc_t description,
                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  Product product{};
  product.description = in<Description>(description);
  product.a = in<Layout>(a);
  product.b = in<Layout>(b);
  product.c = in<Layout>(c);
  product.d = in<Layout>(d);
  return product;
}

/// The first algorithm wants workspace, if it may; the second none.
LT_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t opaque, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int *returned) {
  LT_ENTER();
  *returned = 0;
  if (!handleExists(handleKind, handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted <= 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!refusal(describe(description, a, b, c, d)).empty())
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Preference &preference = in<Preference>(opaque);
  for (uint32_t id = 0; id < 2 && *returned < wanted; ++id) {
    uint64_t workspace = id == 0 ? someWorkspace : 0;
    if (workspace > preference.workspaceBytes)
      continue;
    cublasLtMatmulHeuristicResult_t &result = results[(*returned)++];
    std::memset(&result, 0, sizeof result);
    Algorithm &algorithm = in<Algorithm>(&result.algo);
    algorithm = {algorithmMark, id, workspace, {}};
    std::memcpy(algorithm.alignment, preference.alignment,
                sizeof algorithm.alignment);
    result.workspaceSize = workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

LT_API cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(
    const cublasLtMatmulAlgo_t *opaque,
    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value, size_t bytes,
    size_t *written) {
  const auto &algorithm = in<const Algorithm>(opaque);
  if (attribute != CUBLASLT_ALGO_CONFIG_ID || bytes < sizeof(int32_t))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(value, &algorithm.id, sizeof(int32_t));
  if (written)
    *written = sizeof(int32_t);
  return CUBLAS_STATUS_SUCCESS;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// What is wrong with the pointers of a call, "": nothing.
static std::string pointerRefusal(const Product &p, const Algorithm &algorithm,
                                  size_t workspaceBytes) {
  const void *pointers[] = {p.A, p.B, p.beta != 0 ? p.C : nullptr, p.D};
  const char *names[] = {"A", "B", "C", "D"};
  for (int i = 0; i < 4; ++i) {
    if (i != 2 && !pointers[i])
      return std::string("no ") + names[i];
    uint32_t align = algorithm.alignment[i];
    if (align && reinterpret_cast<uintptr_t>(pointers[i]) % align)
      return std::string(names[i]) + " at " + describeAddress(pointers[i]) +
             " is not aligned to the " + std::to_string(align) +
             " bytes that the algorithm was chosen for";
  }
  if (p.beta != 0 && p.C == p.D &&
      (p.c.order != p.d.order || p.c.leading != p.d.leading ||
       p.c.stride != p.d.stride))
    return "C and D are the same, and have different layouts";
  if (p.description.epilogue & CUBLASLT_EPILOGUE_BIAS) {
    if (!p.description.bias)
      return "the epilogue adds a bias, and none is given";
    if (reinterpret_cast<uintptr_t>(p.description.bias) % biasAlignment)
      return "the bias at " + describeAddress(p.description.bias) +
             " is not aligned to " + std::to_string(biasAlignment) + " bytes";
  }
  if (algorithm.workspaceBytes > workspaceBytes)
    return "the algorithm needs a workspace of " +
           std::to_string(algorithm.workspaceBytes) + " bytes, given " +
           std::to_string(workspaceBytes);
  return "";
}

LT_API cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
               const void *alpha, const void *A, cublasLtMatrixLayout_t a,
               const void *B, cublasLtMatrixLayout_t b, const void *beta,
               const void *C, cublasLtMatrixLayout_t c, void *D,
               cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *chosen,
               void *workspace, size_t workspaceBytes, cudaStream_t stream) {
  LT_ENTER();
  if (!handleExists(handleKind, handle))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  Product product = describe(description, a, b, c, d);
  if (product.description.pointers != CUBLASLT_POINTER_MODE_HOST)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  bool isDouble = product.description.scale == CUDA_R_64F;
  auto scalar = [&](const void *value) {
    return isDouble ? *static_cast<const double *>(value)
                    : double(*static_cast<const float *>(value));
  };
  product.alpha = scalar(alpha);
  product.beta = scalar(beta);
  product.A = A;
  product.B = B;
  product.C = C;
  product.D = D;
  Algorithm algorithm{};
  if (chosen)
    algorithm = in<const Algorithm>(chosen);
  if (chosen && algorithm.mark != algorithmMark) {
    report("cublasLtMatmul: the algorithm comes from no heuristic");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  product.workspace = workspace;
  product.workspaceBytes = int64_t(algorithm.workspaceBytes);
  std::string text = refusal(product);
  if (text.empty())
    text = pointerRefusal(product, algorithm, workspaceBytes);
  if (!text.empty()) {
    report("cublasLtMatmul: " + text);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  int status = enqueueOn(
      reinterpret_cast<CUstream>(stream), "cublasLtMatmul",
      [product] { return compute(product); }, Run::Exclusive);
  return status ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
