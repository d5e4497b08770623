//===- Residuals.cpp - What backward takes from forward -------------------===//
//
// Backward needs some values that do not depend on a gradient. Each is saved,
// or recomputed from others by ops that are allowed to run again; the choice
// is a minimum cut of the graph of these values, with the price of keeping a
// value as its capacity (as in "Rematerialization" of AOTAutograd's min-cut
// partitioner). Capacities:
//
//   a parameter, an integer operand 0, they stay in memory anyway (integers
//                                   follow from the model's inputs)
//   another operand, a result       half its bytes: a neighbour keeps it too
//   another value                   its bytes
//   and a little more for views and pieces of a gradient
//
// Of equal cuts the one nearest to the uses is taken: it recomputes least.
//
// Ops that may run again:
//
//   always     views, integers and booleans, what only gradients need,
//              elementwise ops on constants and parameters (rotary tables), and
//              dropout (one kept input serves all that drop of it)
//   cheap      also elementwise ops, data movement, norms, reductions
//   full       every op; only operands are kept
//
// The same choice parts the gradients of weights from those of activations
// (SplitBackward.cpp): "forward" is then what gives the latter, "backward" the
// products and sums behind it that only the former need. An argument that no
// neighbour keeps, such as a residual of the layer's own, costs all its bytes.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/NNBuild.h"
#include "passes/NN/DifferentiateLayer.h"
#include "passes/NN/MinCut.h"

using namespace mlir;
using namespace mgq::nn;

/// Bytes of a value; booleans take one each.
static int64_t bytesOf(Value value) {
  RankedTensorType type = tensorType(value);
  int64_t bits = type.getElementTypeBitWidth();
  return type.getNumElements() * std::max<int64_t>(bits, 8) / 8;
}

/// The same elements in another arrangement, or wider.
static bool isView(Operation *op) {
  if (auto cast = dyn_cast<CastOp>(op))
    return tensorType(cast.getResult()).getElementTypeBitWidth() >
           tensorType(cast.getInput()).getElementTypeBitWidth();
  return isa<ReshapeOp, TransposeOp, BroadcastOp>(op);
}

/// Work per element is small, and no element is a sum over many.
static bool isElementwise(Operation *op) {
  return isa<UnaryOp, BinaryOp, CompareOp, SelectOp, CastOp, RopeOp, DropoutOp>(
      op);
}

bool mgq::nn::isCheap(Operation *op) {
  return isView(op) || isElementwise(op) ||
         isa<SliceOp, PadOp, ConcatOp, GatherOp, CumsumOp, ReduceOp,
             LayerNormOp, RMSNormOp, SoftmaxOp, LogSoftmaxOp>(op);
}

namespace {
/// The network of the values that backward may need.
class ResidualCut {
public:
  explicit ResidualCut(const ResidualProblem &problem) : problem(problem) {
    findForward(problem.results);
    findStatic();
    source = network.addNode();
    sink = network.addNode();
  }

  /// Adds a value that backward reads.
  void addUse(Value value);
  /// The values to keep, in the order of `uses`.
  llvm::SetVector<Value> solve(ArrayRef<Value> uses);

private:
  void findForward(ValueRange results);
  void findStatic();
  bool isFree(BlockArgument argument) const;
  bool isUnshared(BlockArgument argument) const;
  bool mayRunAgain(Operation *op) const;
  int64_t price(Value value) const;
  unsigned visit(Value value);

  FlowNetwork network;
  unsigned source, sink;
  const ResidualProblem &problem;
  /// What the layer's results need, and the results themselves.
  llvm::DenseSet<Operation *> forward;
  llvm::DenseSet<Value> results;
  /// What follows cheaply from constants, parameters and integers.
  llvm::DenseSet<Value> isStatic;
  /// Node of a value before its price; the node after it is the next one.
  llvm::DenseMap<Value, unsigned> nodes;
};
} // namespace

void ResidualCut::findForward(ValueRange values) {
  results.insert_range(values);
  SmallVector<Value> stack(values);
  while (!stack.empty())
    if (Operation *op = stack.pop_back_val().getDefiningOp())
      if (forward.insert(op).second)
        llvm::append_range(stack, op->getOperands());
}

/// Whether nobody but this layer keeps an argument.
bool ResidualCut::isUnshared(BlockArgument argument) const {
  unsigned i = argument.getArgNumber();
  return i < problem.unshared.size() && problem.unshared.test(i);
}

