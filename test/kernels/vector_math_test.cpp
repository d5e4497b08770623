//===- vector_math_test.cpp - Own exp, exp2, tanh, erf, log2 vs double ----===//

#include "passes/Kernels/KernelBuilder.h"
#include "passes/Kernels/VectorMath.h"
#include "test/kernels/Jit.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <limits>

using namespace mgq::kernels;
using namespace mgq::test;

using Emit = mlir::Value(mlir::OpBuilder &, mlir::Location, mlir::Value);
/// f(x, y, n): y[i] = f(x[i]), n a multiple of 16.
using MapFn = void(const float *, float *, int64_t);

namespace {

struct Functions {
  explicit Functions(llvm::StringRef cpu) {
    context = makeContext();
    auto module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
    KernelBuilder kb(module, cpu == "x86-64-v4" ? 16 : 8);
    add(kb, "exp", emitExp);
    add(kb, "exp2", emitExp2);
    add(kb, "tanh", emitTanh);
    add(kb, "erf", emitErf);
    add(kb, "log2", emitLog2);
    jit = std::make_unique<Jit>(module, cpu);
  }

  /// A vector and a scalar version.
  static void add(KernelBuilder &kb, std::string name, Emit *emit) {
    for (bool vector : {true, false})
      kb.function((vector ? "v" : "s") + name, {kb.ptr(), kb.ptr(), kb.i64()},
                  [&](KernelBuilder::Vals args) {
                    mlir::Type type = vector ? mlir::Type(kb.vec()) : kb.f32();
                    kb.forLoop(kb.i(0), args[2], vector ? kb.getLanes() : 1,
                               [&](Val i) {
                                 Val x = kb.load(type, kb.at(args[0], i));
                                 Val y(kb, emit(kb.getOps(), kb.getLoc(), x));
                                 kb.store(y, kb.at(args[1], i));
                               });
                  });
  }
  std::unique_ptr<mlir::MLIRContext> context;
  std::unique_ptr<Jit> jit;
};

class VectorMath : public testing::TestWithParam<const char *> {
protected:
  void SetUp() override {
    if (!canRun(GetParam()))
      GTEST_SKIP() << "this CPU is no " << GetParam();
    functions = std::make_unique<Functions>(GetParam());
  }
  std::vector<float> run(std::string name, const std::vector<float> &x) {
    std::vector<float> vector(x.size()), scalar(x.size());
    functions->jit->find<MapFn>("v" + name)(x.data(), vector.data(), x.size());
    functions->jit->find<MapFn>("s" + name)(x.data(), scalar.data(), x.size());
    EXPECT_EQ(std::memcmp(vector.data(), scalar.data(), 4 * x.size()), 0)
        << name << " of scalars has other bits";
    return vector;
  }
  /// Largest error in units of the last place, over floats of both signs.
  void check(std::string name, double (*exact)(double), double limit,
             bool positive = false);
  std::unique_ptr<Functions> functions;
};

} // namespace

void VectorMath::check(std::string name, double (*exact)(double), double limit,
                       bool positive) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (positive ? 0x7f800000u : 0xff800000u);
       bits += 3001) {
    float value;
    uint32_t narrow = bits;
    std::memcpy(&value, &narrow, 4);
    if (std::isfinite(value) && (!positive || std::isnormal(value)))
      x.push_back(value);
  }
  x.resize(x.size() / 16 * 16);
  std::vector<float> y = run(name, x);
  double worst = 0;
  float worstAt = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double expected = exact(x[i]);
    if (std::fabs(expected) > std::numeric_limits<float>::max()) {
      EXPECT_EQ(y[i], INFINITY) << name << " " << x[i];
      continue;
    }
    if (std::fabs(expected) < std::numeric_limits<float>::min()) {
      EXPECT_LE(std::fabs(y[i]), std::numeric_limits<float>::min())
          << name << " " << x[i];
      continue;
    }
    double unit = std::ldexp(1.0, std::ilogb(expected) - 23);
    double error = std::fabs(y[i] - expected) / unit;
    if (!(error <= worst)) {
      worst = error;
      worstAt = x[i];
    }
  }
  EXPECT_LE(worst, limit) << name << " at " << worstAt;
}

TEST_P(VectorMath, Exp) { check("exp", std::exp, 0.95); }
TEST_P(VectorMath, Exp2) { check("exp2", std::exp2, 0.95); }
TEST_P(VectorMath, Tanh) { check("tanh", std::tanh, 1.8); }
TEST_P(VectorMath, Erf) { check("erf", std::erf, 1.1); }
// Near 1 the result is small and the error absolute; elsewhere it is rounding.
TEST_P(VectorMath, Log2) { check("log2", std::log2, 3, true); }

TEST_P(VectorMath, Edges) {
  std::vector<float> x(16, NAN);
  x[1] = INFINITY;
  x[2] = -INFINITY;
  x[3] = 0;
  for (const char *name : {"exp", "exp2"}) {
    auto y = run(name, x);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], INFINITY);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 1);
  }
  for (const char *name : {"tanh", "erf"}) {
    auto y = run(name, x);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], -1);
    EXPECT_EQ(y[3], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, VectorMath,
                         testing::Values("x86-64-v3", "x86-64-v4"),
                         [](const auto &info) {
                           return std::string(info.param) == "x86-64-v3"
                                      ? "avx2"
                                      : "avx512";
                         });
