//===- Differentiate.cpp - From @model to @train --------------------------===//
//
// Comes in: @model, calls of layer functions over marked parameters. After:
// beside it @train, all forward calls in program order, then all backward calls
// in reverse order. A call whose operands depend on nothing trainable, or whose
// results do not reach the loss, has no backward.
//
//   func @model(%x) -> loss {
//     %a = call @frozen(%x, %w0)
//     %b = call @linear(%a, %w1)              w1 trainable
//     %l = call @loss(%b)
//   }
//   func @train(%x, %seed) -> (loss, dw1) {
//     %a = call @frozen(%x, %w0)              forward
//     %b = call @linear(%a, %w1)              nothing saved but %a, an alias
//     %l, %r = call @loss.forward(%b)         %r is a residual
//     %db = call @loss.backward(%seed, %r)    backward
//     %dw1 = call @linear.backward(%db, %a)
//   }
//
// The gradient of a value that several calls use is summed as the calls come,
// in reverse program order, by calls of @nn.add_gradients.<shape>. Such a call
// bears the instance of the layer whose contribution it adds: when layers lie
// on different stages, the sum travels with the value's gradient.
//
// With --split-weights a layer's backward is two calls, or a weight call alone:
//
//     %db, %r = call @linear.backward(%dc, %w1)    backward
//     %dw1 = call @linear.backward_weight(%r, %a)  weight
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/NNBuild.h"
#include "passes/NN/DifferentiateLayer.h"
#include "passes/NN/Passes.h"
#include "passes/NN/SplitBackward.h"

#include "mlir/IR/IRMapping.h"

namespace mgq::nn {
#define GEN_PASS_DEF_DIFFERENTIATEPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq::nn;

/// The name in a location: the layer instance; else `fallback`.
static StringAttr instanceOf(Location loc, StringAttr fallback) {
  if (auto name = dyn_cast<NameLoc>(loc))
    return name.getName();
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      if (auto name = dyn_cast<NameLoc>(part))
        return name.getName();
  return fallback;
}

/// Reports the first op of @model that outlining should have moved away.
static LogicalResult checkOutlined(func::FuncOp model) {
  for (Operation &op : model.getBody().front().without_terminator())
    if (!isa<ParamRefOp, func::CallOp>(op))
      return op.emitOpError("stands in @model, expected calls of layer "
                            "functions only");
  return success();
}

namespace {
/// Builds the forward and backward functions, one pair per layer and use.
class Layers {
public:
  Layers(SymbolTableCollection &symbols, Recompute recompute)
      : symbols(symbols), recompute(recompute) {}

  /// The functions of a call; null on failure, which was reported.
  DifferentiatedLayer *of(func::CallOp call, const CallActivity &activity);

private:
  using Known = std::unique_ptr<DifferentiatedLayer>;
  SymbolTableCollection &symbols;
  Recompute recompute;
  llvm::DenseMap<Operation *, SmallVector<Known, 1>> known;
};
} // namespace

/// Whether two functions are different ones with equal types and bodies.
static bool isSameBody(func::FuncOp a, func::FuncOp b) {
  return a != b && a.getFunctionType() == b.getFunctionType() &&
         OperationEquivalence::isRegionEquivalentTo(
             &a.getBody(), &b.getBody(), OperationEquivalence::IgnoreLocations);
}

DifferentiatedLayer *Layers::of(func::CallOp call,
                                const CallActivity &activity) {
  LayerUse use{activity, llvm::BitVector(call.getNumOperands())};
  for (auto [i, operand] : llvm::enumerate(call.getOperands()))
    if (operand.getDefiningOp<ParamRefOp>())
      use.params.set(i);
  auto layer =
      symbols.lookupNearestSymbolFrom<func::FuncOp>(call, call.getCalleeAttr());
  SmallVector<Known, 1> &pairs = known[layer];
  for (const Known &pair : pairs)
    if (pair->use == use)
      return pair.get();
  std::string suffix;
  Operation *after = layer;
  if (!pairs.empty()) {
    suffix = "." + std::to_string(pairs.size());
    after = pairs.back()->backward;
  }
  FailureOr<DifferentiatedLayer> built =
      differentiateLayer(layer, use, recompute, suffix, after);
  if (failed(built))
    return nullptr;
  // Activities often differ in backward only.
  for (const Known &pair : pairs)
    if (isSameBody(pair->forward, built->forward)) {
      built->forward.erase();
      built->forward = pair->forward;
      break;
    }
  pairs.push_back(std::make_unique<DifferentiatedLayer>(*built));
  return pairs.back().get();
}

namespace {
/// Builds @train.
class TrainBuilder {
public:
  TrainBuilder(func::FuncOp model, SymbolTableCollection &symbols,
               Recompute recompute, SplitWeights split)
      : model(model), symbols(symbols), builder(model.getContext()),
        recompute(recompute), split(split), layers(symbols, recompute) {}

