//===- attention_test.cpp - Generated attention against sums in double ----===//

#include "passes/Kernels/FlashAttention.h"
#include "test/kernels/Jit.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

using namespace mgq::kernels;
using namespace mgq::test;

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using ForwardFn = void(const float *, const float *, const float *,
                       const void *, float *, const int64_t *);
using BackwardFn = void(const float *, const float *, const float *,
                        const float *, const float *, const void *, float *,
                        float *, float *, const int64_t *);

namespace {

struct Case {
  int64_t batch, heads, kvHeads, queries, keys, depth, valueDepth;
  AttentionKind kind;
  int64_t causalOffset = 0;
  double softcap = 0;
  bool rowsOutside = false;     ///< [batch, rows, heads, depth]
  bool maskByBatch = true;      ///< else one mask for all
  bool hideSomeQueries = false; ///< masks that leave queries without keys
  float hidden = -INFINITY;     ///< what an additive mask hides with
};

/// The functions of one family, compiled once.
struct Family {
  explicit Family(llvm::StringRef cpu) {
    context = makeContext();
    module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
    GemmBuilder gemms(*module, CpuFamily::of(cpu));
    FlashAttention attention(gemms);
    for (bool causal : {false, true})
      for (bool softcap : {false, true})
        for (MaskKind mask :
             {MaskKind::none, MaskKind::boolean, MaskKind::additive})
          for (bool byQuery : {false, true}) {
            if (byQuery && (softcap || mask == MaskKind::none))
              continue;
            if (softcap && causal)
              continue;
            attention.getForward({causal, softcap, mask, byQuery});
            attention.getBackward({causal, softcap, mask, byQuery});
          }
    jit = std::make_unique<Jit>(*module, cpu);
  }
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::unique_ptr<Jit> jit;
};

class Attention : public testing::TestWithParam<const char *> {
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
  void check(const Case &c);
  Family *family = nullptr;
};

/// Position of an element of one tensor.
struct Layout {
  int64_t heads, rows, columns;
  bool rowsOutside;
  AttentionShape::Strides strides() const {
    if (rowsOutside)
      return {rows * heads * columns, columns, heads * columns};
    return {heads * rows * columns, rows * columns, columns};
  }
  int64_t at(int64_t b, int64_t h, int64_t row, int64_t column) const {
    auto s = strides();
    return b * s[0] + h * s[1] + row * s[2] + column;
  }
};

} // namespace

void Attention::check(const Case &c) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal;
  Layout q{c.heads, c.queries, c.depth, c.rowsOutside};
  Layout k{c.kvHeads, c.keys, c.depth, c.rowsOutside};
  Layout v{c.kvHeads, c.keys, c.valueDepth, c.rowsOutside};
  Layout o{c.heads, c.queries, c.valueDepth, c.rowsOutside};
  auto random = [&](const Layout &l) {
    Floats values(c.batch * l.heads * l.rows * l.columns);
    for (float &value : values)
      value = normal(engine);
    return values;
  };
  Floats qs = random(q), ks = random(k), vs = random(v), gradOs = random(o);
  const int64_t maskKeys = c.kind.maskByQuery ? 1 : c.keys;
  const int64_t maskBatches = c.maskByBatch ? c.batch : 1;
  std::vector<uint8_t> bools(maskBatches * c.queries * maskKeys);
  Floats added(bools.size());
  for (size_t i = 0; i < bools.size(); ++i) {
    int64_t query = i / maskKeys % c.queries;
    bools[i] = engine() % 4 != 0 && !(c.hideSomeQueries && query % 5 == 2);
    added[i] = bools[i] ? normal(engine) : c.hidden;
  }

  // The definition, in double.
  Doubles expectedO(c.batch * c.heads * c.queries * c.valueDepth);
  Doubles gradQ(qs.size()), gradK(ks.size()), gradV(vs.size());
  const double scale = 1 / std::sqrt(double(c.depth));
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.queries; ++i) {
        int64_t g = h / (c.heads / c.kvHeads);
        Doubles score(c.keys, -INFINITY), slope(c.keys, 1.0);
        double top = -INFINITY, sum = 0, product = 0;
        for (int64_t j = 0; j < c.keys; ++j) {
          if (c.kind.causal && j > i + c.causalOffset)
            continue;
          double s = 0;
          for (int64_t d = 0; d < c.depth; ++d)
            s += double(qs[q.at(b, h, i, d)]) * ks[k.at(b, g, j, d)];
          s *= scale;
          if (c.kind.softcap) {
            double t = std::tanh(s / c.softcap);
            slope[j] = 1 - t * t;
            s = c.softcap * t;
          }
          int64_t at = ((c.maskByBatch ? b : 0) * c.queries + i) * maskKeys +
                       (maskKeys == 1 ? 0 : j);
          if (c.kind.mask == MaskKind::boolean && !bools[at])
            s = -INFINITY;
          if (c.kind.mask == MaskKind::additive)
            s = float(s + added[at]) == added[at] ? added[at] : s + added[at];
          score[j] = s;
          top = std::max(top, s);
        }
        if (top == -INFINITY)
          continue;
        for (double &s : score)
          sum += s = std::exp(s - top);
        for (int64_t j = 0; j < c.keys; ++j) {
          score[j] /= sum;
          for (int64_t d = 0; d < c.valueDepth; ++d)
            expectedO[o.at(b, h, i, d)] += score[j] * vs[v.at(b, g, j, d)];
        }
        for (int64_t d = 0; d < c.valueDepth; ++d)
          product += expectedO[o.at(b, h, i, d)] * gradOs[o.at(b, h, i, d)];
        for (int64_t j = 0; j < c.keys; ++j) {
          double gradP = 0;
          for (int64_t d = 0; d < c.valueDepth; ++d) {
            gradP += double(gradOs[o.at(b, h, i, d)]) * vs[v.at(b, g, j, d)];
            gradV[v.at(b, g, j, d)] += score[j] * gradOs[o.at(b, h, i, d)];
          }
          double gradS = score[j] * (gradP - product) * slope[j] * scale;
          for (int64_t d = 0; d < c.depth; ++d) {
            gradQ[q.at(b, h, i, d)] += gradS * ks[k.at(b, g, j, d)];
            gradK[k.at(b, g, j, d)] += gradS * qs[q.at(b, h, i, d)];
          }
        }
      }

  AttentionShape shape;
  shape.batch = c.batch;
  shape.heads = c.heads;
  shape.kvHeads = c.kvHeads;
  shape.queries = c.queries;
  shape.keys = c.keys;
  shape.depth = c.depth;
  shape.valueDepth = c.valueDepth;
  shape.causalOffset = c.causalOffset;
  shape.scale = scale;
  shape.softcap = c.softcap;
  shape.q = shape.gradQ = q.strides();
  shape.k = shape.gradK = k.strides();
  shape.v = shape.gradV = v.strides();
  shape.o = shape.gradO = o.strides();
  shape.mask = {c.maskByBatch ? c.queries * maskKeys : 0, 0, maskKeys};
  auto fields = shape.getFields();
  const void *mask = c.kind.mask == MaskKind::boolean
                         ? static_cast<const void *>(bools.data())
                         : added.data();

  auto close = [&](const Floats &found, const Doubles &expected, double limit,
                   const char *what) {
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      double error = std::fabs(found[i] - expected[i]);
      worst = error <= worst ? worst : error; // a NaN stays
    }
    EXPECT_LE(worst, limit) << what << " of " << c.kind.getName() << " T "
                            << c.queries << "x" << c.keys << " d " << c.depth;
  };
  auto *forward = family->jit->find<ForwardFn>(c.kind.getName());
  auto *backward = family->jit->find<BackwardFn>(c.kind.getName() + "_grad");
  std::vector<Floats> results[2];
  for (int threads : {1, 2}) {
    Jit::setThreads(threads);
    Floats os(expectedO.size(), NAN), dq(qs.size(), NAN), dk(ks.size(), NAN);
    Floats dv(vs.size(), NAN);
    forward(qs.data(), ks.data(), vs.data(), mask, os.data(), fields.data());
    backward(qs.data(), ks.data(), vs.data(), os.data(), gradOs.data(), mask,
             dq.data(), dk.data(), dv.data(), fields.data());
    results[threads - 1] = {os, dq, dk, dv};
  }
  Jit::setThreads(1);
  close(results[0][0], expectedO, 3e-6, "result");
  close(results[0][1], gradQ, 3e-5, "gradient of q");
  close(results[0][2], gradK, 3e-5, "gradient of k");
  close(results[0][3], gradV, 3e-5, "gradient of v");
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(std::memcmp(results[0][i].data(), results[1][i].data(),
                          4 * results[0][i].size()),
              0)
        << "threads change bits";
}

