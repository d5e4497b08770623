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

static StringRef phaseOf(Operation *op) {
  auto phase = op->getAttrOfType<StringAttr>(kPhaseAttr);
  return phase ? phase.getValue() : "";
}

static Attribute instanceOf(Operation *op) {
  return op->getAttrOfType<StringAttr>(kInstanceAttr);
}

static bool isBackward(Operation *op) { return phaseOf(op) == "backward"; }
static bool isWeight(Operation *op) { return phaseOf(op) == "weight"; }

/// Checks the ops of @train: kinds, attributes and order.
static LogicalResult checkCalls(func::FuncOp train) {
  Operation *firstBackward = nullptr;
  for (Operation &op : train.getBody().front().without_terminator()) {
    if (isa<ParamRefOp>(op))
      continue;
    if (!isa<func::CallOp>(op))
      return op.emitOpError("stands in @train, expected calls only");
    bool isForward = phaseOf(&op) == "forward";
    if (!isForward && !isBackward(&op) && !isWeight(&op))
      return op.emitOpError("has no phase, expected forward, backward or "
                            "weight");
    if (!instanceOf(&op))
      return op.emitOpError("has no instance of a layer");
    if (!isForward) {
      firstBackward = firstBackward ? firstBackward : &op;
    } else if (firstBackward) {
      InFlightDiagnostic diag = op.emitOpError("is a forward call after a ")
                                << phaseOf(firstBackward) << " call";
      diag.attachNote(firstBackward->getLoc())
          << phaseOf(firstBackward) << " call here";
      return diag;
    }
  }
  return success();
}

/// Checks that weight calls stand right behind the backward calls of their
/// instances, and that no call takes what they give. An instance may have
/// weight calls only.
static LogicalResult checkWeightCalls(func::FuncOp train) {
  Block &body = train.getBody().front();
  llvm::DenseMap<Attribute, Operation *> backwards;
  for (Operation &op : body.without_terminator())
    if (isBackward(&op))
      backwards.try_emplace(instanceOf(&op), &op);
  Operation *previous = nullptr;
  for (Operation &op : body.without_terminator()) {
    if (isWeight(&op)) {
      Operation *backward = backwards.lookup(instanceOf(&op));
      // Calls without names share an instance: one may end where another did.
      bool follows = previous && phaseOf(previous) != "forward" &&
                     instanceOf(previous) == instanceOf(&op);
      if (backward && !follows) {
        InFlightDiagnostic diag = op.emitOpError(
            "is a weight call apart from the backward call of its instance");
        diag.attachNote(backward->getLoc()) << "backward call here";
        return diag;
      }
      for (Operation *user : op.getUsers())
        if (user != body.getTerminator()) {
          InFlightDiagnostic diag =
              user->emitOpError("takes a result of a weight call");
          diag.attachNote(op.getLoc()) << "weight call here";
          return diag;
        }
    }
    previous = &op;
  }
  return success();
}

/// Checks that a gradient is a result of its own of a backward or weight call.
static LogicalResult checkProducers(func::FuncOp train) {
  llvm::DenseMap<Value, Attribute> found;
  for (OpOperand &operand :
       train.getBody().front().getTerminator()->getOpOperands()) {
    Attribute name =
        train.getResultAttr(operand.getOperandNumber(), kGradientAttr);
    if (!name)
      continue;
    Operation *op = operand.get().getDefiningOp();
    if (!op || (!isBackward(op) && !isWeight(op)))
      return train.emitOpError("has a gradient of ")
             << name << " that no backward or weight call gives";
    auto [entry, isNew] = found.try_emplace(operand.get(), name);
    if (!isNew)
      return train.emitOpError("returns one value as gradients of ")
             << entry->second << " and " << name;
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
    if (param.getValueType() != train.getResultTypes()[i]) {
      InFlightDiagnostic diag = train.emitOpError("has a gradient of type ")
                                << train.getResultTypes()[i] << ", expected "
                                << param.getValueType();
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

/// Checks that each backward or weight call leads to a gradient of a parameter.
static LogicalResult checkNeeded(func::FuncOp train) {
  llvm::DenseSet<Value> used;
  Block &body = train.getBody().front();
  used.insert_range(body.getTerminator()->getOperands());
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    bool needed = llvm::any_of(op.getResults(),
                               [&](Value v) { return used.contains(v); });
    if ((isBackward(&op) || isWeight(&op)) && !needed)
      return op.emitOpError("is a ")
             << phaseOf(&op) << " call that no trainable parameter needs";
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
        failed(checkNeeded(train)) || failed(checkWeightCalls(train)) ||
        failed(checkProducers(train)))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace
