//===- GradientTest.cpp - Gradients against finite differences ------------===//
//
// Each function of the .mlir files beside this one is a test: it is
// differentiated as a layer function, for each of its operands alone and for
// all of them, with each way to recompute; the interpreter runs the forward and
// backward functions, and central differences of the layer itself tell what the
// gradients must be. `test.range` bounds the random operands.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/Interpreter/Interpreter.h"
#include "passes/NN/SplitBackward.h"

#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/StringSet.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

using namespace mlir;
using namespace mgq::nn;

namespace {

constexpr const char *kFiles[] = {"unary",    "elementwise", "products",
                                  "movement", "reduce",      "attention"};

MLIRContext &context() {
  static MLIRContext context;
  context.allowUnregisteredDialects();
  context.loadDialect<NNDialect, func::FuncDialect>();
  return context;
}

OwningOpRef<ModuleOp> parseCases(const char *name) {
  return parseSourceFile<ModuleOp>(
      std::string(MGQ_GRADIENT_CASES) + "/" + name + ".mlir", &context());
}

/// Random values in the function's range; no two are nearly equal by chance.
SmallVector<Tensor> randomTensors(TypeRange types, func::FuncOp function,
                                  unsigned seed) {
  double low = -1.5, high = 1.5;
  if (auto range = function->getAttrOfType<ArrayAttr>("test.range")) {
    low = cast<FloatAttr>(range[0]).getValueAsDouble();
    high = cast<FloatAttr>(range[1]).getValueAsDouble();
  }
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  SmallVector<Tensor> tensors;
  for (Type type : types) {
    tensors.emplace_back(cast<RankedTensorType>(type));
    for (Number &value : tensors.back().data)
      value.real = uniform(engine);
  }
  return tensors;
}

/// Sum of the results times their seeds.
double objective(func::FuncOp layer, ArrayRef<Tensor> inputs,
                 ArrayRef<Tensor> seeds) {
  auto results = interpret(layer, inputs);
  EXPECT_TRUE(succeeded(results));
  double sum = 0;
  for (auto [result, seed] : llvm::zip_equal(*results, seeds))
    for (auto [x, g] : llvm::zip_equal(result.data, seed.data))
      sum += x.real * g.real;
  return sum;
}

Tensor finiteDifferences(func::FuncOp layer, SmallVector<Tensor> inputs,
                         unsigned operand, ArrayRef<Tensor> seeds) {
  constexpr double kStep = 1e-5;
  Tensor gradient(inputs[operand].type);
  for (int64_t i = 0; i < gradient.size(); ++i) {
    double &x = inputs[operand].data[i].real;
    double old = x;
    x = old + kStep;
    double up = objective(layer, inputs, seeds);
    x = old - kStep;
    double down = objective(layer, inputs, seeds);
    x = old;
    gradient.data[i].real = (up - down) / (2 * kStep);
  }
  return gradient;
}

/// Tensors by where a later call finds them.
SmallVector<Tensor> pick(ArrayRef<Residual> places, ArrayRef<Tensor> operands,
                         ArrayRef<Tensor> results) {
  SmallVector<Tensor> picked;
  for (Residual place : places)
    picked.push_back(place.isOperand ? operands[place.index]
                                     : results[place.index]);
  return picked;
}

/// Gradients by operand of the layer, from its functions.
FailureOr<std::map<unsigned, Tensor>>
backwardGradients(const DifferentiatedLayer &layer, ArrayRef<Tensor> inputs,
                  ArrayRef<Tensor> seeds) {
  auto results = interpret(layer.forward, inputs);
  if (failed(results))
    return failure();
  SmallVector<Tensor> whole(seeds);
  llvm::append_range(whole, pick(layer.residuals, inputs, *results));
  std::map<unsigned, Tensor> gradients;
  SmallVector<Tensor> given;
  if (func::FuncOp backward = layer.backward) {
    SmallVector<Tensor> operands;
    for (unsigned i : layer.backwardInputs)
      operands.push_back(whole[i]);
    auto found = interpret(backward, operands);
    if (failed(found))
      return failure();
    given = *found;
    for (auto [operand, gradient] : llvm::zip(layer.backwardGradients, given))
      gradients.emplace(operand, gradient);
  }
  if (func::FuncOp weight = layer.weight) {
    auto found = interpret(weight, pick(layer.weightInputs, whole, given));
    if (failed(found))
      return failure();
    for (auto [operand, gradient] :
         llvm::zip_equal(layer.weightGradients, *found))
      gradients.emplace(operand, gradient);
  }
  return gradients;
}

bool hasSameBits(const Tensor &a, const Tensor &b) {
  return a.type == b.type && a.data.size() == b.data.size() &&
         std::equal(a.data.begin(), a.data.end(), b.data.begin(),
                    [](const Number &x, const Number &y) {
                      return std::memcmp(&x.real, &y.real, sizeof(double)) == 0;
                    });
}

class GradientTest : public testing::Test {
public:
  GradientTest(const char *file, std::string name)
      : file(file), name(std::move(name)) {}

