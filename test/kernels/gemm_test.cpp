//===- gemm_test.cpp - Generated matrix products against a chain of FMAs --===//
//
// An element of a product is one chain of FMAs over ascending k, so results
// are compared bit by bit with that chain in plain C++; the chain itself is
// compared with a sum in double.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Gemm.h"
#include "test/kernels/Jit.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <random>

using namespace mgq::kernels;
using namespace mgq::test;

using Floats = std::vector<float>;
using GemmFn = void(const float *, const float *, float *, const int64_t *);
using PackFn = void(const float *, float *, const int64_t *);

static Floats random(int64_t size, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats values(size);
  for (float &value : values)
    value = uniform(engine);
  return values;
}

namespace {

/// The functions of one family, compiled once.
struct Family {
  explicit Family(llvm::StringRef cpu) : family(CpuFamily::of(cpu)) {
    context = makeContext();
    module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
    GemmBuilder builder(*module, family);
    for (bool transposedA : {false, true})
      for (BLayout layout :
           {BLayout::rows, BLayout::transposed, BLayout::packed})
        builder.getGemm(transposedA, layout);
    builder.getPackB(false, Stored::f32, Stored::f32);
    builder.getPackB(true, Stored::f32, Stored::f32);
    jit = std::make_unique<Jit>(*module, cpu);
  }
  CpuFamily family;
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::unique_ptr<Jit> jit;
};

struct Case {
  int64_t m, n, k, batch = 1;
  bool sharedB = false;
  int64_t gap = 0; ///< unused elements at the end of a row
  int64_t chunkM = 0, chunkN = 0;
};

class Gemm : public testing::TestWithParam<const char *> {
protected:
  void SetUp() override {
    if (!canRun(GetParam()))
      GTEST_SKIP() << "this CPU is no " << GetParam();
    static std::map<std::string, std::unique_ptr<Family>> families;
    auto &entry = families[GetParam()];
    if (!entry)
      entry = std::make_unique<Family>(GetParam());
    family = entry.get();
  }
  void check(const Case &c, bool transposedA, BLayout layout);
  void checkAll(const Case &c) {
    for (bool transposedA : {false, true})
      for (BLayout layout :
           {BLayout::rows, BLayout::transposed, BLayout::packed})
        check(c, transposedA, layout);
  }
  Family *family = nullptr;
};

} // namespace

