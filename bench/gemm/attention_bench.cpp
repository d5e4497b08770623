//===- attention_bench.cpp - Speed of generated attention -----------------===//
//
// attention_bench [x86-64-v3|x86-64-v4]: one thread, GFLOP/s counting what is
// visible (2 products forward, 5 backward), best of repeats.
//
//===----------------------------------------------------------------------===//

#include "bench/gemm/Measure.h"
#include "passes/Kernels/FlashAttention.h"
#include "test/kernels/Jit.h"

#include <cmath>
#include <cstdio>

using namespace mgq::kernels;
using namespace mgq::test;

using ForwardFn = void(const float *, const float *, const float *,
                       const void *, float *, const int64_t *);
using BackwardFn = void(const float *, const float *, const float *,
                        const float *, const float *, const void *, float *,
                        float *, float *, const int64_t *);

int main(int argc, char **argv) {
  std::string cpu = argc > 1              ? argv[1]
                    : canRun("x86-64-v4") ? "x86-64-v4"
                                          : "x86-64-v3";
  auto context = makeContext();
  auto module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
  GemmBuilder gemms(module, CpuFamily::of(cpu));
  FlashAttention attention(gemms);
  for (bool causal : {false, true}) {
    attention.getForward({causal});
    attention.getBackward({causal});
  }
  Jit jit(module, cpu);
  double top = mgq::bench::peak(cpu == "x86-64-v4");
  std::printf("%s, FMA peak %.1f GFLOP/s\n", cpu.c_str(), top);
  struct Size {
    int64_t heads, length, depth;
    bool causal;
  };
  for (auto [heads, length, depth, causal] :
       {Size{1, 256, 64, true}, Size{1, 512, 128, true},
        Size{1, 2048, 64, true}, Size{4, 257, 88, false},
        Size{12, 32, 64, false}, Size{4, 512, 128, false}}) {
    int64_t size = heads * length * depth;
    float *data[8];
    for (float *&tensor : data)
      tensor = mgq::bench::buffer(size);
    AttentionShape shape;
    shape.heads = shape.kvHeads = heads;
    shape.queries = shape.keys = length;
    shape.depth = shape.valueDepth = depth;
    shape.scale = 1 / std::sqrt(double(depth));
    AttentionShape::Strides strides = {size, length * depth, depth};
    for (auto *s : {&shape.q, &shape.k, &shape.v, &shape.o, &shape.gradO,
                    &shape.gradQ, &shape.gradK, &shape.gradV})
      *s = strides;
    auto fields = shape.getFields();
    AttentionKind kind{causal};
    auto *forward = jit.find<ForwardFn>(kind.getName());
    auto *backward = jit.find<BackwardFn>(kind.getName() + "_grad");
    double product = 2e-9 * size * (causal ? 0.5 * (length + 1) : length);
    double timeForward = mgq::bench::best(
        [&] {
          forward(data[0], data[1], data[2], nullptr, data[3], fields.data());
        },
        0.3);
    double timeBackward = mgq::bench::best(
        [&] {
          backward(data[0], data[1], data[2], data[3], data[4], nullptr,
                   data[5], data[6], data[7], fields.data());
        },
        0.3);
    std::printf("heads %2ld T %4ld d %3ld %s forward %8.1f us %6.1f (%2.0f%%) "
                "backward %8.1f us %6.1f (%2.0f%%)\n",
                long(heads), long(length), long(depth),
                causal ? "causal" : "full  ", 1e6 * timeForward,
                2 * product / timeForward, 200 * product / timeForward / top,
                1e6 * timeBackward, 5 * product / timeBackward,
                500 * product / timeBackward / top);
    for (float *tensor : data)
      std::free(tensor);
  }
  return 0;
}