  void TestBody() override {
    OwningOpRef<ModuleOp> module = parseCases(file);
    auto layer = module->lookupSymbol<func::FuncOp>(name);
    unsigned count = layer.getNumArguments();
    unsigned variant = 0;
    for (unsigned operand = 0; operand <= count; ++operand)
      for (Recompute recompute :
           {Recompute::None, Recompute::Cheap, Recompute::Full}) {
        LayerUse use{{llvm::BitVector(count),
                      llvm::BitVector(layer.getNumResults(), true)},
                     llvm::BitVector(count)};
        if (operand == count)
          use.activity.operands.set();
        else
          use.activity.operands.set(operand);
        check(layer, use, recompute, "." + std::to_string(variant++));
        if (operand == count)
          continue;
        use.activity.operands.set();
        use.params.set(operand);
        checkSplit(layer, use, recompute, "." + std::to_string(variant++));
      }
    EXPECT_TRUE(succeeded(verify(*module)));
  }

private:
  void check(func::FuncOp layer, const LayerUse &use, Recompute recompute,
             StringRef suffix) {
    auto built = differentiateLayer(layer, use, recompute, suffix, layer);
    ASSERT_TRUE(succeeded(built));
    SmallVector<Tensor> inputs =
        randomTensors(layer.getArgumentTypes(), layer, 1);
    SmallVector<Tensor> seeds = randomTensors(layer.getResultTypes(), layer, 2);
    auto found = backwardGradients(*built, inputs, seeds);
    ASSERT_TRUE(succeeded(found));
    ASSERT_EQ(found->size(), use.activity.operands.count());
    for (auto &[operand, gradient] : *found) {
      Tensor expected = finiteDifferences(layer, inputs, operand, seeds);
      ASSERT_EQ(gradient.type, expected.type);
      for (int64_t i = 0; i < gradient.size(); ++i) {
        double want = expected.data[i].real;
        EXPECT_NEAR(gradient.data[i].real, want,
                    1e-7 * std::max(1.0, std::fabs(want)))
            << "operand " << operand << ", element " << i;
      }
    }
  }

  void checkSplit(func::FuncOp layer, const LayerUse &use, Recompute recompute,
                  StringRef suffix) {
    auto built = differentiateLayer(layer, use, recompute, suffix, layer);
    ASSERT_TRUE(succeeded(built));
    SmallVector<Tensor> inputs =
        randomTensors(layer.getArgumentTypes(), layer, 1);
    SmallVector<Tensor> seeds = randomTensors(layer.getResultTypes(), layer, 2);
    auto whole = backwardGradients(*built, inputs, seeds);
    splitBackward(*built, findWeightCut(*built, recompute));
    auto parts = backwardGradients(*built, inputs, seeds);
    ASSERT_TRUE(succeeded(whole) && succeeded(parts));
    ASSERT_EQ(whole->size(), parts->size());
    for (auto &[operand, gradient] : *whole)
      EXPECT_TRUE(hasSameBits(gradient, parts->at(operand)))
          << "operand " << operand;
  }

  const char *file;
  std::string name;
};

/// What the cases cover, by op name, and by kind where an op has one.
llvm::StringSet<> covered() {
  llvm::StringSet<> names;
  for (const char *file : kFiles)
    parseCases(file)->walk([&](Operation *op) {
      names.insert(op->getName().getStringRef());
      if (auto unary = dyn_cast<UnaryOp>(op))
        names.insert(("unary " + stringifyUnaryKind(unary.getKind())).str());
      if (auto binary = dyn_cast<BinaryOp>(op))
        names.insert(("binary " + stringifyBinaryKind(binary.getKind())).str());
    });
  return names;
}

TEST(Coverage, EveryDifferentiableOpHasACase) {
  llvm::StringSet<> names = covered();
  for (RegisteredOperationName op : context().getRegisteredOperations())
    if (op.hasInterface<DifferentiableOpInterface>())
      EXPECT_TRUE(names.contains(op.getStringRef())) << op.getStringRef().str();
}

TEST(Coverage, EveryKindHasACase) {
  llvm::StringSet<> names = covered();
  for (unsigned i = 0; i <= getMaxEnumValForUnaryKind(); ++i) {
    UnaryKind kind = *symbolizeUnaryKind(i);
    if (kind == UnaryKind::Not || kind == UnaryKind::IsNan ||
        kind == UnaryKind::IsInf)
      continue;
    std::string name = ("unary " + stringifyUnaryKind(kind)).str();
    EXPECT_TRUE(names.contains(name)) << name;
  }
  for (unsigned i = 0; i <= unsigned(BinaryKind::Rem); ++i) {
    std::string name =
        ("binary " + stringifyBinaryKind(*symbolizeBinaryKind(i))).str();
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

} // namespace

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  for (const char *file : kFiles) {
    OwningOpRef<ModuleOp> module = parseCases(file);
    if (!module)
      return 1;
    for (auto function : module->getOps<func::FuncOp>()) {
      std::string name = function.getName().str();
      testing::RegisterTest(
          "Gradient", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
          [file, name] { return new GradientTest(file, name); });
    }
  }
  return RUN_ALL_TESTS();
}
