//===- Simplify.cpp - Exporter idioms become one op
//-------------------------===//
//
// In: what the importer made of the graph, an op or a few per ONNX node. After
// it: linear layers are one matmul with the weight as it is stored, norms,
// activations, rotary embeddings, attention and image tokens are one op each,
// views are merged, and nothing dead is left, parameters included.
//
// Idioms come in steps, because one expects what another leaves: attention
// finds k^T by the flag of its product, and a rotation by its slices, which
// must not have moved. Common subexpressions merge between the steps, so that
// "the same value" is one value.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Simplify.h"
#include "passes/NN/Passes.h"

#include "mlir/IR/Dominance.h"
#include "mlir/Transforms/CSE.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "llvm/ADT/StringSet.h"

namespace mgq::nn {
#define GEN_PASS_DEF_SIMPLIFYPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq::nn;

/// Applies pattern sets to a fixed point, then merges equal ops.
static LogicalResult
applyStep(func::FuncOp function,
          ArrayRef<void (*)(RewritePatternSet &)> populate) {
  RewritePatternSet patterns(function.getContext());
  for (auto add : populate)
    add(patterns);
  if (failed(applyPatternsGreedily(function, std::move(patterns))))
    return function.emitError("patterns do not reach a fixed point");
  IRRewriter rewriter(function.getContext());
  DominanceInfo dominance(function);
  eliminateCommonSubExpressions(rewriter, dominance, function);
  return success();
}

/// Erases parameters that nothing refers to and notes their names, so that
/// nn-mark can tell a dead name from a wrong one.
static void eraseDeadParams(ModuleOp module) {
  llvm::StringSet<> used;
  module.walk([&](ParamRefOp ref) { used.insert(ref.getParam()); });
  SmallVector<Attribute> dead;
  for (auto param : llvm::make_early_inc_range(module.getOps<ParamOp>()))
    if (!used.contains(param.getSymName())) {
      dead.push_back(param.getSymNameAttr());
      param.erase();
    }
  if (!dead.empty())
    module->setAttr(kDeadParamsAttr, ArrayAttr::get(module.getContext(), dead));
}

namespace {
struct SimplifyPass : mgq::nn::impl::SimplifyPassBase<SimplifyPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    for (auto function : module.getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      if (failed(applyStep(function, {populateShapePatterns})) ||
          failed(applyStep(
              function, {populateShapePatterns, populateNormPatterns,
                         populateActivationPatterns, populateRopePatterns,
                         populateLinearPatterns, populateMaskedScatterPatterns,
                         populateLossPatterns})) ||
          failed(applyStep(
              function, {populateShapePatterns, populateAttentionPatterns})) ||
          failed(applyStep(function,
                           {populateShapePatterns, populateLinearPatterns})))
        return signalPassFailure();
    }
    eraseDeadParams(module);
  }
};
} // namespace
