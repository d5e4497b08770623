//===- TrainTest.cpp - @train against finite differences of @model --------===//
//
// Then @train with weight gradients split off against @train without: the same
// results, bit by bit.
//

#include "dialects/NN/Interpreter/Interpreter.h"
#include "passes/NN/Passes.h"

#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"

#include <gtest/gtest.h>

#include <random>

using namespace mlir;
using namespace mgq::nn;

namespace {

class TrainTest : public testing::TestWithParam<Recompute> {
protected:
  void SetUp() override {
    context.loadDialect<NNDialect, func::FuncDialect>();
    module = differentiated(SplitWeights::Never);
    ASSERT_TRUE(module);
    model = module->lookupSymbol<func::FuncOp>("model");
    train = module->lookupSymbol<func::FuncOp>("train");
    for (auto param : module->getOps<ParamOp>())
      parameters[param.getSymName()] = randomTensor(param.getType());
    for (Type type : model.getArgumentTypes())
      inputs.push_back(randomTensor(type));
  }

  /// The model with @train; null on failure.
  OwningOpRef<ModuleOp> differentiated(SplitWeights split) {
    auto parsed = parseSourceFile<ModuleOp>(
        std::string(MGQ_GRADIENT_CASES) + "/train.mlir", &context);
    PassManager manager(&context);
    DifferentiatePassOptions options;
    options.recompute = GetParam();
    options.splitWeights = split;
    manager.addPass(createDifferentiatePass(options));
    manager.addPass(createCheckDifferentiatedPass());
    if (!parsed || failed(manager.run(*parsed)))
      return nullptr;
    return parsed;
  }

  Tensor randomTensor(Type type) {
    Tensor tensor(cast<RankedTensorType>(type));
    std::uniform_real_distribution<double> real(-1.0, 1.0);
    std::uniform_int_distribution<int64_t> whole(0, 6);
    for (Number &value : tensor.data)
      if (tensor.isFloat())
        value.real = real(engine);
      else
        value.whole = whole(engine);
    return tensor;
  }

  double loss() {
    auto results = interpret(model, inputs, parameters);
    EXPECT_TRUE(succeeded(results));
    return (*results)[0].data[0].real;
  }

  /// Results of a @train for a seed.
  FailureOr<SmallVector<Tensor>> run(func::FuncOp function, double seedValue) {
    SmallVector<Tensor> operands(inputs);
    Tensor seed(cast<RankedTensorType>(function.getArgumentTypes().back()));
    seed.data[0].real = seedValue;
    operands.push_back(seed);
    return interpret(function, operands, parameters);
  }

  /// Sums of @train's gradients by parameter, for a seed.
  llvm::StringMap<Tensor> gradients(double seedValue) {
    auto results = run(train, seedValue);
    EXPECT_TRUE(succeeded(results));
    llvm::StringMap<Tensor> sums;
    for (auto [i, tensor] : llvm::enumerate(*results)) {
      auto name =
          train.getResultAttrOfType<FlatSymbolRefAttr>(i, kGradientAttr);
      if (!name)
        continue;
      auto [entry, isNew] = sums.try_emplace(name.getValue(), tensor);
      if (!isNew)
        for (auto [sum, value] :
             llvm::zip_equal(entry->second.data, tensor.data))
          sum.real += value.real;
    }
    return sums;
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
  func::FuncOp model, train;
  std::mt19937 engine{7};
  SmallVector<Tensor> inputs;
  Parameters parameters;
};

TEST_P(TrainTest, GradientsAreThoseOfTheModel) {
  constexpr double kStep = 1e-5, kSeed = 0.25;
  llvm::StringMap<Tensor> found = gradients(kSeed);
  ASSERT_EQ(found.size(), 5u);
  for (auto &entry : found) {
    Tensor &param = parameters[entry.first()];
    for (int64_t i = 0; i < param.size(); ++i) {
      double &x = param.data[i].real;
      double old = x;
      x = old + kStep;
      double up = loss();
      x = old - kStep;
      double down = loss();
      x = old;
      double want = kSeed * (up - down) / (2 * kStep);
      EXPECT_NEAR(entry.second.data[i].real, want,
                  1e-7 * std::max(1.0, std::fabs(want)))
          << entry.first().str() << " at " << i;
    }
  }
}

TEST_P(TrainTest, SplittingWeightsChangesNoBit) {
  OwningOpRef<ModuleOp> other = differentiated(SplitWeights::Always);
  ASSERT_TRUE(other);
  auto split = other->lookupSymbol<func::FuncOp>("train");
  unsigned weightCalls = 0;
  split.walk([&](func::CallOp call) {
    auto phase = call->getAttrOfType<StringAttr>(kPhaseAttr);
    weightCalls += phase.getValue() == "weight";
  });
  EXPECT_GE(weightCalls, 3u);
  EXPECT_EQ(split.getFunctionType(), train.getFunctionType());
  EXPECT_EQ(split.getResAttrsAttr(), train.getResAttrsAttr());
  auto want = run(train, 0.3), found = run(split, 0.3);
  ASSERT_TRUE(succeeded(want) && succeeded(found));
  for (auto [i, a, b] : llvm::enumerate(*want, *found))
    for (auto [x, y] : llvm::zip_equal(a.data, b.data))
      EXPECT_EQ(llvm::bit_cast<uint64_t>(x.real),
                llvm::bit_cast<uint64_t>(y.real))
          << "result " << i;
}

std::string nameOf(const testing::TestParamInfo<Recompute> &info) {
  const char *names[] = {"None", "Cheap", "Full"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Recomputed, TrainTest,
                         testing::Values(Recompute::None, Recompute::Cheap,
                                         Recompute::Full),
                         nameOf);

} // namespace
