//===- SplitBackward.cpp - Weight gradients apart -------------------------===//
//
// The layers below wait for gradients of activations; nothing waits for those
// of weights before the optimizer. A schedule can move the latter to where a
// stage has nothing to do (Qi et al., "Zero Bubble Pipeline Parallelism",
// arXiv 2401.10241) if they are functions of their own:
//
//   @f.backward(dy, x, w) -> dx, dw            y = gelu(x w)
//     dh = dy gelu'(h), dx = dh w^T, dw = x^T dh
//   becomes
//   @f.backward(dy, w, h) -> dx, dh            dh is a weight residual
//   @f.backward_weight(x, dh) -> dw            x is an alias
//
// The parts are made of the ops of the whole, which are not simplified again:
// every gradient keeps its bits. The minimum cut of Residuals.cpp chooses what
// the weight part takes. Products and other expensive ops that only gradients
// of weights need stand in the weight part, always; cheap ones where fewer
// bytes cross. So the gradient of a norm's scale, a sum over rows, is a result
// of @f.backward: it is small, and what it is a sum of need not wait.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/SplitBackward.h"

#include "dialects/NN/NNBuild.h"
#include "passes/NN/LayerSlice.h"

using namespace mlir;
using namespace mgq::nn;

/// `auto` splits if weight parts do at least this much of the work of backward.
/// Bubbles are filled with weight parts only, so a schedule gains no more than
/// their work, while what they take is kept until they run. 10 % lies well
/// below models that train their weights (about half the work) and well above
/// those that train adapters: of rank r at a weight of width d, about r / d.
static constexpr int64_t kLeastPercent = 10;

bool mgq::nn::isWorthSplitting(int64_t weight, int64_t backward) {
  return weight > 0 && double(weight) * 100 >= double(backward) * kLeastPercent;
}

static int64_t flopsOf(Operation *op) {
  auto cost = dyn_cast<CostOpInterface>(op);
  return cost ? cost.getFlops() : 0;
}

int64_t mgq::nn::countFlops(func::FuncOp layer) {
  int64_t flops = 0;
  for (Operation &op : layer.getBody().front())
    flops += flopsOf(&op);
  return flops;
}

/// What only `roots` need and must not run in the backward part: expensive ops
/// outside `early`, and all that depends on them.
static llvm::DenseSet<Value>
findWeightOnly(Block &body, ValueRange roots,
               const llvm::DenseSet<Operation *> &early) {
  llvm::DenseSet<Operation *> slice = sliceOf(roots, IRMapping());
  llvm::DenseSet<Value> found;
  for (Operation &op : body.without_terminator()) {
    if (!slice.contains(&op) || early.contains(&op))
      continue;
    bool isExpensive = op.getNumOperands() != 0 && !isCheap(&op);
    if (isExpensive || llvm::any_of(op.getOperands(), [&](Value value) {
          return found.contains(value);
        }))
      found.insert_range(op.getResults());
  }
  return found;
}

/// The arguments of a whole backward function as the minimum cut prices them.
static void describeArguments(const DifferentiatedLayer &layer,
                              llvm::BitVector &params,
                              llvm::BitVector &unshared) {
  unsigned first = layer.use.activity.results.count();
  unsigned resultCount = layer.use.activity.results.size();
  for (auto [k, residual] : llvm::enumerate(layer.residuals)) {
    if (residual.isOperand && layer.use.params.test(residual.index))
      params.set(first + k);
    // Results of @f.forward beyond those of @f.
    if (!residual.isOperand && residual.index >= resultCount)
      unshared.set(first + k);
  }
}

/// The values of `kept` that `roots` really need, in their order, and the work
/// that is left to do.
static void finishCut(WeightCut &cut, Block &body, ArrayRef<Value> roots,
                      ArrayRef<Value> kept) {
  IRMapping given;
  for (Value value : kept)
    given.map(value, value);
  llvm::DenseSet<Operation *> slice = sliceOf(roots, given);
  llvm::DenseSet<Value> read;
  for (Operation *op : slice) {
    cut.flops += flopsOf(op);
    read.insert_range(op->getOperands());
  }
  for (Value value : kept)
    if (read.contains(value))
      cut.kept.push_back(value);
}

