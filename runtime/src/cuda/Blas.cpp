//===- Blas.cpp - Products by cuBLASLt ------------------------------------===//
//
// Matrices of rt_cuda.h are stored by rows, those of cuBLASLt by columns, so
// each is taken for its transpose: C^T = op(B)^T op(A)^T.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/cuda/Blas.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Types.h"
#include <optional>
#include <vector>

using namespace mgq::rt;

// What NVIDIA recommends for Hopper, the most of all.
static constexpr int64_t workspaceSize = int64_t{32} << 20;
// Of those that the library proposes for a product. That it proposes one is no
// promise to run it (cublasLt.h, cublasLtMatmulHeuristicResult_t).
static constexpr int mostAlgorithms = 8;
// Of cuBLAS 13.
static constexpr size_t oldestLibrary = 130000;

static constexpr LibraryPlace place = {
    "libcublasLt.so.13", "nvidia/cu13/lib",
    "'pip install nvidia-cublas' (version 13) or CUDA 13 has it; "
    "LD_LIBRARY_PATH says where"};

#define MGQ_BLAS_FUNCTIONS(X)                                                  \
  X(cublasLtCreate)                                                            \
  X(cublasLtDestroy)                                                           \
  X(cublasLtGetVersion)                                                        \
  X(cublasLtGetStatusName)                                                     \
  X(cublasLtGetStatusString)                                                   \
  X(cublasLtMatmulDescCreate)                                                  \
  X(cublasLtMatmulDescDestroy)                                                 \
  X(cublasLtMatmulDescSetAttribute)                                            \
  X(cublasLtMatrixLayoutCreate)                                                \
  X(cublasLtMatrixLayoutDestroy)                                               \
  X(cublasLtMatrixLayoutSetAttribute)                                          \
  X(cublasLtMatmulPreferenceCreate)                                            \
  X(cublasLtMatmulPreferenceDestroy)                                           \
  X(cublasLtMatmulPreferenceSetAttribute)                                      \
  X(cublasLtMatmulAlgoGetHeuristic)                                            \
  X(cublasLtMatmul)

struct mgq::rt::BlasLibrary {
  BlasLibrary() : library(place) {
#define MGQ_FIND(name) library.find(name, #name);
    MGQ_BLAS_FUNCTIONS(MGQ_FIND)
#undef MGQ_FIND
    if (size_t version = cublasLtGetVersion(); version < oldestLibrary)
      fail("{} has version {}, {} or later is needed; {}", place.name, version,
           oldestLibrary, place.advice);
  }

  Library library;
#define MGQ_MEMBER(name) decltype(&::name) name;
  MGQ_BLAS_FUNCTIONS(MGQ_MEMBER)
#undef MGQ_MEMBER
};

static const BlasLibrary &blas() {
  static const BlasLibrary loaded;
  return loaded;
}

static void checkBlas(cublasStatus_t status, const char *call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail("{}: {} ({})", call, blas().cublasLtGetStatusString(status),
         blas().cublasLtGetStatusName(status));
}
#define blasCall(function, ...)                                                \
  checkBlas(blas().function(__VA_ARGS__), #function)

static cudaDataType_t typeOf(int32_t type) {
  switch (type) {
  case MGQ_F64:
    return CUDA_R_64F;
  case MGQ_F32:
    return CUDA_R_32F;
  case MGQ_F16:
    return CUDA_R_16F;
  case MGQ_BF16:
    return CUDA_R_16BF;
  default:
    fail("the program's tables are damaged: a product of type {}", type);
  }
}

namespace {
/// A matrix as cuBLASLt has it: columns are the rows of rt_cuda.h.
class Layout {
public:
  Layout(int32_t type, int64_t rows, int64_t columns, int64_t pitch,
         int64_t batch, int64_t stride) {
    blasCall(cublasLtMatrixLayoutCreate, &handle, typeOf(type),
             static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
             pitch);
    auto count = static_cast<int32_t>(batch);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  Layout(const Layout &) = delete;
  Layout &operator=(const Layout &) = delete;
  ~Layout() { blas().cublasLtMatrixLayoutDestroy(handle); }
  operator cublasLtMatrixLayout_t() const { return handle; }

private:
  template <typename T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, const T &value) {
    blasCall(cublasLtMatrixLayoutSetAttribute, handle, attribute, &value,
             sizeof value);
  }
  cublasLtMatrixLayout_t handle = nullptr;
};

/// What is done with the matrices.
class Description {
public:
  explicit Description(const mgq_cuda_product &p) {
    bool isDouble = p.a_type == MGQ_F64;
    blasCall(cublasLtMatmulDescCreate, &handle,
             isDouble ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
             isDouble ? CUDA_R_64F : CUDA_R_32F);
    // The library's A and B are the other way around.
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transpose_a));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogueOf(p.epilogue));
    if (p.epilogue & MGQ_CUDA_BIAS)
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
          static_cast<int32_t>(typeOf(p.c_type)));
  }
  Description(const Description &) = delete;
  Description &operator=(const Description &) = delete;
  ~Description() { blas().cublasLtMatmulDescDestroy(handle); }
  operator cublasLtMatmulDesc_t() const { return handle; }

  /// Of the next call. Null: it has none.
  void setBias(const void *bias) {
    if (bias)
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }

