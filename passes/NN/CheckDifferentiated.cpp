//===- CheckDifferentiated.cpp - What holds after nn-differentiate --------===//

#include "passes/NN/Activity.h"
#include "passes/NN/Passes.h"

#include "llvm/ADT/StringSet.h"

namespace mgq::nn {
#define GEN_PASS_DEF_CHECKDIFFERENTIATEDPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq::nn;

/// Whether a call of @train is a backward call.
static bool isBackward(Operation *op) {
  auto phase = op->getAttrOfType<StringAttr>(kPhaseAttr);
  return phase && phase.getValue() == "backward";
}

/// Checks the ops of @train: kinds, attributes and order.
static LogicalResult checkCalls(func::FuncOp train) {
  Operation *firstBackward = nullptr;
  for (Operation &op : train.getBody().front().without_terminator()) {
    if (isa<ParamRefOp>(op))
      continue;
    if (!isa<func::CallOp>(op))
      return op.emitOpError("stands in @train, expected calls only");
    auto phase = op.getAttrOfType<StringAttr>(kPhaseAttr);
    if (!phase || (phase.getValue() != "forward" && !isBackward(&op)))
      return op.emitOpError("has no phase, expected forward or backward");
    if (!op.hasAttrOfType<StringAttr>(kInstanceAttr))
      return op.emitOpError("has no instance of a layer");
    if (isBackward(&op)) {
      firstBackward = firstBackward ? firstBackward : &op;
    } else if (firstBackward) {
      InFlightDiagnostic diag =
          op.emitOpError("is a forward call after a backward call");
      diag.attachNote(firstBackward->getLoc()) << "backward call here";
      return diag;
    }
  }
  return success();
}

/// Checks that each trainable parameter has a gradient of its type, and no
/// other has one.
static LogicalResult checkGradients(func::FuncOp train, SymbolTable &symbols) {
  llvm::StringSet<> found;
  for (unsigned i = 0; i < train.getNumResults(); ++i) {
    auto name = train.getResultAttrOfType<FlatSymbolRefAttr>(i, kGradientAttr);
    if (!name)
      continue;
    auto param = symbols.lookup<ParamOp>(name.getAttr());
    if (!param || !param.isTrainable())
      return train.emitOpError("has a gradient of ")
             << name << ", which is not a trainable parameter";
    if (param.getType() != train.getResultTypes()[i]) {
      InFlightDiagnostic diag = train.emitOpError("has a gradient of type ")
                                << train.getResultTypes()[i] << ", expected "
                                << param.getType();
      diag.attachNote(param.getLoc()) << "parameter declared here";
      return diag;
    }
    found.insert(name.getValue());
  }
  for (auto param : cast<ModuleOp>(symbols.getOp()).getOps<ParamOp>())
    if (param.isTrainable() && !found.contains(param.getSymName()))
      return param.emitOpError("is trainable but has no gradient");
  return success();
}

/// Checks that each backward call leads to a gradient of a parameter.
static LogicalResult checkNeeded(func::FuncOp train) {
  llvm::DenseSet<Value> used;
  Block &body = train.getBody().front();
  used.insert_range(body.getTerminator()->getOperands());
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    bool needed = llvm::any_of(op.getResults(),
                               [&](Value v) { return used.contains(v); });
    if (isBackward(&op) && !needed)
      return op.emitOpError("is a backward call that no trainable parameter "
                            "needs");
    if (needed)
      used.insert_range(op.getOperands());
  }
  return success();
}

namespace {
struct CheckDifferentiatedPass
    : mgq::nn::impl::CheckDifferentiatedPassBase<CheckDifferentiatedPass> {
  void runOnOperation() override {
    auto train = getOperation().lookupSymbol<func::FuncOp>("train");
    if (!train) {
      getOperation().emitError("has no @train");
      return signalPassFailure();
    }
    SymbolTable symbols(getOperation());
    if (failed(checkCalls(train)) || failed(checkGradients(train, symbols)) ||
        failed(checkNeeded(train)))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace
