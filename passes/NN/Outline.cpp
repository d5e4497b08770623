//===- Outline.cpp - A model becomes calls of layers
//------------------------===//
//
// In: @model of nn ops, marked. After it: @model and @count hold parameters,
// calls and return. Each segment of the graph (Segments.cpp) is a call; those
// of equal structure call one function, with other parameters:
//
//   %1 = call @layers.mlp(%0, %norm0, %gate0, ...)      "layers.0.mlp"
//   ...
//   %9 = call @layers.mlp(%8, %norm1, %gate1, ...)      "layers.1.mlp"
//
// Constants and views of parameters are copied into the layers that use them.
// What depends on graph inputs alone (masks, rotary tables, labels) goes into
// the one segment that uses it; what several use is computed by functions of
// its own, one per group of ops that share work. So no call but these takes
// such values from another, and every stage can compute them itself.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/LayerNames.h"
#include "passes/NN/Passes.h"
#include "passes/NN/Segments.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/MapVector.h"
#include <map>

namespace mgq::nn {
#define GEN_PASS_DEF_OUTLINEPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq::nn;

namespace {
/// Layer functions by structure.
class Layers {
public:
  explicit Layers(ModuleOp module) : module(module), symbols(module) {}

  /// The function of `ops`, made if no equal one is known.
  func::FuncOp get(ArrayRef<Operation *> ops, ArrayRef<Value> operands,
                   ArrayRef<Value> results, const Structure &structure,
                   StringRef name);

private:
  ModuleOp module;
  SymbolTable symbols;
  std::map<Structure, func::FuncOp> known;
};

/// Where an op goes: a group of shared ops or a segment.
struct Home {
  enum { Nowhere, Shared, InSegment } kind = Nowhere;
  size_t segment = 0;

  void join(const Home &other) {
    if (kind == Nowhere)
      *this = other;
    else if (other.kind == Shared ||
             (other.kind == InSegment && other.segment != segment))
      kind = Shared;
  }
};

/// Outlines one function.
class Outliner {
public:
  Outliner(func::FuncOp function, Layers &layers, LayerNames &names)
      : function(function), layers(layers), names(names), graph(function) {}

  void run();

private:
  void placeInputOps(ArrayRef<Segment> segments);
  SmallVector<SmallVector<Operation *>> groupShared();
  SmallVector<Operation *> inOrder(ArrayRef<Operation *> ops);
  void call(ArrayRef<Operation *> ops, StringRef name);

  func::FuncOp function;
  Layers &layers;
  LayerNames &names;
  Graph graph;
  DenseMap<Operation *, Home> homes;
  /// Input ops of each segment.
  SmallVector<SmallVector<Operation *>> sunk;
  /// Results of calls for the values that they compute.
  IRMapping computed;
};
} // namespace

func::FuncOp Layers::get(ArrayRef<Operation *> ops, ArrayRef<Value> operands,
                         ArrayRef<Value> results, const Structure &structure,
                         StringRef name) {
  func::FuncOp &layer = known[structure];
  if (layer)
    return layer;
  OpBuilder builder(module.getContext());
  auto type = builder.getFunctionType(ValueRange(operands).getTypes(),
                                      ValueRange(results).getTypes());
  Location loc = NameLoc::get(builder.getStringAttr(name));
  layer = func::FuncOp::create(loc, layerOf(name), type);
  layer.setPrivate();
  layer->setAttr(kLayerAttr, builder.getUnitAttr());
  symbols.insert(layer, module.getBody()->end());
  Block *body = builder.createBlock(&layer.getBody());
  IRMapping mapping;
  for (Value operand : operands)
    mapping.map(operand,
                body->addArgument(operand.getType(), operand.getLoc()));
  for (Operation *op : ops)
    builder.clone(*op, mapping);
  SmallVector<Value> returned;
  for (Value result : results)
    returned.push_back(mapping.lookup(result));
  func::ReturnOp::create(builder, loc, returned);
  return layer;
}

/// Decides for each op that depends on inputs alone who computes it.
void Outliner::placeInputOps(ArrayRef<Segment> segments) {
  for (auto [i, segment] : llvm::enumerate(segments))
    for (Operation *op : graph.getChain().slice(segment.begin, segment.size()))
      homes[op] = {Home::InSegment, i};
  // A view of parameters never uses input ops, so users are chain or input ops,
  // or the return.
  for (Operation *op : llvm::reverse(graph.getInputOps())) {
    Home home;
    for (Operation *user : op->getUsers())
      home.join(isa<func::ReturnOp>(user) ? Home{Home::Shared, 0}
                                          : homes.lookup(user));
    homes[op] = home;
  }
  sunk.resize(segments.size());
  for (Operation *op : graph.getInputOps())
    if (Home home = homes.lookup(op); home.kind == Home::InSegment)
      sunk[home.segment].push_back(op);
}

/// Groups the shared ops by what they compute together.
SmallVector<SmallVector<Operation *>> Outliner::groupShared() {
  llvm::EquivalenceClasses<Operation *> classes;
  auto isShared = [&](Operation *op) {
    return op && homes.lookup(op).kind == Home::Shared;
  };
  for (Operation *op : graph.getInputOps()) {
    if (!isShared(op))
      continue;
    classes.insert(op);
    for (Value operand : op->getOperands())
      if (isShared(operand.getDefiningOp()))
        classes.unionSets(op, operand.getDefiningOp());
  }
  llvm::MapVector<Operation *, SmallVector<Operation *>> groups;
  for (Operation *op : graph.getInputOps())
    if (isShared(op))
      groups[classes.getLeaderValue(op)].push_back(op);
  SmallVector<SmallVector<Operation *>> result;
  for (auto &[leader, ops] : groups)
    result.push_back(std::move(ops));
  return result;
}

/// `ops` with the constants and views that they use, each before its first use
/// as operands come: the order of equal segments is equal, wherever exporters
/// and earlier passes left what the segments share.
SmallVector<Operation *> Outliner::inOrder(ArrayRef<Operation *> ops) {
  DenseSet<Operation *> own(ops.begin(), ops.end());
  SetVector<Operation *> ordered;
  std::function<void(Operation *)> visit = [&](Operation *op) {
    if (ordered.contains(op))
      return;
    for (Value operand : op->getOperands()) {
      Operation *def = operand.getDefiningOp();
      if (def && (own.contains(def) || graph.roleOf(def) == Role::Constant ||
                  graph.roleOf(def) == Role::View))
        visit(def);
    }
    ordered.insert(op);
  };
  // The chain keeps its order; the rest follows from uses.
  for (Operation *op : ops)
    if (graph.roleOf(op) == Role::Chain)
      visit(op);
  llvm::for_each(ops, visit);
  return ordered.takeVector();
}

/// Calls a layer that does `ops`.
void Outliner::call(ArrayRef<Operation *> ops, StringRef name) {
  SmallVector<Operation *> all = inOrder(ops);
  DenseSet<Operation *> own(ops.begin(), ops.end());
  SmallVector<Value> results, operands;
  for (Operation *op : all)
    for (Value result : op->getResults())
      if (own.contains(op) &&
          llvm::any_of(result.getUsers(),
                       [&](Operation *user) { return !own.contains(user); }))
        results.push_back(result);
  Structure structure = describe(all, results, operands);
  func::FuncOp layer = layers.get(all, operands, results, structure, name);

  OpBuilder builder(function.getBody().front().getTerminator());
  SmallVector<Value> arguments;
  for (Value operand : operands) {
    if (auto ref = operand.getDefiningOp<ParamRefOp>();
        ref && !computed.contains(operand)) {
      auto copy = builder.clone(*ref);
      computed.map(operand, copy->getResult(0));
    }
    arguments.push_back(computed.lookupOrDefault(operand));
  }
  auto call = func::CallOp::create(
      builder, NameLoc::get(builder.getStringAttr(name)), layer, arguments);
  computed.map(ValueRange(results), call.getResults());
}

/// Whether the first result of the model comes from `ops`.
static bool definesLoss(ArrayRef<Operation *> ops) {
  return llvm::any_of(ops, [](Operation *op) {
    return llvm::any_of(op->getUses(), [](OpOperand &use) {
      return isa<func::ReturnOp>(use.getOwner()) && use.getOperandNumber() == 0;
    });
  });
}

void Outliner::run() {
  Block &block = function.getBody().front();
  SmallVector<Operation *> old;
  for (Operation &op : block.without_terminator())
    old.push_back(&op);
  SmallVector<Segment> segments = cutIntoSegments(graph);
  placeInputOps(segments);
  bool isModel = function.getSymName() == "model";
  for (auto &group : groupShared())
    call(group, names.unique(isModel ? "inputs" : function.getSymName()));
  for (Segment segment : segments)
    names.add(graph.getChain().slice(segment.begin, segment.size()));
  for (auto [i, segment] : llvm::enumerate(segments)) {
    auto chain = graph.getChain().slice(segment.begin, segment.size());
    SmallVector<Operation *> ops(sunk[i]);
    llvm::append_range(ops, chain);
    std::string name = !isModel ? names.unique(function.getSymName())
                       : definesLoss(chain) ? names.unique("loss")
                                            : names.nameOf(i);
    call(ops, name);
  }
  Operation *terminator = block.getTerminator();
  OpBuilder builder(terminator);
  for (OpOperand &operand : terminator->getOpOperands()) {
    // A parameter that is an output itself, or a constant.
    if (auto ref = operand.get().getDefiningOp<ParamRefOp>();
        ref && !computed.contains(ref))
      computed.map(operand.get(), builder.clone(*ref)->getResult(0));
    if (auto constant = operand.get().getDefiningOp<ConstantOp>();
        constant && !computed.contains(constant))
      call({constant}, names.unique("output"));
    operand.set(computed.lookupOrDefault(operand.get()));
  }
  for (Operation *op : llvm::reverse(old))
    op->erase();
}

namespace {
struct OutlinePass : mgq::nn::impl::OutlinePassBase<OutlinePass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto model = module.lookupSymbol<func::FuncOp>("model");
    if (!model) {
      emitError(module.getLoc(), "the module has no function @model");
      return signalPassFailure();
    }
    Layers layers(module);
    LayerNames names;
    Outliner(model, layers, names).run();
    if (auto count = module.lookupSymbol<func::FuncOp>("count"))
      Outliner(count, layers, names).run();
  }
};
} // namespace
