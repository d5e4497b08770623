//===- IsolateKernels.cpp - Layer functions move into @kernels ------------===//
//
// In: @model, @train and @count call layer functions. Out: the bodies of the
// layer functions that are called stand in a nested module @kernels, which a
// target lowers as it likes; outside, a declaration of the same type keeps the
// calls valid and carries what the planner needs (`nn.flops`).
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

#include "dialects/NN/NNPhases.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_ISOLATEKERNELSPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
namespace nn = mgq::nn;

/// Floating-point operations of one run of a layer function.
static int64_t countFlops(func::FuncOp layer) {
  int64_t flops = 0;
  layer.walk([&](nn::CostOpInterface op) { flops += op.getFlops(); });
  return flops;
}

/// Leaves a declaration of `layer` in place and moves its body to `kernels`.
static void isolate(func::FuncOp layer, ModuleOp kernels) {
  OpBuilder builder(layer);
  auto declaration = func::FuncOp::create(
      builder, layer.getLoc(), layer.getName(), layer.getFunctionType());
  declaration.setPrivate();
  declaration->setAttr(nn::kLayerAttr, builder.getUnitAttr());
  if (Attribute late = layer->getAttr(nn::kLateAttr))
    declaration->setAttr(nn::kLateAttr, late);
  declaration->setAttr("nn.flops",
                       builder.getI64IntegerAttr(countFlops(layer)));
  layer.setPublic();
  layer->moveBefore(kernels.getBody(), kernels.getBody()->end());
}

namespace {
struct IsolateKernelsPass
    : mgq::kernels::impl::IsolateKernelsPassBase<IsolateKernelsPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    llvm::DenseSet<StringRef> called;
    for (func::FuncOp function : module.getOps<func::FuncOp>())
      if (!function->hasAttr(nn::kLayerAttr))
        function.walk([&](func::CallOp call) {
          called.insert(call.getCallee());
          if (auto late = nn::lateOf(module, call.getCallee()))
            called.insert(late.getValue());
        });

    OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
    auto kernels = ModuleOp::create(builder, module.getLoc(), "kernels");
    for (func::FuncOp layer :
         llvm::make_early_inc_range(module.getOps<func::FuncOp>())) {
      if (!layer->hasAttr(nn::kLayerAttr) || layer.isDeclaration())
        continue;
      if (called.contains(layer.getName()))
        isolate(layer, kernels);
      else
        layer.erase();
    }
  }
};
} // namespace