void Gemm::check(const Case &c, bool transposedA, BLayout layout) {
  bool transposedB = layout == BLayout::transposed;
  GemmShape shape;
  shape.m = c.m;
  shape.n = c.n;
  shape.k = c.k;
  shape.batch = c.batch;
  shape.lda = (transposedA ? c.m : c.k) + c.gap;
  shape.ldb = (transposedB ? c.k : c.n) + c.gap;
  shape.ldc = c.n + c.gap;
  // Sizes without the gap after the last row, so that reading it is an error.
  int64_t sizeA =
      ((transposedA ? c.k : c.m) - 1) * shape.lda + (transposedA ? c.m : c.k);
  int64_t sizeB =
      ((transposedB ? c.n : c.k) - 1) * shape.ldb + (transposedB ? c.k : c.n);
  sizeA = std::max<int64_t>(sizeA, 0);
  sizeB = std::max<int64_t>(sizeB, 0);
  int64_t sizeC = (c.m - 1) * shape.ldc + c.n;
  shape.strideA = sizeA;
  shape.strideB = c.sharedB ? 0 : sizeB;
  shape.strideC = c.m * shape.ldc;
  shape.chooseChunks(family->family, transposedA, layout);
  if (c.chunkM)
    shape.chunkM = c.chunkM;
  if (c.chunkN)
    shape.chunkN = c.chunkN;

  Floats a = random(sizeA * c.batch, 1);
  Floats b = random(sizeB * (c.sharedB ? 1 : c.batch), 2);
  auto at = [](const Floats &x, int64_t base, bool transposed, int64_t ld,
               int64_t row, int64_t column) {
    return x[base + (transposed ? column * ld + row : row * ld + column)];
  };
  Floats expected((c.batch - 1) * shape.strideC + sizeC, 7.0f);
  Floats found = expected;
  for (int64_t i = 0; i < c.batch; ++i)
    for (int64_t row = 0; row < c.m; ++row)
      for (int64_t column = 0; column < c.n; ++column) {
        float sum = 0;
        double exact = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          float x = at(a, i * sizeA, transposedA, shape.lda, row, k);
          float y = at(b, i * shape.strideB, transposedB, shape.ldb, k, column);
          sum = std::fma(x, y, sum);
          exact += double(x) * y;
        }
        EXPECT_NEAR(sum, exact, 1e-6 * (c.k + 1));
        expected[i * shape.strideC + row * shape.ldc + column] = sum;
      }

  static const char *const kNames[2][3] = {
      {"mgq_gemm_nn", "mgq_gemm_nt", "mgq_gemm_np"},
      {"mgq_gemm_tn", "mgq_gemm_tt", "mgq_gemm_tp"}};
  const char *name = kNames[transposedA][int(layout)];
  auto *gemm = family->jit->find<GemmFn>(name);
  auto run = [&](const Floats &b, const GemmShape &shape, const char *what) {
    auto fields = shape.getFields();
    std::fill(found.begin(), found.end(), 7.0f);
    gemm(a.data(), b.data(), found.data(), fields.data());
    ASSERT_EQ(std::memcmp(found.data(), expected.data(), 4 * found.size()), 0)
        << name << what << " m " << c.m << " n " << c.n << " k " << c.k
        << " batch " << c.batch << " gap " << c.gap;
  };
  if (layout != BLayout::packed) {
    run(b, shape, "");
    return;
  }
  // Packed from [k][n]; and from [n][k] with the same elements.
  GemmBuilder sizes(*family->module, family->family);
  int64_t packedSize = sizes.getPackedSize(c.n, c.k, Stored::f32);
  int64_t items = c.sharedB ? 1 : c.batch;
  shape.strideB = c.sharedB ? 0 : packedSize;
  for (bool transposed : {false, true}) {
    Floats packed(packedSize * items, NAN);
    auto *pack =
        family->jit->find<PackFn>(transposed ? "mgq_pack_b_t" : "mgq_pack_b_n");
    for (int64_t i = 0; i < items; ++i) {
      if (!transposed) {
        const int64_t packSizes[] = {c.n, c.k, shape.ldb};
        pack(b.data() + i * sizeB, packed.data() + i * packedSize, packSizes);
        continue;
      }
      Floats other(c.n * c.k);
      for (int64_t k = 0; k < c.k; ++k)
        for (int64_t n = 0; n < c.n; ++n)
          other[n * c.k + k] = b[i * sizeB + k * shape.ldb + n];
      const int64_t packSizes[] = {c.n, c.k, c.k};
      pack(other.data(), packed.data() + i * packedSize, packSizes);
    }
    for (float value : packed)
      ASSERT_FALSE(std::isnan(value));
    run(packed, shape, transposed ? " (from [n][k])" : " (from [k][n])");
  }
}

TEST_P(Gemm, SmallSizes) {
  for (int64_t m : {1, 2, 7, 13})
    for (int64_t n : {1, 5, 8, 16, 17, 31, 33})
      for (int64_t k : {1, 3, 8, 19})
        checkAll({m, n, k});
}

TEST_P(Gemm, ZeroDepthWritesZeros) { checkAll({3, 20, 0}); }

TEST_P(Gemm, SeveralBlocksOfDepthRowsAndColumns) {
  checkAll({37, 70, 800});
  checkAll({530, 40, 40});
  checkAll({270, 260, 30});
}

TEST_P(Gemm, LoraShapes) {
  checkAll({150, 8, 300});
  checkAll({150, 300, 8});
  checkAll({8, 300, 150});
}

TEST_P(Gemm, RowsFurtherApart) {
  checkAll({23, 45, 50, 1, false, 3});
  checkAll({1, 100, 17, 2, false, 5});
}

TEST_P(Gemm, Batches) {
  checkAll({9, 33, 20, 5});
  checkAll({9, 33, 20, 5, true});
}

TEST_P(Gemm, ChunksChangeNothing) {
  for (int64_t chunkM : {5, 24, 200})
    for (int64_t chunkN : {32, 96, 200})
      checkAll({50, 150, 40, 2, false, 0, chunkM, chunkN});
}

TEST_P(Gemm, ThreadsChangeNothing) {
  Jit::setThreads(3);
  checkAll({140, 200, 300, 2});
  Jit::setThreads(1);
}

INSTANTIATE_TEST_SUITE_P(Cpu, Gemm, testing::Values("x86-64-v3", "x86-64-v4"),
                         [](const auto &info) {
                           return std::string(info.param) == "x86-64-v3"
                                      ? "avx2"
                                      : "avx512";
                         });
