//===- TieTest.cpp - Gradients where there is no derivative ---------------===//
//
// Finite differences say nothing here; the expected values are PyTorch's (or,
// for several equal updates of a scatter, those of equal shares).
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/Interpreter/Interpreter.h"
#include "passes/NN/DifferentiateLayer.h"

#include "mlir/Parser/Parser.h"

#include <gtest/gtest.h>

using namespace mlir;
using namespace mgq::nn;

namespace {

/// Gradients of all operands of an op over `inputs`, result gradient all ones.
std::vector<std::vector<double>>
gradients(StringRef arguments, StringRef results, StringRef body,
          std::vector<std::vector<double>> inputs) {
  MLIRContext context;
  context.loadDialect<NNDialect, func::FuncDialect>();
  std::string text = ("func.func private @f(" + arguments + ") -> " + results +
                      " {\n" + body + "\nreturn %r : " + results + "\n}")
                         .str();
  auto module = parseSourceString<ModuleOp>(text, &context);
  EXPECT_TRUE(module);
  auto layer = module->lookupSymbol<func::FuncOp>("f");
  LayerUse use{{llvm::BitVector(layer.getNumArguments(), true),
                llvm::BitVector(layer.getNumResults(), true)},
               llvm::BitVector(layer.getNumArguments())};
  auto built = differentiateLayer(layer, use, Recompute::Full, "", layer);
  EXPECT_TRUE(succeeded(built));
  SmallVector<Tensor> operands;
  for (Type type : layer.getResultTypes()) {
    operands.emplace_back(cast<RankedTensorType>(type));
    for (Number &value : operands.back().data)
      value.real = 1.0;
  }
  for (Residual residual : built->residuals) {
    EXPECT_TRUE(residual.isOperand);
    operands.emplace_back(
        cast<RankedTensorType>(layer.getArgumentTypes()[residual.index]));
    for (auto [to, from] :
         llvm::zip_equal(operands.back().data, inputs[residual.index]))
      to.real = from;
  }
  auto found = interpret(built->backward, operands);
  EXPECT_TRUE(succeeded(found));
  std::vector<std::vector<double>> values;
  for (const Tensor &tensor : *found) {
    values.emplace_back();
    for (const Number &value : tensor.data)
      values.back().push_back(value.real);
  }
  return values;
}

using Values = std::vector<std::vector<double>>;

TEST(Tie, MaximumSharesByHalves) {
  EXPECT_EQ(gradients("%a: tensor<3xf64>, %b: tensor<3xf64>", "tensor<3xf64>",
                      "%r = nn.binary max %a, %b : (tensor<3xf64>, "
                      "tensor<3xf64>) -> tensor<3xf64>",
                      {{1, 2, 3}, {1, 1, 4}}),
            (Values{{0.5, 1, 0}, {0.5, 0, 1}}));
}

TEST(Tie, ReduceMaxSharesEvenly) {
  EXPECT_EQ(gradients("%x: tensor<2x4xf64>", "tensor<2xf64>",
                      "%r = nn.reduce max %x axes [1] : (tensor<2x4xf64>) -> "
                      "tensor<2xf64>",
                      {{5, 1, 5, 0, 2, 2, 2, 2}}),
            (Values{{0.5, 0, 0.5, 0, 0.25, 0.25, 0.25, 0.25}}));
}

TEST(Tie, ProductKnowsZeros) {
  EXPECT_EQ(gradients("%x: tensor<3x3xf64>", "tensor<3xf64>",
                      "%r = nn.reduce prod %x axes [1] : (tensor<3x3xf64>) -> "
                      "tensor<3xf64>",
                      {{2, 3, 4, 0, 3, 4, 0, 0, 4}}),
            (Values{{12, 8, 6, 12, 0, 0, 0, 0, 0}}));
}

TEST(Tie, ReluIsFlatAtZero) {
  EXPECT_EQ(gradients("%x: tensor<3xf64>", "tensor<3xf64>",
                      "%r = nn.unary relu %x : (tensor<3xf64>) -> "
                      "tensor<3xf64>",
                      {{-1, 0, 1}}),
            (Values{{0, 0, 1}}));
}

TEST(Tie, AbsIsFlatAtZero) {
  EXPECT_EQ(gradients("%x: tensor<3xf64>", "tensor<3xf64>",
                      "%r = nn.unary abs %x : (tensor<3xf64>) -> tensor<3xf64>",
                      {{-1, 0, 1}}),
            (Values{{-1, 0, 1}}));
}

TEST(Tie, PowerAtZero) {
  // 0^0 has slope 0 in the base, 0^1 slope 1; log(0) does not spread.
  EXPECT_EQ(gradients("%a: tensor<3xf64>, %n: tensor<3xf64>", "tensor<3xf64>",
                      "%r = nn.binary pow %a, %n : (tensor<3xf64>, "
                      "tensor<3xf64>) -> tensor<3xf64>",
                      {{0, 0, 0}, {0, 1, 2}}),
            (Values{{0, 1, 0}, {0, 0, 0}}));
}

TEST(Tie, PoolGivesTheFirstMaximum) {
  EXPECT_EQ(gradients("%x: tensor<1x1x4xf64>", "tensor<1x1x2xf64>",
                      "%r = nn.pool max %x window [2] {strides = "
                      "array<i64: 2>, dilations = array<i64: 1>, pads_before = "
                      "array<i64: 0>, pads_after = array<i64: 0>, groups = 1 : "
                      "i64} : (tensor<1x1x4xf64>) -> tensor<1x1x2xf64>",
                      {{3, 3, 1, 2}}),
            (Values{{1, 0, 0, 1}}));
}

TEST(Tie, ScatterMulKnowsZeros) {
  EXPECT_EQ(gradients("%x: tensor<2xf64>, %u: tensor<3xf64>", "tensor<2xf64>",
                      "%i = nn.constant dense<[0, 0, 1]> : tensor<3xi64>\n"
                      "%r = nn.scatter_elements mul %x, %i, %u axis 0 : "
                      "(tensor<2xf64>, tensor<3xi64>, tensor<3xf64>) -> "
                      "tensor<2xf64>",
                      {{5, 7}, {0, 3, 0}}),
            (Values{{0, 0}, {15, 0, 7}}));
}

TEST(Tie, ScatterMaxSharesEvenly) {
  EXPECT_EQ(gradients("%x: tensor<2xf64>, %u: tensor<3xf64>", "tensor<2xf64>",
                      "%i = nn.constant dense<[0, 0, 1]> : tensor<3xi64>\n"
                      "%r = nn.scatter_elements max %x, %i, %u axis 0 : "
                      "(tensor<2xf64>, tensor<3xi64>, tensor<3xf64>) -> "
                      "tensor<2xf64>",
                      {{5, 7}, {5, 3, 8}}),
            (Values{{0.5, 0}, {0.5, 0, 1}}));
}

} // namespace