private:
  static cublasOperation_t operation(int32_t transposes) {
    return transposes ? CUBLAS_OP_T : CUBLAS_OP_N;
  }
  /// A row of ours, along which a bias lies, is a column there, as the library
  /// wants it.
  static cublasLtEpilogue_t epilogueOf(int32_t epilogue) {
    bool bias = epilogue & MGQ_CUDA_BIAS;
    if (epilogue & MGQ_CUDA_GELU)
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    blasCall(cublasLtMatmulDescSetAttribute, handle, attribute, &value,
             sizeof value);
  }
  cublasLtMatmulDesc_t handle = nullptr;
};

struct Wish {
  std::array<uint32_t, 4> alignments; ///< Those of Blas::Key.
  bool wideSums;                      ///< Parts of a sum are never narrow.
};

/// What an algorithm must do with: room, and how matrices are aligned.
class Preference {
public:
  explicit Preference(const Wish &wish) {
    auto [a, b, c, added] = wish.alignments;
    blasCall(cublasLtMatmulPreferenceCreate, &handle);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<uint64_t>(workspaceSize));
    // The library's A and B are the other way around.
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, added);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c);
    if (wish.wideSums)
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }
  Preference(const Preference &) = delete;
  Preference &operator=(const Preference &) = delete;
  ~Preference() { blas().cublasLtMatmulPreferenceDestroy(handle); }
  operator cublasLtMatmulPreference_t() const { return handle; }

private:
  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    blasCall(cublasLtMatmulPreferenceSetAttribute, handle, attribute, &value,
             sizeof value);
  }
  cublasLtMatmulPreference_t handle = nullptr;
};
} // namespace

static std::string textOf(const mgq_cuda_product &p) {
  return fmt::format("product of {} x {} x {}{}{}{}{}", p.m, p.n, p.k,
                     p.batch > 1 ? fmt::format(", {} of them", p.batch) : "",
                     p.epilogue & MGQ_CUDA_ADD ? ", added to a matrix" : "",
                     p.epilogue & MGQ_CUDA_BIAS ? ", with a bias" : "",
                     p.epilogue & MGQ_CUDA_GELU ? ", with GELU" : "");
}

struct Blas::Plan {
  explicit Plan(const mgq_cuda_product &p)
      : description(p),
        a(p.a_type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda,
          p.batch, p.stride_a),
        b(p.b_type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb,
          p.batch, p.stride_b),
        c(p.c_type, p.m, p.n, p.ldc, p.batch, p.stride_c) {
    if (p.epilogue & MGQ_CUDA_ADD)
      added.emplace(p.c_type, p.m, p.n, p.ld_added, p.batch, p.stride_added);
  }

  Description description;
  Layout a, b, c;
  std::optional<Layout> added;
  cublasLtMatmulAlgo_t algorithm = {};
};

Blas::Blas() : library(blas()) { blasCall(cublasLtCreate, &handle); }

Blas::~Blas() {
  plans.clear(); // Host memory.
  if (!isAbandoned())
    library.cublasLtDestroy(handle);
}

int64_t Blas::workspaceBytes() { return workspaceSize; }

void Blas::allocate() {
  workspace = std::make_unique<DeviceMemory>(workspaceSize);
}

/// What all matrices of a batch are aligned to: views may begin anywhere.
static uint32_t alignmentOf(const void *first, int64_t batch, int64_t stride,
                            int32_t type) {
  auto bits = reinterpret_cast<uintptr_t>(first) | uintptr_t{16};
  if (batch > 1)
    bits |=
        static_cast<uintptr_t>(stride * typeBytes(static_cast<mgq_type>(type)));
  return static_cast<uint32_t>(bits & (~bits + 1));
}

