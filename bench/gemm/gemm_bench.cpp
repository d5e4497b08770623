//===- gemm_bench.cpp - Speed of generated matrix products ----------------===//
//
// gemm_bench [x86-64-v3|x86-64-v4|x86-64-v4-bf16] [M N K]...: GFLOP/s of one
// thread, in thread CPU time, best of repeats, as a share of the FMA peak
// measured beside it.
//
//===----------------------------------------------------------------------===//

#include "bench/gemm/Measure.h"
#include "passes/Kernels/Gemm.h"
#include "test/kernels/Jit.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace mgq::kernels;
using namespace mgq::bench;
using namespace mgq::test;

using GemmFn = void(const float *, const void *, float *, const int64_t *);
using PackFn = void(const void *, void *, const int64_t *);

/// Panels of a matrix [k][n] of a type. Values hardly matter: they are in
/// [1, 2) for f16, those of `b` for others.
static float *packAs(Stored stored, const float *b, int64_t n, int64_t k,
                     GemmBuilder &builder, Jit &jit) {
  float *panels = buffer(builder.getPackedSize(n, k, stored));
  const int64_t sizes[] = {n, k, n};
  std::string name = "mgq_pack_b_n" + suffixOf(stored);
  if (stored == Stored::f32) {
    jit.find<PackFn>(name)(b, panels, sizes);
    return panels;
  }
  std::vector<uint16_t> narrow(n * k);
  for (int64_t i = 0; i < n * k; ++i) {
    uint32_t bits;
    std::memcpy(&bits, b + i, 4);
    narrow[i] = stored == Stored::bf16 ? bits >> 16 : 0x3c00 | (i & 0x3ff);
  }
  jit.find<PackFn>(name)(narrow.data(), panels, sizes);
  return panels;
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
  for (Stored stored : {Stored::f32, Stored::bf16, Stored::f16}) {
    builder.getPackB(false, stored, stored);
    builder.getGemm(false, BLayout::packed, Stored::f32, stored);
  }
  builder.getGemm(false, BLayout::packed, Stored::bf16, Stored::bf16);
  Jit jit(module, cpu);
  double top = peak(family.lanes == 16);
  std::printf("%s, FMA peak %.1f GFLOP/s\n%-18s", cpu.c_str(), top,
              "M x N x K");
  for (const char *column : {"packed", "packed bf16", "packed f16", "both bf16",
                             "NN", "NT", "TN", "TT"})
    std::printf(" %14s", column);
  std::printf("\n");

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
    Stored stored = Stored::f32;
  };
  const Variant variants[] = {
      {"mgq_gemm_np", false, BLayout::packed},
      {"mgq_gemm_np_b_bf16", false, BLayout::packed, Stored::bf16},
      {"mgq_gemm_np_b_f16", false, BLayout::packed, Stored::f16},
      {"mgq_gemm_np_a_bf16_b_bf16", false, BLayout::packed, Stored::bf16},
      {"mgq_gemm_nn", false, BLayout::rows},
      {"mgq_gemm_nt", false, BLayout::transposed},
      {"mgq_gemm_tn", true, BLayout::rows},
      {"mgq_gemm_tt", true, BLayout::transposed}};
  for (auto [m, n, k] : sizes) {
    std::printf("%5ldx%5ldx%5ld ", long(m), long(n), long(k));
    float *a = buffer(m * k), *b = buffer(n * k), *c = buffer(m * n);
    for (const Variant &variant : variants) {
      GemmShape shape;
      shape.m = m;
      shape.n = n;
      shape.k = k;
      shape.lda = variant.transposedA ? m : k;
      shape.ldb = variant.layout == BLayout::transposed ? k : n;
      shape.ldc = n;
      shape.chooseChunks(family, variant.transposedA, variant.layout);
      auto fields = shape.getFields();
      auto *gemm = jit.find<GemmFn>(variant.name);
      bool isPacked = variant.layout == BLayout::packed;
      float *right =
          isPacked ? packAs(variant.stored, b, n, k, builder, jit) : b;
      int64_t repeats = std::max<int64_t>(1, 1000000 / (m * n * k));
      double time = best(
          [&] {
            for (int64_t i = 0; i < repeats; ++i)
              gemm(a, right, c, fields.data());
          },
          0.15);
      double speed = 2e-9 * m * n * k * repeats / time;
      std::printf(" %7.1f (%3.0f%%)", speed, 100 * speed / top);
      if (isPacked)
        std::free(right);
    }
    std::printf("\n");
    for (float *data : {a, b, c})
      std::free(data);
  }
  return 0;
}
