//===- MatmulTest.cpp - The stand-in of libcublasLt -----------------------===//

#include "test/device/programs/Driver.h"
#include <cmath>
#include <cstring>
#include <cublasLt.h>
#include <gmock/gmock.h>

using namespace mgq::scenario;
using testing::HasSubstr;

static constexpr int faultStatus = 86;

static bool has(const char *fault) {
  const char *seeded = std::getenv("FAULT");
  return seeded && std::string(seeded) == fault;
}

//===----------------------------------------------------------------------===//
// Host programs
//===----------------------------------------------------------------------===//

namespace {
/// A matrix of one type, by rows or columns, some elements wider than needed.
struct Matrix {
  cudaDataType_t type;
  int64_t rows, columns, leading, batch;
  bool byRows;
  std::vector<float> values;
  std::unique_ptr<Memory<char>> memory;
  cublasLtMatrixLayout_t layout;

  Matrix(cudaDataType_t type, int64_t rows, int64_t columns, bool byRows,
         int64_t batch, int seed)
      : type(type), rows(rows), columns(columns),
        leading((byRows ? columns : rows) + 3), batch(batch), byRows(byRows),
        values(size_t(rows * columns * batch)) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = float(int((i * 37 + size_t(seed) * 11) % 17) - 8) / 8;
    std::vector<char> bytes(size_t(stride() * batch * size()));
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          put(&bytes[size_t(index(b, r, c) * size())], at(b, r, c));
    memory = std::make_unique<Memory<char>>(bytes);
    CHECK_OK(cublasLtMatrixLayoutCreate(&layout, type, uint64_t(rows),
                                        uint64_t(columns), leading));
    int32_t order = byRows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    set(CUBLASLT_MATRIX_LAYOUT_ORDER, order);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride());
  }
  ~Matrix() { CHECK_OK(cublasLtMatrixLayoutDestroy(layout)); }
  Matrix(const Matrix &) = delete;

  template <typename T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    CHECK_OK(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value,
                                              sizeof value));
  }
  int64_t size() const {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
  }
  int64_t stride() const { return leading * (byRows ? rows : columns) + 5; }
  int64_t index(int64_t b, int64_t r, int64_t c) const {
    return b * stride() + (byRows ? r * leading + c : c * leading + r);
  }
  float &at(int64_t b, int64_t r, int64_t c) {
    return values[size_t((b * rows + r) * columns + c)];
  }
  /// Eighths up to one are exact in every type.
  void put(char *to, float value) const {
    if (type == CUDA_R_64F) {
      double wide = value;
      std::memcpy(to, &wide, 8);
    } else if (type == CUDA_R_32F) {
      std::memcpy(to, &value, 4);
    } else if (type == CUDA_R_16F) {
      auto half = _Float16(value);
      std::memcpy(to, &half, 2);
    } else {
      std::memcpy(to, reinterpret_cast<char *>(&value) + 2, 2);
    }
  }
  double get(const char *from) const {
    float value = 0;
    if (type == CUDA_R_64F) {
      double wide;
      std::memcpy(&wide, from, 8);
      return wide;
    }
    if (type == CUDA_R_32F) {
      std::memcpy(&value, from, 4);
    } else if (type == CUDA_R_16F) {
      _Float16 half;
      std::memcpy(&half, from, 2);
      value = float(half);
    } else {
      std::memcpy(reinterpret_cast<char *>(&value) + 2, from, 2);
    }
    return value;
  }
};

/// What a product is to be.
struct Case {
  cudaDataType_t in, out;
  bool transposeA, transposeB, byRows;
  cublasLtEpilogue_t epilogue;
  float alpha, beta;
  int64_t batch, m, n, k;
};

struct Lt {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t description;
  explicit Lt(bool isDouble = false) {
    CHECK_OK(cublasLtCreate(&handle));
    CHECK_OK(cublasLtMatmulDescCreate(
        &description, isDouble ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
        isDouble ? CUDA_R_64F : CUDA_R_32F));
  }
  ~Lt() {
    CHECK_OK(cublasLtMatmulDescDestroy(description));
    if (!has("leak"))
      CHECK_OK(cublasLtDestroy(handle));
  }
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    CHECK_OK(cublasLtMatmulDescSetAttribute(description, attribute, &value,
                                            sizeof value));
  }
};
} // namespace