WeightCut mgq::nn::findWeightCut(const DifferentiatedLayer &layer,
                                 Recompute recompute) {
  func::FuncOp whole = layer.backward;
  Block &body = whole.getBody().front();
  SmallVector<Value> gradients(body.getTerminator()->getOperands());
  WeightCut cut;
  SmallVector<Value> data;
  for (auto [i, operand] : llvm::enumerate(layer.backwardGradients))
    if (!layer.use.params.test(operand))
      data.push_back(gradients[i]);
  if (data.empty()) {
    llvm::append_range(cut.late, llvm::seq<unsigned>(0, gradients.size()));
    llvm::append_range(cut.kept, body.getArguments());
    cut.flops = countFlops(whole);
    return cut;
  }

  llvm::DenseSet<Operation *> early = sliceOf(data, IRMapping());
  SmallVector<Value> roots;
  for (Value gradient : gradients)
    if (Operation *op = gradient.getDefiningOp(); op && !early.contains(op))
      roots.push_back(gradient);
  llvm::DenseSet<Value> weightOnly = findWeightOnly(body, roots, early);
  llvm::BitVector params(body.getNumArguments()), unshared(params);
  describeArguments(layer, params, unshared);
  // What `full` recomputes are products: those run in the backward part only.
  if (recompute == Recompute::Full)
    recompute = Recompute::Cheap;
  SmallVector<Value> kept = chooseResiduals(
      {body, data, roots, weightOnly, params, unshared, recompute});

  llvm::DenseSet<Value> isLate(roots.begin(), roots.end());
  for (Value value : kept)
    isLate.erase(value);
  SmallVector<Value> left;
  for (auto [i, gradient] : llvm::enumerate(gradients)) {
    (isLate.contains(gradient) ? cut.late : cut.early).push_back(i);
    if (isLate.contains(gradient))
      left.push_back(gradient);
  }
  finishCut(cut, body, left, kept);
  return cut;
}

/// A part of a whole backward function, put before it.
static func::FuncOp createPart(func::FuncOp whole, StringRef name,
                               ArrayRef<Value> inputs,
                               ArrayRef<Value> results) {
  func::FuncOp part =
      createLayer(whole.getLoc(), name, ValueRange(inputs).getTypes(),
                  ValueRange(results).getTypes());
  IRMapping map;
  map.map(inputs, part.getArguments());
  cloneSlice(whole.getBody().front(), part, map, results);
  OpBuilder(whole).insert(part);
  return part;
}

/// The arguments of a function that `results` depend on.
static SmallVector<Value> argumentsFor(func::FuncOp function,
                                       ArrayRef<Value> results) {
  llvm::DenseSet<Value> read(results.begin(), results.end());
  for (Operation *op : sliceOf(results, IRMapping()))
    read.insert_range(op->getOperands());
  SmallVector<Value> inputs;
  for (BlockArgument argument : function.getArguments())
    if (read.contains(argument))
      inputs.push_back(argument);
  return inputs;
}

void mgq::nn::splitBackward(DifferentiatedLayer &layer, const WeightCut &cut) {
  if (cut.late.empty())
    return;
  func::FuncOp whole = layer.backward;
  SmallVector<Value> gradients(
      whole.getBody().front().getTerminator()->getOperands());
  SmallVector<unsigned> operands(layer.backwardGradients);
  layer.backwardGradients.clear();
  SmallVector<Value> outputs, results;
  for (unsigned i : cut.early) {
    outputs.push_back(gradients[i]);
    layer.backwardGradients.push_back(operands[i]);
  }
  for (unsigned i : cut.late) {
    results.push_back(gradients[i]);
    layer.weightGradients.push_back(operands[i]);
  }
  layer.weightInputs = placeResiduals(cut.kept, outputs);
  layer.weight = createPart(whole, layer.weightName, cut.kept, results);
  layer.backward = nullptr;
  layer.backwardInputs.clear();
  if (!cut.early.empty()) {
    SmallVector<Value> inputs = argumentsFor(whole, outputs);
    for (Value input : inputs)
      layer.backwardInputs.push_back(cast<BlockArgument>(input).getArgNumber());
    layer.backward = createPart(whole, whole.getName(), inputs, outputs);
    layer.backward->moveBefore(layer.weight);
  }
  whole.erase();
}
