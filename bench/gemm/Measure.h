//===- Measure.h - Time, FMA peak and buffers of benchmarks ---------------===//
#ifndef MGQ_BENCH_GEMM_MEASURE_H
#define MGQ_BENCH_GEMM_MEASURE_H

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>

namespace mgq::bench {

inline double threadTime() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/// The shortest of enough runs to take `seconds`.
inline double best(const std::function<void()> &run, double seconds) {
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
inline double peak(bool wide) {
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

inline float *buffer(int64_t size) {
  int64_t bytes = (4 * size + (1 << 21)) & ~((int64_t(1) << 21) - 1);
  auto *data = static_cast<float *>(std::aligned_alloc(1 << 21, bytes));
  for (int64_t i = 0; i < bytes / 4; ++i)
    data[i] = float(std::rand() % 1000) * 1e-3f - 0.5f;
  return data;
}

#undef FMA
#undef FMAS
#undef CLOBBERS

} // namespace mgq::bench

#endif // MGQ_BENCH_GEMM_MEASURE_H