static double reference(const Case &c, Matrix &a, Matrix &b, Matrix &d,
                        const std::vector<float> &bias, int64_t batch,
                        int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t k = 0; k < c.k; ++k)
    sum +=
        double(c.transposeA ? a.at(batch, k, row) : a.at(batch, row, k)) *
        double(c.transposeB ? b.at(batch, column, k) : b.at(batch, k, column));
  double value = c.alpha * sum + c.beta * d.at(batch, row, column);
  if (c.epilogue & CUBLASLT_EPILOGUE_BIAS)
    value += bias[size_t(row)];
  if (c.epilogue & CUBLASLT_EPILOGUE_RELU)
    value = std::max(value, 0.0);
  if (c.epilogue & CUBLASLT_EPILOGUE_GELU)
    value *= 0.5 * (1 + std::tanh(0.7978845608028654 *
                                  (value + 0.044715 * value * value * value)));
  return value;
}

static void checkProduct(const Case &c, Stream &stream) {
  bool isDouble = c.in == CUDA_R_64F;
  Lt lt(isDouble);
  Matrix a(c.in, c.transposeA ? c.k : c.m, c.transposeA ? c.m : c.k, c.byRows,
           c.batch, 1);
  Matrix b(c.in, c.transposeB ? c.n : c.k, c.transposeB ? c.k : c.n, !c.byRows,
           c.batch, 2);
  Matrix d(c.out, c.m, c.n, c.byRows && c.epilogue == CUBLASLT_EPILOGUE_DEFAULT,
           c.batch, 3);
  std::vector<float> bias(static_cast<size_t>(c.m));
  for (size_t i = 0; i < bias.size(); ++i)
    bias[i] = float(i) / 4 - 1;
  Memory<float> biasMemory(bias);
  Memory<char> workspace(4096);
  lt.set(CUBLASLT_MATMUL_DESC_TRANSA, c.transposeA ? CUBLAS_OP_T : CUBLAS_OP_N);
  lt.set(CUBLASLT_MATMUL_DESC_TRANSB, c.transposeB ? CUBLAS_OP_T : CUBLAS_OP_N);
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  if (c.epilogue & CUBLASLT_EPILOGUE_BIAS) {
    lt.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, biasMemory.pointer());
    lt.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_32F));
  }
  cublasLtMatmulPreference_t preference;
  CHECK_OK(cublasLtMatmulPreferenceCreate(&preference));
  uint64_t most = 4096;
  CHECK_OK(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
      sizeof most));
  cublasLtMatmulHeuristicResult_t found[4];
  int count;
  CHECK_OK(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.description, a.layout,
                                          b.layout, d.layout, d.layout,
                                          preference, 4, found, &count));
  CHECK_THAT(count == 2 && found[0].workspaceSize <= most);
  CHECK_OK(cublasLtMatmulPreferenceDestroy(preference));
  double wideAlpha = c.alpha, wideBeta = c.beta;
  const void *alpha = &c.alpha, *beta = &c.beta;
  if (isDouble) {
    alpha = &wideAlpha;
    beta = &wideBeta;
  }
  CHECK_OK(cublasLtMatmul(
      lt.handle, lt.description, alpha, a.memory->pointer(), a.layout,
      b.memory->pointer(), b.layout, beta, d.memory->pointer(), d.layout,
      d.memory->pointer(), d.layout, &found[0].algo, workspace.pointer(),
      workspace.count, reinterpret_cast<cudaStream_t>(stream.handle)));
  stream.wait();
  std::vector<char> result = d.memory->read();
  for (int64_t batch = 0; batch < c.batch; ++batch)
    for (int64_t row = 0; row < c.m; ++row)
      for (int64_t column = 0; column < c.n; ++column) {
        double expected = reference(c, a, b, d, bias, batch, row, column);
        double got =
            d.get(&result[size_t(d.index(batch, row, column) * d.size())]);
        double unit = c.out == CUDA_R_64F   ? 1e-14
                      : c.out == CUDA_R_32F ? 1e-6
                      : c.out == CUDA_R_16F ? 1e-3
                                            : 8e-3;
        CHECK_THAT(std::fabs(got - expected) <=
                   unit * (1 + std::fabs(expected)));
      }
}

SCENARIO(products) {
  openDevice();
  Stream stream;
  for (cudaDataType_t in : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F, CUDA_R_64F})
    for (int flags = 0; flags < 8; ++flags) {
      bool same = flags & 1 || in == CUDA_R_64F;
      cudaDataType_t out = same ? in : CUDA_R_32F;
      checkProduct({in, out, bool(flags & 1), bool(flags & 2), bool(flags & 4),
                    CUBLASLT_EPILOGUE_DEFAULT, 1.5f, flags & 2 ? 0.5f : 0.0f,
                    1 + flags / 3, 5, 7, 11 + flags},
                   stream);
    }
  for (cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS,
        CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_GELU,
        CUBLASLT_EPILOGUE_GELU_BIAS})
    checkProduct({CUDA_R_16BF, CUDA_R_32F, true, false, false, epilogue, 1, 0,
                  2, 6, 3, 9},
                 stream);
  return 0;
}