/// Whether an argument stays in memory anyway.
bool ResidualCut::isFree(BlockArgument argument) const {
  return problem.params.test(argument.getArgNumber()) ||
         (!isFloat(argument) && !isUnshared(argument));
}

void ResidualCut::findStatic() {
  for (BlockArgument argument : problem.graph.getArguments())
    if (!problem.isBackward.contains(argument) && isFree(argument))
      isStatic.insert(argument);
  for (Operation &op : problem.graph.without_terminator())
    if (isa<ConstantOp>(op) ||
        (isCheap(&op) && llvm::all_of(op.getOperands(), [&](Value value) {
           return isStatic.contains(value);
         })))
      isStatic.insert_range(op.getResults());
}

bool ResidualCut::mayRunAgain(Operation *op) const {
  if (problem.recompute == Recompute::Full || !forward.contains(op) ||
      isView(op) || isa<DropoutOp>(op) || isStatic.contains(op->getResult(0)))
    return true;
  if (problem.recompute == Recompute::Cheap)
    return isCheap(op);
  return isElementwise(op) && llvm::none_of(op->getResults(), isFloat);
}

int64_t ResidualCut::price(Value value) const {
  constexpr int64_t kUnit = 16;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    if (isFree(argument) || problem.recompute == Recompute::Full)
      return 0;
    return bytesOf(value) * kUnit / (isUnshared(argument) ? 1 : 2);
  }
  if (problem.recompute == Recompute::Full)
    return FlowNetwork::kInfinite;
  if (results.contains(value))
    return bytesOf(value) * kUnit / 2;
  Operation *op = value.getDefiningOp();
  return bytesOf(value) * kUnit + (forward.contains(op) ? isView(op) : 2);
}

/// Gives the node before a value's price, with all that leads to it.
unsigned ResidualCut::visit(Value value) {
  auto [entry, isNew] = nodes.try_emplace(value, 0);
  if (!isNew)
    return entry->second;
  unsigned in = network.addNode(), out = network.addNode();
  nodes[value] = in;
  network.addEdge(in, out, price(value));
  Operation *op = value.getDefiningOp();
  if (!op || !mayRunAgain(op)) {
    network.addEdge(source, in, FlowNetwork::kInfinite);
    return in;
  }
  for (Value operand : op->getOperands())
    network.addEdge(visit(operand) + 1, in, FlowNetwork::kInfinite);
  return in;
}

void ResidualCut::addUse(Value value) {
  network.addEdge(visit(value) + 1, sink, FlowNetwork::kInfinite);
}

llvm::SetVector<Value> ResidualCut::solve(ArrayRef<Value> uses) {
  llvm::BitVector reaches = network.cut(source, sink);
  // Of the values on the cut, those that recomputation really reads.
  llvm::SetVector<Value> kept;
  llvm::DenseSet<Value> seen;
  SmallVector<Value> stack(uses);
  while (!stack.empty()) {
    Value value = stack.pop_back_val();
    if (!seen.insert(value).second)
      continue;
    unsigned in = nodes.lookup(value);
    if (isa<BlockArgument>(value) || (!reaches[in] && reaches[in + 1]))
      kept.insert(value);
    else
      llvm::append_range(stack, value.getDefiningOp()->getOperands());
  }
  return kept;
}

SmallVector<Value> mgq::nn::chooseResiduals(const ResidualProblem &problem) {
  SmallVector<Value> uses;
  auto note = [&](Value value) {
    if (!problem.isBackward.contains(value))
      uses.push_back(value);
  };
  for (Operation &op : problem.graph.without_terminator())
    if (problem.isBackward.contains(op.getResult(0)))
      llvm::for_each(op.getOperands(), note);
  llvm::for_each(problem.gradients, note);

  ResidualCut cut(problem);
  for (Value value : uses)
    cut.addUse(value);
  llvm::SetVector<Value> kept = cut.solve(uses);

  SmallVector<Value> ordered;
  for (Value argument : problem.graph.getArguments())
    if (kept.contains(argument))
      ordered.push_back(argument);
  for (Operation &op : problem.graph.without_terminator())
    for (Value result : op.getResults())
      if (kept.contains(result))
        ordered.push_back(result);
  return ordered;
}
