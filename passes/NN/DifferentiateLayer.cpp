//===- DifferentiateLayer.cpp - Forward and backward of a layer -----------===//
//
// A layer function becomes one joint graph: its ops, then the gradients of its
// operands from the gradients of its results, op by op in reverse order. The
// graph is simplified as a whole, so that a gradient shares what forward
// computes, and then cut in two. Residuals.cpp chooses the values that cross.
//
//   @f(x, w) -> y                     y = gelu(x w)
//   joint(x, w, dy) -> y, dx          h = x w, y = gelu(h),
//                                     dh = dy gelu'(h), dx = dh w^T
//   @f.forward(x, w) -> y, h          extra result h
//   @f.backward(dy, w, h) -> dx       w is an alias of forward's operand
//
//===----------------------------------------------------------------------===//

#include "passes/NN/DifferentiateLayer.h"

#include "dialects/NN/NNBuild.h"
#include "passes/NN/LayerSlice.h"

#include "mlir/IR/Dominance.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/CSE.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

using namespace mlir;
using namespace mgq::nn;

/// Folds, canonicalizes and merges equal ops of a function.
static void simplify(func::FuncOp function) {
  MLIRContext *context = function.getContext();
  RewritePatternSet patterns(context);
  auto *dialect = context->getLoadedDialect<NNDialect>();
  dialect->getCanonicalizationPatterns(patterns);
  for (RegisteredOperationName op : context->getRegisteredOperations())
    if (&op.getDialect() == dialect)
      op.getCanonicalizationPatterns(patterns, context);
  // Not converging is no fault: the function is right at every step.
  (void)applyPatternsGreedily(function, std::move(patterns));
  IRRewriter rewriter(context);
  DominanceInfo dominance(function);
  eliminateCommonSubExpressions(rewriter, dominance, function);
}

//===----------------------------------------------------------------------===//
// The joint graph
//===----------------------------------------------------------------------===//

namespace {
/// Reverse-mode differentiation of a block.
struct Reverse {
  explicit Reverse(OpBuilder builder) : builder(builder) {}
  OpBuilder builder;
  llvm::DenseSet<Value> active;
  llvm::DenseMap<Value, Value> gradients;

  /// Adds a contribution to a value's gradient.
  void accumulate(Location loc, Value value, Value gradient) {
    Value &sum = gradients[value];
    sum = sum ? Build(builder, loc).add(sum, gradient) : gradient;
  }
  LogicalResult visit(Operation *op);
};
} // namespace

/// Builds the gradients of an op's active operands, if its results have one.
LogicalResult Reverse::visit(Operation *op) {
  SmallVector<Value> given;
  for (Value result : op->getResults())
    given.push_back(gradients.lookup(result));
  llvm::BitVector needed(op->getNumOperands());
  for (OpOperand &operand : op->getOpOperands())
    if (active.contains(operand.get()) && followsGradient(operand))
      needed.set(operand.getOperandNumber());
  if (needed.none() || llvm::none_of(given, [](Value v) { return bool(v); }))
    return success();

  auto differentiable = dyn_cast<DifferentiableOpInterface>(op);
  SmallVector<Value> out(op->getNumOperands());
  if (!differentiable ||
      failed(differentiable.buildGradient(builder, given, needed, out)))
    return op->emitError("not supported yet: gradient of ") << op->getName();
  for (auto [operand, gradient] : llvm::zip_equal(op->getOperands(), out))
    if (gradient) {
      assert(gradient.getType() == operand.getType());
      accumulate(op->getLoc(), operand, gradient);
    }
  return success();
}

/// The joint graph of a layer as a detached function: (operands, gradients of
/// results) -> (results, gradients of operands). Null on failure.
static func::FuncOp buildJoint(func::FuncOp layer, const CallActivity &use) {
  SmallVector<Type> inputs(layer.getArgumentTypes());
  for (unsigned i : use.results.set_bits())
    inputs.push_back(layer.getResultTypes()[i]);
  SmallVector<Type> outputs(layer.getResultTypes());
  for (unsigned i : use.operands.set_bits())
    outputs.push_back(layer.getArgumentTypes()[i]);
  func::FuncOp joint =
      createLayer(layer.getLoc(), layer.getName(), inputs, outputs);

  Block &body = joint.getBody().front();
  OpBuilder builder = OpBuilder::atBlockEnd(&body);
  IRMapping map;
  unsigned operandCount = layer.getNumArguments();
  map.map(layer.getArguments(), body.getArguments().take_front(operandCount));
  SmallVector<Operation *> ops;
  for (Operation &op : layer.getBody().front().without_terminator())
    ops.push_back(builder.clone(op, map));
  SmallVector<Value> returned;
  for (Value value : layer.getBody().front().getTerminator()->getOperands())
    returned.push_back(map.lookup(value));

  Reverse reverse(builder);
  for (unsigned i : use.operands.set_bits())
    reverse.active.insert(body.getArgument(i));
  auto terminator = func::ReturnOp::create(builder, layer.getLoc(), returned);
  spreadActivity(body, reverse.active);
  reverse.builder.setInsertionPoint(terminator);
  for (auto [k, i] : llvm::enumerate(use.results.set_bits()))
    reverse.accumulate(layer.getLoc(), returned[i],
                       body.getArgument(operandCount + k));
  for (Operation *op : llvm::reverse(ops))
    if (failed(reverse.visit(op))) {
      joint.erase();
      return nullptr;
    }
  for (unsigned i : use.operands.set_bits()) {
    Value operand = body.getArgument(i);
    Value gradient = reverse.gradients.lookup(operand);
    if (!gradient)
      gradient =
          Build(reverse.builder, layer.getLoc()).zeros(tensorType(operand));
    returned.push_back(gradient);
  }
  terminator->setOperands(returned);
  return joint;
}