/// A product of 16 x 16 matrices after an upload on another stream.
SCENARIO(faults) {
  openDevice();
  Lt lt;
  Stream upload, stream;
  Event there;
  std::vector<float> values(16 * 16 + 1, 1);
  float *pinned;
  CHECK_OK(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), 1024, 0));
  std::fill(pinned, pinned + 256, 1.0f);
  Memory<float> a(256 + 1), b(values), d(has("bounds") ? 200 : 256);
  CHECK_OK(cuMemcpyHtoDAsync(a.address, pinned, 1024, upload.handle));
  there.record(upload);
  if (!has("wait"))
    there.before(stream);
  cublasLtMatrixLayout_t layout;
  CHECK_OK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 16, 16, 16));
  cublasLtMatmulPreference_t preference;
  CHECK_OK(cublasLtMatmulPreferenceCreate(&preference));
  uint64_t most = 1 << 20;
  CHECK_OK(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
      sizeof most));
  cublasLtMatmulHeuristicResult_t found;
  int count;
  CHECK_OK(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.description, layout,
                                          layout, layout, layout, preference, 1,
                                          &found, &count));
  CHECK_OK(cublasLtMatmulPreferenceDestroy(preference));
  Memory<char> workspace(2048);
  float one = 1, zero = 0;
  void *left = reinterpret_cast<void *>(a.address + (has("alignment") ? 4 : 0));
  CUresult status = CUDA_SUCCESS;
  cublasStatus_t called = cublasLtMatmul(
      lt.handle, lt.description, &one, left, layout, b.pointer(), layout, &zero,
      d.pointer(), layout, d.pointer(), layout, &found.algo,
      workspace.pointer(), has("workspace") ? 16 : 2048,
      reinterpret_cast<cudaStream_t>(stream.handle));
  if (called == CUBLAS_STATUS_SUCCESS)
    status = cuStreamSynchronize(stream.handle);
  if (std::getenv("FAULT"))
    std::printf("called %d, status %d\n", called, status);
  CHECK_OK(cublasLtMatrixLayoutDestroy(layout));
  if (status != CUDA_SUCCESS)
    std::exit(0);
  CHECK_OK(cuCtxSynchronize());
  CHECK_OK(cuMemFreeHost(pinned));
  return 0;
}

/// D = A B + C + bias, of 16 x 16 matrices.
SCENARIO(added) {
  openDevice();
  Lt lt;
  Stream stream;
  Memory<float> a(std::vector<float>(256, 1)), c(std::vector<float>(260, 3)),
      d(has("layout") ? 288 : 256), bias(std::vector<float>(20, 2));
  cublasLtMatrixLayout_t layout, wide;
  CHECK_OK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 16, 16, 16));
  CHECK_OK(cublasLtMatrixLayoutCreate(&wide, CUDA_R_32F, 16, 16, 18));
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  if (!has("missing"))
    lt.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
           bias.address + (has("alignment") ? 4 : 0));
  float one = 1;
  auto from = has("layout") ? d.pointer() : c.pointer();
  if (has("bounds"))
    from = reinterpret_cast<void *>(c.address + 64);
  cublasStatus_t called = cublasLtMatmul(
      lt.handle, lt.description, &one, a.pointer(), layout, a.pointer(), layout,
      &one, from, layout, d.pointer(), has("layout") ? wide : layout, nullptr,
      nullptr, 0, reinterpret_cast<cudaStream_t>(stream.handle));
  int status = called == CUBLAS_STATUS_SUCCESS
                   ? int(cuStreamSynchronize(stream.handle))
                   : int(called);
  CHECK_OK(cublasLtMatrixLayoutDestroy(layout));
  CHECK_OK(cublasLtMatrixLayoutDestroy(wide));
  if (status != 0)
    std::exit(0);
  std::vector<float> result = d.read();
  for (size_t i = 0; i < 256; ++i)
    CHECK_THAT(result[i] == 21);
  return 0;
}