Blas::Key Blas::keyOf(const mgq_cuda_product &p, const ProductOperands &o) {
  uint32_t c = alignmentOf(o.c, p.batch, p.stride_c, p.c_type);
  uint32_t added =
      o.added ? alignmentOf(o.added, p.batch, p.stride_added, p.c_type) : c;
  return {&p, Alignments{alignmentOf(o.a, p.batch, p.stride_a, p.a_type),
                         alignmentOf(o.b, p.batch, p.stride_b, p.b_type), c,
                         added}};
}

/// Whether a call has failed for what it was asked, and done nothing.
static bool isRefusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ||
         status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH ||
         status == CUBLAS_STATUS_INTERNAL_ERROR;
}

/// What is wished for, best first. Later, that no matrix is aligned, which
/// leaves the library's plainest kernels, and that parts of a sum may be as
/// narrow as the result.
static std::vector<Wish> wishesOf(const mgq_cuda_product &p,
                                  const std::array<uint32_t, 4> &alignments) {
  auto bytes = [](int32_t type) {
    return static_cast<uint32_t>(typeBytes(static_cast<mgq_type>(type)));
  };
  std::array<uint32_t, 4> least = {bytes(p.a_type), bytes(p.b_type),
                                   bytes(p.c_type), bytes(p.c_type)};
  // A narrow result is rounded once, not for each part of a sum.
  bool isNarrow = p.c_type == MGQ_BF16 || p.c_type == MGQ_F16;
  std::vector<Wish> wishes = {{alignments, isNarrow}, {least, isNarrow}};
  if (isNarrow)
    wishes.push_back({least, false});
  return wishes;
}

/// Runs the product with what the library proposes for it, until it takes one.
void Blas::choose(Plan &plan, const Key &key, const Multiply &multiply) {
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  const char *call = "cublasLtMatmulAlgoGetHeuristic";
  for (const Wish &wish : wishesOf(*key.first, key.second)) {
    Preference preference(wish);
    cublasLtMatmulHeuristicResult_t results[mostAlgorithms] = {};
    int found = 0;
    cublasStatus_t answer = library.cublasLtMatmulAlgoGetHeuristic(
        handle, plan.description, plan.b, plan.a,
        plan.added ? *plan.added : plan.c, plan.c, preference, mostAlgorithms,
        results, &found);
    if (!isRefusal(answer))
      checkBlas(answer, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < found; ++i) {
      if (results[i].state != CUBLAS_STATUS_SUCCESS)
        continue;
      plan.algorithm = results[i].algo;
      call = "cublasLtMatmul";
      status = multiply(plan.algorithm);
      if (!isRefusal(status))
        return checkBlas(status, call);
    }
  }
  checkBlas(status, call);
}

void Blas::run(const mgq_cuda_product &product, const ProductOperands &o,
               CUstream stream) {
  if (product.batch == 0 || product.m == 0 || product.n == 0)
    return;
  const double wide[] = {product.alpha, o.added ? 1.0 : 0.0};
  const float narrow[] = {static_cast<float>(wide[0]),
                          static_cast<float>(wide[1])};
  const void *alpha = &narrow[0], *beta = &narrow[1];
  if (product.a_type == MGQ_F64) {
    alpha = &wide[0];
    beta = &wide[1];
  }
  auto multiply = [&](const Plan &plan, const cublasLtMatmulAlgo_t &algorithm) {
    return library.cublasLtMatmul(
        handle, plan.description, alpha, o.b, plan.b, o.a, plan.a, beta,
        o.added ? o.added : o.c, plan.added ? *plan.added : plan.c, o.c, plan.c,
        &algorithm, workspace->as<void>(), workspaceSize, stream);
  };
  try {
    Key key = keyOf(product, o);
    if (auto known = plans.find(key); known != plans.end()) {
      Plan &plan = *known->second;
      plan.description.setBias(o.bias);
      return checkBlas(multiply(plan, plan.algorithm), "cublasLtMatmul");
    }
    auto made = std::make_unique<Plan>(product);
    made->description.setBias(o.bias);
    choose(*made, key, [&](const cublasLtMatmulAlgo_t &algorithm) {
      return multiply(*made, algorithm);
    });
    plans.emplace(key, std::move(made));
  } catch (const Error &error) {
    fail("{} ({})", error.what(), textOf(product));
  }
}