TEST_P(Attention, WholeBlocks) {
  check({1, 2, 2, 192, 256, 64, 64, {}});
  check({1, 2, 2, 192, 192, 64, 64, {true}});
}

TEST_P(Attention, OddSizes) {
  for (int64_t depth : {1, 5, 24, 33, 88})
    for (int64_t size : {1, 7, 100, 133}) {
      check({2, 2, 2, size, size + 3, depth, depth + 2, {}});
      check({1, 2, 2, size, size, depth, depth, {true}});
    }
}

TEST_P(Attention, CausalOffsets) {
  check({1, 1, 1, 50, 180, 16, 16, {true}, 130});
  // Queries that see no key.
  check({1, 1, 1, 180, 50, 16, 16, {true}, -130});
  check({1, 1, 1, 180, 50, 16, 16, {true}, 0});
}

TEST_P(Attention, GroupsOfHeads) {
  check({2, 6, 2, 70, 70, 32, 32, {true}});
  check({2, 4, 1, 130, 70, 32, 16, {}});
}

TEST_P(Attention, RowsOutsideHeads) {
  check({2, 3, 3, 110, 70, 24, 24, {}, 0, 0, true});
  check({2, 4, 2, 110, 110, 24, 24, {true}, 0, 0, true});
}

TEST_P(Attention, Masks) {
  for (MaskKind mask : {MaskKind::boolean, MaskKind::additive})
    for (bool causal : {false, true})
      for (bool byBatch : {false, true})
        for (bool hide : {false, true}) {
          Case c{2, 2, 2, 101, 143, 16, 16, {causal, false, mask}};
          c.maskByBatch = byBatch;
          c.hideSomeQueries = hide;
          check(c);
          c.kind.maskByQuery = true;
          check(c);
        }
}

TEST_P(Attention, LowestNumberIsNotMinusInfinity) {
  Case c{1, 2, 2, 60, 150, 16, 16, {false, false, MaskKind::additive}};
  c.hideSomeQueries = true;
  c.hidden = std::numeric_limits<float>::lowest();
  check(c);
}

TEST_P(Attention, Softcap) {
  for (MaskKind mask :
       {MaskKind::none, MaskKind::boolean, MaskKind::additive}) {
    Case c{1, 2, 1, 110, 150, 20, 20, {false, true, mask}};
    c.softcap = 1.5;
    check(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Attention,
                         testing::Values("x86-64-v3", "x86-64-v4"),
                         [](const auto &info) {
                           return std::string(info.param) == "x86-64-v3"
                                      ? "avx2"
                                      : "avx512";
                         });
