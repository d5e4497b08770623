//===- gemm_stored_test.cpp - Products of operands stored as bf16 or f16 --===//
//
// Widening is exact, so a product of narrow operands has the bits of the one of
// the same operands in f32, which gemm_test proves right. Where a CPU has units
// for bf16, a product of two such operands has the bits of one chain of their
// instruction over pairs of k.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Gemm.h"
#include "test/kernels/Jit.h"

#include "llvm/ADT/APFloat.h"
#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>
#include <map>
#include <random>

using namespace mgq::kernels;
using namespace mgq::test;

using GemmFn = void(const void *, const void *, float *, const int64_t *);
using PackFn = void(const void *, void *, const int64_t *);

namespace {

/// A matrix as it is stored and as f32.
struct Operand {
  Stored stored;
  std::vector<uint16_t> narrow;
  std::vector<float> wide;

  Operand(Stored stored, int64_t size, unsigned seed)
      : stored(stored), narrow(size), wide(size) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < size; ++i) {
      wide[i] = uniform(engine);
      if (stored == Stored::f32)
        continue;
      bool loses;
      llvm::APFloat value(wide[i]);
      value.convert(stored == Stored::bf16 ? llvm::APFloat::BFloat()
                                           : llvm::APFloat::IEEEhalf(),
                    llvm::APFloat::rmNearestTiesToEven, &loses);
      narrow[i] = value.bitcastToAPInt().getZExtValue();
      wide[i] = value.convertToFloat();
    }
  }
  const void *data() const {
    return stored == Stored::f32 ? static_cast<const void *>(wide.data())
                                 : narrow.data();
  }
};

const std::pair<Stored, Stored> kTypes[] = {{Stored::f32, Stored::bf16},
                                            {Stored::f32, Stored::f16},
                                            {Stored::bf16, Stored::f32},
                                            {Stored::f16, Stored::f32},
                                            {Stored::bf16, Stored::bf16}};

const char *nameOf(Stored stored) {
  return stored == Stored::f32 ? "" : stored == Stored::bf16 ? "bf16" : "f16";
}

std::string gemmName(bool transposedA, BLayout layout, Stored a, Stored b) {
  std::string name = "mgq_gemm_";
  name += transposedA ? 't' : 'n';
  name += layout == BLayout::rows         ? 'n'
          : layout == BLayout::transposed ? 't'
                                          : 'p';
  if (a != Stored::f32)
    name += std::string("_a_") + nameOf(a);
  if (b != Stored::f32)
    name += std::string("_b_") + nameOf(b);
  return name;
}

const BLayout kLayouts[] = {BLayout::rows, BLayout::transposed,
                            BLayout::packed};

/// The functions of one family, compiled once.
struct Family {
  explicit Family(llvm::StringRef cpu) : family(CpuFamily::of(cpu)) {
    context = makeContext();
    module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
    GemmBuilder builder(*module, family);
    for (bool transposedA : {false, true})
      for (BLayout layout : kLayouts) {
        builder.getGemm(transposedA, layout);
        for (auto [a, b] : kTypes)
          builder.getGemm(transposedA, layout, a, b);
      }
    for (bool transposedB : {false, true})
      for (Stored stored : {Stored::bf16, Stored::f16})
        builder.getPackB(transposedB, stored, stored);
    jit = std::make_unique<Jit>(*module, cpu);
  }
  CpuFamily family;
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::unique_ptr<Jit> jit;
};

class GemmStored : public testing::TestWithParam<const char *> {
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
  void check(int64_t m, int64_t n, int64_t k, bool transposedA, BLayout layout,
             Stored storedA, Stored storedB);
  void checkAll(int64_t m, int64_t n, int64_t k) {
    for (auto [a, b] : kTypes)
      for (bool transposedA : {false, true})
        for (BLayout layout : kLayouts)
          // What is packed is a weight; those of f32 are gemm_test's.
          if (layout != BLayout::packed || b != Stored::f32)
            check(m, n, k, transposedA, layout, a, b);
  }
  std::vector<uint16_t> pack(const Operand &b, bool transposed, int64_t n,
                             int64_t k, int64_t ldb);
  Family *family = nullptr;
};

} // namespace

/// Element (row, column) of A B by the CPU's units: A and B are bf16 with
/// strides of rows and of k, of columns and of k.
__attribute__((target("avx512f,avx512bf16"))) static float
chainOfPairs(const uint16_t *a, int64_t strideA, const uint16_t *b,
             int64_t strideB, int64_t k) {
  __m512 sum = _mm512_setzero_ps();
  auto pairAt = [&](const uint16_t *x, int64_t stride, int64_t i) {
    uint32_t high = i + 1 < k ? x[(i + 1) * stride] : 0;
    return int32_t(high << 16 | x[i * stride]);
  };
  for (int64_t i = 0; i < k; i += 2) {
    __m512i pairA = _mm512_set1_epi32(pairAt(a, strideA, i));
    __m512i pairB = _mm512_set1_epi32(pairAt(b, strideB, i));
    sum = _mm512_dpbf16_ps(sum, (__m512bh)pairA, (__m512bh)pairB);
  }
  return _mm512_cvtss_f32(sum);
}