  LogicalResult build();

private:
  using Calls = llvm::MapVector<Operation *, CallActivity>;
  void createFunction();
  llvm::DenseSet<Operation *> findLive(const Calls &calls, unsigned losses);
  LogicalResult buildForward(const Calls &calls, unsigned losses);
  void splitWeights();
  void buildBackward(func::CallOp call, const CallActivity &activity);
  void addGradient(func::CallOp call, Value value, Value gradient);
  func::FuncOp adder(RankedTensorType type);
  void finish(const Calls &calls, unsigned losses);
  func::CallOp createCall(func::CallOp like, func::FuncOp callee,
                          ValueRange operands, StringRef phase);

  func::FuncOp model, train;
  SymbolTableCollection &symbols;
  OpBuilder builder;
  Recompute recompute;
  SplitWeights split;
  Layers layers;
  /// From values of @model to those of @train.
  IRMapping map;
  /// Forward calls of @train, and functions, by calls of @model with a
  /// backward.
  llvm::DenseMap<Operation *, func::CallOp> forwardCalls;
  llvm::MapVector<Operation *, DifferentiatedLayer *> functions;
  /// By value of @model: the sum of gradients so far.
  llvm::DenseMap<Value, Value> gradients;
  /// By use of a parameter in @model.
  llvm::DenseMap<std::pair<Operation *, unsigned>, Value> paramGradients;
  llvm::DenseMap<Type, func::FuncOp> adders;
};
} // namespace

/// @train with @model's arguments and the seed; its results come last.
void TrainBuilder::createFunction() {
  SmallVector<Type> inputs(model.getArgumentTypes());
  inputs.push_back(model.getResultTypes()[0]);
  builder.setInsertionPointAfter(model);
  train = func::FuncOp::create(builder, model.getLoc(), "train",
                               builder.getFunctionType(inputs, {}));
  for (unsigned i = 0; i < model.getNumArguments(); ++i)
    train.setArgAttrs(i, model.getArgAttrDict(i));
  train.setArgAttr(inputs.size() - 1, kSeedAttr, builder.getUnitAttr());
  Block *body = train.addEntryBlock();
  map.map(model.getArguments(), body->getArguments().drop_back());
  builder.setInsertionPointToEnd(body);
}

func::CallOp TrainBuilder::createCall(func::CallOp like, func::FuncOp callee,
                                      ValueRange operands, StringRef phase) {
  auto call = func::CallOp::create(builder, like.getLoc(), callee, operands);
  call->setAttr(kPhaseAttr, builder.getStringAttr(phase));
  call->setAttr(kInstanceAttr,
                instanceOf(like.getLoc(), like.getCalleeAttr().getAttr()));
  return call;
}

/// Calls of @model that the loss, its count or a gradient needs. The first
/// `losses` results of @model are loss and count.
llvm::DenseSet<Operation *> TrainBuilder::findLive(const Calls &calls,
                                                   unsigned losses) {
  llvm::DenseSet<Operation *> live;
  Operation *terminator = model.getBody().front().getTerminator();
  SmallVector<Value> stack(terminator->getOperands().take_front(losses));
  while (!stack.empty()) {
    Operation *op = stack.pop_back_val().getDefiningOp();
    if (op && live.insert(op).second)
      llvm::append_range(stack, op->getOperands());
  }
  return live;
}

LogicalResult TrainBuilder::buildForward(const Calls &calls, unsigned losses) {
  llvm::DenseSet<Operation *> live = findLive(calls, losses);
  for (Operation &op : model.getBody().front().without_terminator()) {
    if (!live.contains(&op))
      continue;
    auto call = dyn_cast<func::CallOp>(op);
    if (!call) {
      builder.clone(op, map);
      continue;
    }
    auto callee = symbols.lookupNearestSymbolFrom<func::FuncOp>(
        call, call.getCalleeAttr());
    const CallActivity &activity = calls.find(call)->second;
    if (activity.operands.any()) {
      DifferentiatedLayer *layer = layers.of(call, activity);
      if (!layer)
        return failure();
      functions[call] = layer;
      callee = layer->forward;
    }
    SmallVector<Value> operands;
    for (Value operand : call.getOperands())
      operands.push_back(map.lookup(operand));
    func::CallOp forward = createCall(call, callee, operands, "forward");
    call->setAttr(kInstanceAttr, forward->getAttr(kInstanceAttr));
    forwardCalls[call] = forward;
    map.map(call.getResults(),
            forward.getResults().take_front(call.getNumResults()));
  }
  return success();
}

/// A function that adds two gradients of a type.
func::FuncOp TrainBuilder::adder(RankedTensorType type) {
  func::FuncOp &function = adders[type];
  if (function)
    return function;
  std::string name = "nn.add_gradients.";
  llvm::raw_string_ostream os(name);
  for (int64_t dim : type.getShape())
    os << dim << "x";
  os << type.getElementType();
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPoint(model);
  function =
      func::FuncOp::create(builder, model.getLoc(), name,
                           builder.getFunctionType({type, type}, {type}));
  function.setPrivate();
  function->setAttr(kLayerAttr, builder.getUnitAttr());
  Block *body = function.addEntryBlock();
  builder.setInsertionPointToEnd(body);
  Value sum = Build(builder, model.getLoc())
                  .add(body->getArgument(0), body->getArgument(1));
  func::ReturnOp::create(builder, model.getLoc(), sum);
  return function;
}

/// Adds the contribution of a call to the gradient of a value.
void TrainBuilder::addGradient(func::CallOp call, Value value, Value gradient) {
  Value &sum = gradients[value];
  if (!sum) {
    sum = gradient;
    return;
  }
  func::CallOp add =
      createCall(call, adder(tensorType(value)), {sum, gradient}, "backward");
  sum = add.getResult(0);
}

/// Parts weight gradients from the others, in all layers or none.
void TrainBuilder::splitWeights() {
  if (split == SplitWeights::Never)
    return;
  llvm::MapVector<DifferentiatedLayer *, WeightCut> cuts;
  int64_t weightFlops = 0, backwardFlops = 0;
  for (auto &[call, layer] : functions) {
    auto [entry, isNew] = cuts.try_emplace(layer);
    if (isNew)
      entry->second = findWeightCut(*layer, recompute);
    weightFlops += entry->second.flops;
    backwardFlops += countFlops(layer->backward);
  }
  if (split == SplitWeights::Auto &&
      !isWorthSplitting(weightFlops, backwardFlops))
    return;
  for (auto &[layer, cut] : cuts)
    splitBackward(*layer, cut);
}

void TrainBuilder::buildBackward(func::CallOp call,
                                 const CallActivity &activity) {
  const DifferentiatedLayer &layer = *functions.lookup(call);
  func::CallOp forward = forwardCalls.lookup(call);
  SmallVector<Value> whole;
  for (unsigned i : activity.results.set_bits())
    whole.push_back(gradients.lookup(call.getResult(i)));
  for (Residual residual : layer.residuals)
    whole.push_back(residual.isOperand ? forward.getOperand(residual.index)
                                       : forward.getResult(residual.index));
  SmallVector<std::pair<unsigned, Value>> found;
  func::CallOp backward;
  if (layer.backward) {
    SmallVector<Value> operands;
    for (unsigned i : layer.backwardInputs)
      operands.push_back(whole[i]);
    backward = createCall(call, layer.backward, operands, "backward");
    for (auto [i, gradient] :
         llvm::zip(layer.backwardGradients, backward.getResults()))
      found.emplace_back(i, gradient);
  }
  if (layer.weight) {
    SmallVector<Value> operands;
    for (Residual input : layer.weightInputs)
      operands.push_back(input.isOperand ? whole[input.index]
                                         : backward.getResult(input.index));
    func::CallOp weight = createCall(call, layer.weight, operands, "weight");
    for (auto [i, gradient] :
         llvm::zip_equal(layer.weightGradients, weight.getResults()))
      found.emplace_back(i, gradient);
  }
  for (auto [i, gradient] : found) {
    Value operand = call.getOperand(i);
    if (operand.getDefiningOp<ParamRefOp>())
      paramGradients[{call, i}] = gradient;
    else
      addGradient(call, operand, gradient);
  }
}

/// Returns loss, count and the gradients in program order of their uses.
void TrainBuilder::finish(const Calls &calls, unsigned losses) {
  SmallVector<Value> results;
  SmallVector<DictionaryAttr> attrs;
  Operation *terminator = model.getBody().front().getTerminator();
  for (unsigned i = 0; i < losses; ++i) {
    results.push_back(map.lookup(terminator->getOperand(i)));
    attrs.push_back(model.getResultAttrDict(i));
  }
  for (const auto &[op, activity] : calls)
    for (unsigned i : activity.operands.set_bits()) {
      auto ref = op->getOperand(i).getDefiningOp<ParamRefOp>();
      if (!ref)
        continue;
      results.push_back(paramGradients.lookup({op, i}));
      attrs.push_back(builder.getDictionaryAttr(
          builder.getNamedAttr(kGradientAttr, ref.getParamAttr())));
    }
  func::ReturnOp::create(builder, model.getLoc(), results);
  train.setType(builder.getFunctionType(train.getArgumentTypes(),
                                        ValueRange(results).getTypes()));
  for (auto [i, dictionary] : llvm::enumerate(attrs))
    train.setResultAttrs(i, dictionary);
}

LogicalResult TrainBuilder::build() {
  if (failed(checkOutlined(model)))
    return failure();
  auto lossKind = model.getResultAttrOfType<StringAttr>(0, kLossAttr);
  unsigned losses = lossKind && lossKind.getValue() == "sum" ? 2 : 1;
  Value loss = model.getBody().front().getTerminator()->getOperand(0);
  Calls calls = computeActivity(model, loss, symbols);
  createFunction();
  if (failed(buildForward(calls, losses)))
    return failure();
  splitWeights();
  gradients[loss] = train.getArguments().back();
  for (auto &[op, activity] : llvm::reverse(calls))
    if (activity.operands.any())
      buildBackward(cast<func::CallOp>(op), activity);
  finish(calls, losses);
  return success();
}

namespace {
struct DifferentiatePass
    : mgq::nn::impl::DifferentiatePassBase<DifferentiatePass> {
  using DifferentiatePassBase::DifferentiatePassBase;
  void runOnOperation() override {
    auto model = getOperation().lookupSymbol<func::FuncOp>("model");
    if (!model || model.getNumResults() == 0) {
      getOperation().emitError("has no @model with a loss to differentiate");
      return signalPassFailure();
    }
    SymbolTableCollection symbols;
    if (failed(TrainBuilder(model, symbols, recompute, splitWeights).build()))
      signalPassFailure();
  }
};
} // namespace
