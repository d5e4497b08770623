//===- LayerActivity.cpp - Activity of calls of layer functions ----------===//

#include "passes/NN/LayerActivity.h"

#include "dialects/NN/NNBuild.h"
#include "passes/NN/Activity.h"

using namespace mlir;
using namespace mgq::nn;

bool mgq::nn::followsGradient(OpOperand &operand) {
  Operation *op = operand.getOwner();
  if (isa<DifferentiableOpInterface>(op))
    return carriesGradient(operand);
  return isFloat(operand.get()) && llvm::any_of(op->getResults(), isFloat);
}

void mgq::nn::spreadActivity(Block &block, llvm::DenseSet<Value> &active) {
  for (Operation &op : block.without_terminator())
    if (llvm::any_of(op.getOpOperands(), [&](OpOperand &operand) {
          return active.contains(operand.get()) && followsGradient(operand);
        }))
      for (Value result : op.getResults())
        if (isFloat(result))
          active.insert(result);
}

/// For each result of a layer function, the operands it depends on.
static SmallVector<llvm::BitVector> dependence(func::FuncOp layer) {
  SmallVector<llvm::BitVector> results(
      layer.getNumResults(), llvm::BitVector(layer.getNumArguments()));
  Block &body = layer.getBody().front();
  for (BlockArgument argument : body.getArguments()) {
    if (!isFloat(argument))
      continue;
    llvm::DenseSet<Value> active{argument};
    spreadActivity(body, active);
    for (auto [bits, value] :
         llvm::zip_equal(results, body.getTerminator()->getOperands()))
      if (active.contains(value))
        bits.set(argument.getArgNumber());
  }
  return results;
}

namespace {
/// Remembers the dependence of layer functions by name.
struct Dependences {
  explicit Dependences(SymbolTableCollection &symbols) : symbols(symbols) {}
  const SmallVector<llvm::BitVector> &of(func::CallOp call) {
    auto layer = symbols.lookupNearestSymbolFrom<func::FuncOp>(
        call, call.getCalleeAttr());
    auto [entry, isNew] = known.try_emplace(layer);
    if (isNew)
      entry->second = dependence(layer);
    return entry->second;
  }
  SymbolTableCollection &symbols;
  llvm::DenseMap<Operation *, SmallVector<llvm::BitVector>> known;
};
} // namespace

/// The values of a model that depend on a trainable parameter.
static llvm::DenseSet<Value> findActive(func::FuncOp model,
                                        SymbolTableCollection &symbols,
                                        Dependences &dependences) {
  llvm::DenseSet<Value> active;
  for (Operation &op : model.getBody().front()) {
    if (auto ref = dyn_cast<ParamRefOp>(op)) {
      auto param =
          symbols.lookupNearestSymbolFrom<ParamOp>(ref, ref.getParamAttr());
      if (param.isTrainable())
        active.insert(ref.getResult());
    } else if (auto call = dyn_cast<func::CallOp>(op)) {
      for (auto [result, on] :
           llvm::zip_equal(call.getResults(), dependences.of(call)))
        for (unsigned i : on.set_bits())
          if (active.contains(call.getOperand(i)))
            active.insert(result);
    }
  }
  return active;
}

llvm::MapVector<Operation *, CallActivity>
mgq::nn::computeActivity(func::FuncOp model, Value loss,
                         SymbolTableCollection &symbols) {
  Dependences dependences(symbols);
  llvm::DenseSet<Value> active = findActive(model, symbols, dependences);
  llvm::DenseSet<Value> wanted;
  if (active.contains(loss))
    wanted.insert(loss);
  SmallVector<std::pair<Operation *, CallActivity>> calls;
  for (Operation &op : llvm::reverse(model.getBody().front())) {
    auto call = dyn_cast<func::CallOp>(op);
    if (!call)
      continue;
    CallActivity activity{llvm::BitVector(call.getNumOperands()),
                          llvm::BitVector(call.getNumResults())};
    const auto &on = dependences.of(call);
    for (auto [i, result] : llvm::enumerate(call.getResults())) {
      if (!wanted.contains(result))
        continue;
      activity.results.set(i);
      activity.operands |= on[i];
    }
    for (auto [i, operand] : llvm::enumerate(call.getOperands())) {
      if (!active.contains(operand))
        activity.operands.reset(i);
      else if (activity.operands.test(i))
        wanted.insert(operand);
    }
    calls.emplace_back(call, activity);
  }
  llvm::MapVector<Operation *, CallActivity> result;
  for (auto &[call, activity] : llvm::reverse(calls))
    result.insert({call, activity});
  return result;
}