//===----------------------------------------------------------------------===//
// The cut
//===----------------------------------------------------------------------===//

/// Values that depend on a block argument from `first` on.
static llvm::DenseSet<Value> dependents(Block &block, unsigned first) {
  llvm::DenseSet<Value> found;
  found.insert_range(block.getArguments().drop_front(first));
  for (Operation &op : block.without_terminator())
    if (llvm::any_of(op.getOperands(),
                     [&](Value value) { return found.contains(value); }))
      found.insert_range(op.getResults());
  return found;
}

SmallVector<Residual> mgq::nn::placeResiduals(ArrayRef<Value> residuals,
                                              SmallVector<Value> &outputs) {
  SmallVector<Residual> places;
  for (Value value : residuals) {
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      places.push_back({/*isOperand=*/true, argument.getArgNumber()});
      continue;
    }
    auto *found = llvm::find(outputs, value);
    unsigned index = found - outputs.begin();
    if (found == outputs.end())
      outputs.push_back(value);
    places.push_back({/*isOperand=*/false, index});
  }
  return places;
}

FailureOr<DifferentiatedLayer> mgq::nn::differentiateLayer(func::FuncOp layer,
                                                           const LayerUse &use,
                                                           Recompute recompute,
                                                           StringRef suffix,
                                                           Operation *after) {
  OwningOpRef<func::FuncOp> joint(buildJoint(layer, use.activity));
  if (!joint)
    return failure();
  simplify(*joint);

  Block &body = joint->getBody().front();
  unsigned operandCount = layer.getNumArguments();
  unsigned resultCount = layer.getNumResults();
  SmallVector<Value> returned(body.getTerminator()->getOperands());
  auto gradients = ArrayRef<Value>(returned).drop_front(resultCount);
  SmallVector<Value> outputs(ArrayRef<Value>(returned).take_front(resultCount));
  llvm::DenseSet<Value> isBackward = dependents(body, operandCount);
  SmallVector<Value> residuals =
      chooseResiduals({body, outputs, gradients, isBackward, use.params,
                       /*unshared=*/llvm::BitVector(), recompute});

  DifferentiatedLayer out;
  out.use = use;
  // Not @layer.weight: parameters of the layer have such names.
  out.weightName = (layer.getName() + ".backward_weight" + suffix).str();
  llvm::append_range(out.backwardGradients, use.activity.operands.set_bits());
  out.residuals = placeResiduals(residuals, outputs);
  OpBuilder builder(layer->getContext());
  builder.setInsertionPointAfter(after);
  out.forward = layer;
  if (outputs.size() != resultCount) {
    out.forward = createLayer(
        layer.getLoc(), (layer.getName() + ".forward" + suffix).str(),
        layer.getArgumentTypes(), ValueRange(outputs).getTypes());
    IRMapping map;
    map.map(body.getArguments().take_front(operandCount),
            out.forward.getArguments());
    cloneSlice(body, out.forward, map, outputs);
    simplify(out.forward);
    builder.insert(out.forward);
  }

  SmallVector<Value> inputs(body.getArguments().drop_front(operandCount));
  llvm::append_range(inputs, residuals);
  llvm::append_range(out.backwardInputs, llvm::seq<unsigned>(0, inputs.size()));
  out.backward = createLayer(
      layer.getLoc(), (layer.getName() + ".backward" + suffix).str(),
      ValueRange(inputs).getTypes(), ValueRange(gradients).getTypes());
  IRMapping map;
  map.map(inputs, out.backward.getArguments());
  cloneSlice(body, out.backward, map, gradients);
  simplify(out.backward);
  builder.insert(out.backward);
  return out;
}