/// What cuBLASLt does not have: it returns no algorithm.
SCENARIO(unsupported) {
  openDevice();
  Lt lt;
  cublasLtMatrixLayout_t f32, i8, flat;
  CHECK_OK(cublasLtMatrixLayoutCreate(&f32, CUDA_R_32F, 4, 4, 4));
  CHECK_OK(cublasLtMatrixLayoutCreate(&i8, CUDA_R_8I, 4, 4, 4));
  CHECK_OK(cublasLtMatrixLayoutCreate(&flat, CUDA_R_32F, 4, 5, 4));
  cublasLtMatmulPreference_t preference;
  CHECK_OK(cublasLtMatmulPreferenceCreate(&preference));
  cublasLtMatmulHeuristicResult_t found;
  int count;
  auto ask = [&](cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t d) {
    return cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.description, a, f32, d,
                                          d, preference, 1, &found, &count);
  };
  CHECK_THAT(ask(i8, f32) == CUBLAS_STATUS_NOT_SUPPORTED && count == 0);
  CHECK_THAT(ask(flat, f32) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK_THAT(ask(f32, i8) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK_OK(ask(f32, f32));
  CHECK_THAT(count == 1 && found.workspaceSize == 0); // It may have none.
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  CHECK_OK(ask(f32, f32));
  lt.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_16BF));
  CHECK_THAT(ask(f32, f32) == CUBLAS_STATUS_NOT_SUPPORTED);
  lt.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_32F));
  CHECK_OK(ask(f32, f32));
  int32_t order = CUBLASLT_ORDER_ROW;
  CHECK_OK(cublasLtMatrixLayoutSetAttribute(f32, CUBLASLT_MATRIX_LAYOUT_ORDER,
                                            &order, sizeof order));
  CHECK_THAT(ask(f32, f32) == CUBLAS_STATUS_NOT_SUPPORTED);
  order = CUBLASLT_ORDER_COL;
  CHECK_OK(cublasLtMatrixLayoutSetAttribute(f32, CUBLASLT_MATRIX_LAYOUT_ORDER,
                                            &order, sizeof order));
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX);
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &found);
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{8});
  CHECK_OK(ask(f32, f32));
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{4});
  CHECK_THAT(ask(f32, f32) == CUBLAS_STATUS_NOT_SUPPORTED);
  std::puts(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED));
  CHECK_OK(cublasLtMatmulPreferenceDestroy(preference));
  for (cublasLtMatrixLayout_t layout : {f32, i8, flat})
    CHECK_OK(cublasLtMatrixLayoutDestroy(layout));
  return 0;
}

//===----------------------------------------------------------------------===//
// Tests
//===----------------------------------------------------------------------===//

TEST(Matmul, ProductsAreRight) {
  Result result = run("products");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

TEST(Matmul, FaultsAreReported) {
  Result right = run("faults");
  EXPECT_EQ(right.status, 0) << right.output;
  EXPECT_EQ(right.output, "");
  const struct {
    const char *fault, *text;
  } faults[] = {
      {"wait", "no event orders them"},
      {"alignment", "cublasLtMatmul: A at byte 4 of device memory 1 (1028 "
                    "bytes) is not aligned to the 256 bytes"},
      {"workspace", "the algorithm needs a workspace of 1024 bytes, given 16"},
      {"bounds", "cublasLtMatmul on stream 1 writes 1024 bytes out of bounds"},
      {"leak", "leak: 1 of kind 'cuBLASLt handle' left at exit"}};
  for (const auto &[fault, text] : faults)
    for (const char *seed : {"1", "2", "3"}) {
      Result result = run("faults", {std::string("FAULT=") + fault,
                                     std::string("MGQ_FAKE_SEED=") + seed});
      EXPECT_EQ(result.status, faultStatus) << fault << result.output;
      EXPECT_THAT(result.output, HasSubstr(text));
    }
}

TEST(Matmul, WhatIsAddedIsChecked) {
  Result right = run("added");
  EXPECT_EQ(right.status, 0) << right.output;
  EXPECT_EQ(right.output, "");
  const struct {
    const char *fault, *text;
  } faults[] = {
      {"missing", "the epilogue adds a bias, and none is given"},
      {"alignment", "the bias at byte 4 of device memory 4 (80 bytes) is not "
                    "aligned to 16 bytes"},
      {"layout", "C and D are the same, and have different layouts"},
      {"bounds", "cublasLtMatmul on stream 0 reads 1024 bytes out of bounds"}};
  for (const auto &[fault, text] : faults) {
    Result result = run("added", {std::string("FAULT=") + fault});
    EXPECT_EQ(result.status, faultStatus) << fault << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  }
}

TEST(Matmul, WhatIsNotThereIsRefused) {
  Result result = run("unsupported");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "the functionality is not supported\n");
  Result failing = run("products", {"MGQ_FAKE_FAIL=cublasLtMatmul:2:13"});
  EXPECT_EQ(failing.status, 1);
  EXPECT_THAT(failing.output, HasSubstr("returned 13\n"));
}
