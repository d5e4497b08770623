//===- gemm_bench.cpp - Speed of generated matrix products ----------------===//
//
// gemm_bench [x86-64-v3|x86-64-v4] [M N K]...: GFLOP/s of one thread, in thread
// CPU time, best of repeats, as a share of the FMA peak measured beside it.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Gemm.h"
#include "test/kernels/Jit.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

using namespace mgq::kernels;
using namespace mgq::test;

using GemmFn = void(const float *, const float *, float *, const int64_t *);
using PackFn = void(const float *, float *, int64_t, int64_t, int64_t);

static double threadTime() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/// The shortest of enough runs to take `seconds`.
static double best(const std::function<void()> &run, double seconds) {
  run();
  double shortest = 1e9, total = 0;
  for (int i = 0; i < 4 || total < seconds; ++i) {
    double start = threadTime();
    run();
    double time = threadTime() - start;
    shortest = std::min(shortest, time);
    total += time;
  }
  return shortest;
}

#define FMA(z, r) "vfmadd231ps %%" z "14,%%" z "15,%%" z #r "\n"
#define FMAS(z)                                                                \
  FMA(z, 0)                                                                    \
  FMA(z, 1)                                                                    \
  FMA(z, 2)                                                                    \
  FMA(z, 3)                                                                    \
  FMA(z, 4)                                                                    \
  FMA(z, 5) FMA(z, 6) FMA(z, 7) FMA(z, 8) FMA(z, 9) FMA(z, 10) FMA(z, 11)
#define CLOBBERS                                                               \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",      \
      "xmm9", "xmm10", "xmm11"

/// GFLOP/s of independent FMAs in registers.
static double peak(bool wide) {
  constexpr long kSteps = 2000000;
  double time = best(
      [&] {
        long n = kSteps;
        if (wide)
          asm volatile("1:\n" FMAS("zmm") "dec %0\n jnz 1b\n"
                       : "+r"(n)::CLOBBERS);
        else
          asm volatile("1:\n" FMAS("ymm") "dec %0\n jnz 1b\n"
                       : "+r"(n)::CLOBBERS);
      },
      0.1);
  return 1e-9 * kSteps * 12 * 2 * (wide ? 16 : 8) / time;
}

static float *buffer(int64_t size) {
  int64_t bytes = (4 * size + (1 << 21)) & ~((int64_t(1) << 21) - 1);
  auto *data = static_cast<float *>(std::aligned_alloc(1 << 21, bytes));
  for (int64_t i = 0; i < bytes / 4; ++i)
    data[i] = float(std::rand() % 1000) * 1e-3f - 0.5f;
  return data;
}

int main(int argc, char **argv) {
  std::string cpu = canRun("x86-64-v4") ? "x86-64-v4" : "x86-64-v3";
  int next = 1;
  if (argc > 1 && std::strncmp(argv[1], "x86", 3) == 0)
    cpu = argv[next++];
  CpuFamily family = CpuFamily::of(cpu);
  auto context = makeContext();
  auto module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
  GemmBuilder builder(module, family);
  for (BLayout layout : {BLayout::rows, BLayout::transposed, BLayout::packed})
    for (bool transposedA : {false, true})
      builder.getGemm(transposedA, layout);
  builder.getPackB(false);
  Jit jit(module, cpu);
  double top = peak(cpu == "x86-64-v4");
  std::printf("%s, FMA peak %.1f GFLOP/s\n%-18s %14s %14s %14s %14s %14s\n",
              cpu.c_str(), top, "M x N x K", "packed", "NN", "NT", "TN", "TT");

  std::vector<std::array<int64_t, 3>> sizes;
  for (; next + 2 < argc; next += 3)
    sizes.push_back({std::atol(argv[next]), std::atol(argv[next + 1]),
                     std::atol(argv[next + 2])});
  if (sizes.empty())
    sizes = {{256, 768, 768},    {256, 2048, 768},  {256, 768, 2048},
             {1024, 1024, 1024}, {1024, 768, 2048}, {256, 4096, 4096},
             {64, 768, 768},     {37, 768, 768},    {250, 768, 768},
             {7, 768, 768},      {1, 768, 768},     {1024, 8, 2048},
             {1024, 2048, 8},    {8, 2048, 1024},   {128, 128, 64},
             {32, 32, 32}};
  struct Variant {
    const char *name;
    bool transposedA;
    BLayout layout;
  };
  const Variant variants[] = {{"mgq_gemm_np", false, BLayout::packed},
                              {"mgq_gemm_nn", false, BLayout::rows},
                              {"mgq_gemm_nt", false, BLayout::transposed},
                              {"mgq_gemm_tn", true, BLayout::rows},
                              {"mgq_gemm_tt", true, BLayout::transposed}};
  for (auto [m, n, k] : sizes) {
    std::printf("%5ldx%5ldx%5ld ", long(m), long(n), long(k));
    float *a = buffer(m * k), *b = buffer(n * k), *c = buffer(m * n);
    float *packed = buffer(builder.getPackedSize(n, k));
    jit.find<PackFn>("mgq_pack_b_n")(b, packed, n, k, n);
    for (const Variant &variant : variants) {
      GemmShape shape;
      shape.m = m;
      shape.n = n;
      shape.k = k;
      shape.lda = variant.transposedA ? m : k;
      shape.ldb = variant.layout == BLayout::transposed ? k : n;
      shape.ldc = n;
      shape.chooseChunks(family, variant.layout == BLayout::packed);
      auto fields = shape.getFields();
      auto *gemm = jit.find<GemmFn>(variant.name);
      const float *right = variant.layout == BLayout::packed ? packed : b;
      int64_t repeats = std::max<int64_t>(1, 1000000 / (m * n * k));
      double time = best(
          [&] {
            for (int64_t i = 0; i < repeats; ++i)
              gemm(a, right, c, fields.data());
          },
          0.15);
      double speed = 2e-9 * m * n * k * repeats / time;
      std::printf(" %7.1f (%3.0f%%)", speed, 100 * speed / top);
    }
    std::printf("\n");
    for (float *data : {a, b, c, packed})
      std::free(data);
  }
  return 0;
}
