//===- Matmul.cpp - Products on the test device ---------------------------===//

#include "test/device/cublaslt/Matmul.h"
#include "test/device/cuda/Stream.h"
#include <cmath>
#include <cstring>
#include <vector>

using namespace mgq::device;

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

static bool isSupported(cudaDataType_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF ||
         type == CUDA_R_64F;
}

static int64_t bytesOf(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

/// As T, float or double.
template <typename T>
static T load(const void *base, cudaDataType_t type, int64_t index) {
  if (type == CUDA_R_64F)
    return T(static_cast<const double *>(base)[index]);
  if (type == CUDA_R_32F)
    return static_cast<const float *>(base)[index];
  if (type == CUDA_R_16F)
    return T(static_cast<const _Float16 *>(base)[index]);
  uint32_t bits = uint32_t(static_cast<const uint16_t *>(base)[index]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <typename T>
static void store(void *base, cudaDataType_t type, int64_t index, T wide) {
  auto value = float(wide);
  if (type == CUDA_R_64F) {
    static_cast<double *>(base)[index] = wide;
  } else if (type == CUDA_R_32F) {
    static_cast<float *>(base)[index] = value;
  } else if (type == CUDA_R_16F) {
    static_cast<_Float16 *>(base)[index] = _Float16(value);
  } else {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bool isNaN = (bits & 0x7fffffff) > 0x7f800000;
    static_cast<uint16_t *>(base)[index] =
        isNaN ? 0x7fff : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

static int64_t indexOf(const Layout &layout, int64_t row, int64_t column) {
  return layout.order == CUBLASLT_ORDER_ROW ? row * layout.leading + column
                                            : column * layout.leading + row;
}

//===----------------------------------------------------------------------===//
// What is refused
//===----------------------------------------------------------------------===//

static std::string layoutRefusal(const char *name, const Layout &layout) {
  std::string who = std::string("matrix ") + name;
  if (!isSupported(layout.type))
    return who + " has type " + std::to_string(layout.type) +
           "; supported: f64, f32, f16, bf16";
  if (layout.order != CUBLASLT_ORDER_ROW && layout.order != CUBLASLT_ORDER_COL)
    return who + " has order " + std::to_string(layout.order) +
           "; supported: rows, columns";
  if (layout.rows == 0 || layout.columns == 0)
    return who + " is empty";
  auto least = int64_t(layout.order == CUBLASLT_ORDER_ROW ? layout.columns
                                                          : layout.rows);
  if (layout.leading < least)
    return who + " has leading dimension " + std::to_string(layout.leading) +
           ", at least " + std::to_string(least) + " is needed";
  return "";
}

static std::string shapeRefusal(const Product &p) {
  bool ta = p.description.transposeA != CUBLAS_OP_N;
  bool tb = p.description.transposeB != CUBLAS_OP_N;
  uint64_t m = ta ? p.a.columns : p.a.rows, k = ta ? p.a.rows : p.a.columns;
  uint64_t n = tb ? p.b.rows : p.b.columns, k2 = tb ? p.b.columns : p.b.rows;
  if (k != k2 || p.d.rows != m || p.d.columns != n || p.c.rows != m ||
      p.c.columns != n)
    return "shapes do not agree: op(A) " + std::to_string(m) + " x " +
           std::to_string(k) + ", op(B) " + std::to_string(k2) + " x " +
           std::to_string(n) + ", C " + std::to_string(p.c.rows) + " x " +
           std::to_string(p.c.columns) + ", D " + std::to_string(p.d.rows) +
           " x " + std::to_string(p.d.columns);
  if (p.a.batch != p.d.batch || p.b.batch != p.d.batch ||
      p.c.batch != p.d.batch)
    return "numbers of batches differ";
  return "";
}

static std::string epilogueRefusal(const Product &p) {
  const Description &description = p.description;
  switch (description.epilogue) {
  case CUBLASLT_EPILOGUE_DEFAULT:
    return "";
  case CUBLASLT_EPILOGUE_RELU:
  case CUBLASLT_EPILOGUE_BIAS:
  case CUBLASLT_EPILOGUE_RELU_BIAS:
  case CUBLASLT_EPILOGUE_GELU:
  case CUBLASLT_EPILOGUE_GELU_BIAS:
    break;
  case CUBLASLT_EPILOGUE_GELU_AUX:
  case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    if (!description.aux || description.auxLeading < int64_t(p.d.rows) ||
        description.auxLeading % 8)
      return "the epilogue needs its pointer and leading dimension, a multiple "
             "of 8";
    break;
  default:
    return "epilogue " + std::to_string(description.epilogue) +
           "; supported: default, relu, bias, gelu, gelu_aux";
  }
  if (p.d.order == CUBLASLT_ORDER_ROW)
    return "epilogues need D by columns";
  int32_t type = description.biasType;
  if (type != -1 && type != int32_t(p.d.type))
    return "the bias has type " + std::to_string(type) + ", D " +
           std::to_string(p.d.type);
  return "";
}

static std::string computeRefusal(const Product &p) {
  bool isDouble = p.a.type == CUDA_R_64F;
  if (p.description.scale != (isDouble ? CUDA_R_64F : CUDA_R_32F))
    return "the scale type is not that of the sums";
  if (isDouble)
    return p.description.compute == CUBLAS_COMPUTE_64F &&
                   p.description.epilogue == CUBLASLT_EPILOGUE_DEFAULT
               ? ""
               : "f64 needs its compute type, and has no epilogues";
  switch (p.description.compute) {
  case CUBLAS_COMPUTE_32F:
  case CUBLAS_COMPUTE_32F_PEDANTIC:
  case CUBLAS_COMPUTE_32F_FAST_TF32:
  case CUBLAS_COMPUTE_32F_FAST_16BF:
    return "";
  default:
    return "compute type " + std::to_string(p.description.compute);
  }
}

std::string mgq::device::refusal(const Product &p) {
  const struct {
    const char *name;
    const Layout &layout;
  } layouts[] = {{"A", p.a}, {"B", p.b}, {"C", p.c}, {"D", p.d}};
  for (const auto &[name, layout] : layouts)
    if (std::string text = layoutRefusal(name, layout); !text.empty())
      return text;
  if (std::string text = shapeRefusal(p); !text.empty())
    return text;
  if (p.a.type != p.b.type)
    return "A and B have different types";
  if (p.c.type != p.d.type)
    return "C and D have different types";
  if (p.d.type != CUDA_R_32F && p.d.type != p.a.type)
    return "D has neither A's type nor f32";
  if (std::string text = computeRefusal(p); !text.empty())
    return text;
  return epilogueRefusal(p);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// Columns (or rows) that lie apart are touched one by one.
static bool touchMatrix(const Layout &layout, const void *base,
                        mgq_twin_access_kind kind) {
  bool byRows = layout.order == CUBLASLT_ORDER_ROW;
  auto lines = int64_t(byRows ? layout.rows : layout.columns);
  auto length = int64_t(byRows ? layout.columns : layout.rows);
  int64_t size = bytesOf(layout.type);
  if (layout.leading == length) {
    length *= lines;
    lines = 1;
  }
  for (int64_t batch = 0; batch < layout.batch; ++batch)
    for (int64_t line = 0; line < lines; ++line) {
      int64_t first = batch * layout.stride + line * layout.leading;
      if (!touchOrReport(static_cast<const char *>(base) + first * size,
                         length * size, kind))
        return false;
    }
  return true;
}

static cudaDataType_t biasType(const Product &p) {
  return p.description.biasType == -1 ? p.d.type
                                      : cudaDataType_t(p.description.biasType);
}

static bool hasBias(const Product &p) {
  return p.description.epilogue & CUBLASLT_EPILOGUE_BIAS;
}

static bool hasAux(const Product &p) {
  return p.description.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
         p.description.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool touchAll(const Product &p) {
  if (!touchMatrix(p.a, p.A, MGQ_TWIN_READ) ||
      !touchMatrix(p.b, p.B, MGQ_TWIN_READ) ||
      (p.beta != 0 && !touchMatrix(p.c, p.C, MGQ_TWIN_READ)))
    return false;
  if (hasBias(p) &&
      !touchOrReport(p.description.bias,
                     int64_t(p.d.rows) * bytesOf(biasType(p)), MGQ_TWIN_READ))
    return false;
  if (p.workspaceBytes > 0 &&
      !touchOrReport(p.workspace, p.workspaceBytes, MGQ_TWIN_WRITE))
    return false;
  Layout aux = p.d;
  aux.leading = p.description.auxLeading;
  return (!hasAux(p) || touchMatrix(aux, p.description.aux, MGQ_TWIN_WRITE)) &&
         touchMatrix(p.d, p.D, MGQ_TWIN_WRITE);
}

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

/// op(X) of one batch as T, by rows.
template <typename T>
static std::vector<T> widen(const Layout &layout, const void *base,
                            bool transposed, int64_t batch) {
  auto rows = int64_t(transposed ? layout.columns : layout.rows);
  auto columns = int64_t(transposed ? layout.rows : layout.columns);
  std::vector<T> result(size_t(rows * columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      int64_t index =
          transposed ? indexOf(layout, c, r) : indexOf(layout, r, c);
      result[size_t(r * columns + c)] =
          load<T>(base, layout.type, batch * layout.stride + index);
    }
  return result;
}

/// The approximation that cuBLASLt's epilogue uses.
static float gelu(float x) {
  float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1 + std::tanh(inner));
}

template <typename T>
static T finish(const Product &p, T sum, int64_t batch, int64_t row,
                int64_t column) {
  T value = T(p.alpha) * sum;
  if (p.beta != 0)
    value +=
        T(p.beta) *
        load<T>(p.C, p.c.type, batch * p.c.stride + indexOf(p.c, row, column));
  if (hasBias(p))
    value += load<T>(p.description.bias, biasType(p), row);
  int epilogue = p.description.epilogue;
  if (hasAux(p))
    store(p.description.aux, p.d.type,
          batch * p.d.stride + column * p.description.auxLeading + row, value);
  if ((epilogue & CUBLASLT_EPILOGUE_RELU) && !(value > 0))
    value = 0;
  return epilogue & CUBLASLT_EPILOGUE_GELU ? T(gelu(float(value))) : value;
}

template <typename T>
static void computeBatch(const Product &p, int64_t batch) {
  bool ta = p.description.transposeA != CUBLAS_OP_N;
  bool tb = p.description.transposeB != CUBLAS_OP_N;
  std::vector<T> a = widen<T>(p.a, p.A, ta, batch);
  std::vector<T> b = widen<T>(p.b, p.B, tb, batch);
  auto m = int64_t(p.d.rows), n = int64_t(p.d.columns);
  int64_t k = int64_t(a.size()) / m;
  std::vector<T> sums(static_cast<size_t>(n));
  for (int64_t row = 0; row < m; ++row) {
    std::fill(sums.begin(), sums.end(), T(0));
    for (int64_t i = 0; i < k; ++i) {
      T factor = a[size_t(row * k + i)];
      const T *values = &b[size_t(i * n)];
      for (int64_t column = 0; column < n; ++column)
        sums[size_t(column)] =
            std::fma(factor, values[column], sums[size_t(column)]);
    }
    for (int64_t column = 0; column < n; ++column)
      store(p.D, p.d.type, batch * p.d.stride + indexOf(p.d, row, column),
            finish(p, sums[size_t(column)], batch, row, column));
  }
}

int mgq::device::compute(const Product &product) {
  if (!touchAll(product))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (int64_t batch = 0; batch < product.d.batch; ++batch)
    if (product.a.type == CUDA_R_64F)
      computeBatch<double>(product, batch);
    else
      computeBatch<float>(product, batch);
  return 0;
}