/// Panels of B, in a buffer that held none-zeros.
std::vector<uint16_t> GemmStored::pack(const Operand &b, bool transposed,
                                       int64_t n, int64_t k, int64_t ldb) {
  int64_t size = GemmBuilder(*family->module, family->family)
                     .getPackedSize(n, k, b.stored);
  std::vector<uint16_t> panels(size, 0x7fff); // NaN in both types
  std::string name = std::string("mgq_pack_b_") + (transposed ? "t_" : "n_") +
                     nameOf(b.stored);
  const int64_t sizes[] = {n, k, ldb};
  family->jit->find<PackFn>(name)(b.data(), panels.data(), sizes);
  for (uint16_t value : panels)
    EXPECT_NE(value, 0x7fff) << name;
  return panels;
}

void GemmStored::check(int64_t m, int64_t n, int64_t k, bool transposedA,
                       BLayout layout, Stored storedA, Stored storedB) {
  constexpr int64_t kGap = 3; // unused elements at the end of a row
  // Packing reads both orientations.
  for (bool transposedB : {false, true}) {
    if (layout != BLayout::packed &&
        transposedB != (layout == BLayout::transposed))
      continue;
    GemmShape shape;
    shape.m = m;
    shape.n = n;
    shape.k = k;
    shape.lda = (transposedA ? m : k) + kGap;
    shape.ldb = (transposedB ? k : n) + kGap;
    shape.ldc = n + kGap;
    // Nothing after the last row: reading it is an error.
    int64_t sizeA = (transposedA ? k : m) * shape.lda - kGap;
    int64_t sizeB = (transposedB ? n : k) * shape.ldb - kGap;
    Operand a(storedA, sizeA, 1), b(storedB, sizeB, 2);
    std::vector<float> expected(m * shape.ldc, 7), found(m * shape.ldc, 7);

    BLayout plain = transposedB ? BLayout::transposed : BLayout::rows;
    shape.chooseChunks(family->family, transposedA, plain);
    auto fields = shape.getFields();
    auto *reference = family->jit->find<GemmFn>(
        gemmName(transposedA, plain, Stored::f32, Stored::f32));
    reference(a.wide.data(), b.wide.data(), expected.data(), fields.data());
    if (family->family.hasBf16Units && storedA == Stored::bf16 &&
        storedB == Stored::bf16)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          expected[i * shape.ldc + j] =
              chainOfPairs(&a.narrow[transposedA ? i : i * shape.lda],
                           transposedA ? shape.lda : 1,
                           &b.narrow[transposedB ? j * shape.ldb : j],
                           transposedB ? 1 : shape.ldb, k);

    std::string name = gemmName(transposedA, layout, storedA, storedB);
    shape.chooseChunks(family->family, transposedA, layout);
    fields = shape.getFields();
    std::vector<uint16_t> panels;
    if (layout == BLayout::packed)
      panels = pack(b, transposedB, n, k, shape.ldb);
    family->jit->find<GemmFn>(name)(
        a.data(), layout == BLayout::packed ? panels.data() : b.data(),
        found.data(), fields.data());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), 4 * found.size()), 0)
        << name << " m " << m << " n " << n << " k " << k;
  }
}

// Tiles of all heights, edges of panels of all widths.
TEST_P(GemmStored, SmallSizes) {
  for (int64_t m : {1, 2, 7, 13})
    for (int64_t n : {1, 5, 8, 16, 17, 31, 33})
      for (int64_t k : {1, 3, 19})
        checkAll(m, n, k);
}

// Sums continue through C over blocks of k; A's copy is made block by block.
TEST_P(GemmStored, SeveralBlocks) {
  checkAll(37, 70, 800);
  checkAll(270, 260, 30);
  checkAll(150, 8, 300);
}

// Work is cut by shape only.
TEST_P(GemmStored, ThreadsChangeNothing) {
  Jit::setThreads(3);
  checkAll(140, 200, 300);
  Jit::setThreads(1);
}

INSTANTIATE_TEST_SUITE_P(Cpu, GemmStored,
                         testing::Values("x86-64-v3", "x86-64-v4",
                                         "x86-64-v4-bf16"),
                         [](const auto &info) {
                           std::string cpu = info.param;
                           return cpu == "x86-64-v3"   ? "avx2"
                                  : cpu == "x86-64-v4" ? "avx512"
                                                       : "avx512_bf16";
                         });
