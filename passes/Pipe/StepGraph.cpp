//===- StepGraph.cpp - Calls of a step by chunk ---------------------------===//

#include "passes/Pipe/StepGraph.h"

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

SequenceKind mgq::pipe::phaseOf(func::CallOp call) {
  auto phase = call->getAttrOfType<StringAttr>(nn::kPhaseAttr);
  StringRef name = phase ? phase.getValue() : "forward";
  return name == "backward" ? SequenceKind::Backward
         : name == "weight" ? SequenceKind::Weight
                            : SequenceKind::Forward;
}

bool mgq::pipe::isInput(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument)
    return false;
  auto function = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  return bool(function.getArgAttr(argument.getArgNumber(), nn::kInputAttr));
}

int64_t mgq::pipe::byteSize(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  int64_t bits = std::max(8u, tensor.getElementType().getIntOrFloatBitWidth());
  return tensor.getNumElements() * bits / 8;
}

int64_t StepGraph::chunkOf(func::CallOp call) {
  auto chunk = call->getAttrOfType<IntegerAttr>(kChunkAttr);
  return chunk ? chunk.getInt() : -1;
}

/// Body of a function in calls; anything else but param_ref and return is a
/// broken invariant of the phases before.
static LogicalResult readCalls(ModuleOp module, StringRef name,
                               CallList &list) {
  list = CallList(module.lookupSymbol<func::FuncOp>(name));
  if (!list.function())
    return success();
  for (unsigned i = 0; i < list.function().getNumArguments(); ++i)
    if (!list.function().getArgAttr(i, nn::kInputAttr) &&
        !list.function().getArgAttr(i, "nn.seed"))
      return list.function().emitError("argument ")
             << i << " is neither an input nor the seed";
  for (Operation &op : list.function().getBody().front()) {
    if (auto call = dyn_cast<func::CallOp>(op)) {
      list.add(call);
    } else if (!isa<nn::ParamRefOp, func::ReturnOp>(op)) {
      return op.emitError(
                 "is not in a layer function; expected only calls in @")
             << name;
    }
  }
  return success();
}

/// Adds the calls on inputs alone that `value` needs and `have` lacks.
static void addRepeated(Value value, llvm::SetVector<Operation *> &have,
                        const llvm::SetVector<Operation *> *earlier) {
  func::CallOp call = StepGraph::producer(value);
  if (!call || StepGraph::chunkOf(call) >= 0 || have.contains(call) ||
      (earlier && earlier->contains(call)))
    return;
  for (Value operand : call.getOperands())
    addRepeated(operand, have, earlier);
  have.insert(call);
}

SequenceKind StepGraph::sequenceOf(func::CallOp call) const {
  SequenceKind phase = phaseOf(call);
  int64_t chunk = chunkOf(call);
  if (phase == SequenceKind::Weight && chunk >= 0 && !splitsWeight[chunk])
    return SequenceKind::Backward;
  return phase;
}

llvm::MapVector<StringAttr, int64_t> StepGraph::owners(ModuleOp module) const {
  llvm::MapVector<StringAttr, int64_t> found;
  SymbolTable symbols(module);
  for (func::CallOp call : train.calls())
    for (Value operand : call.getOperands()) {
      auto ref = operand.getDefiningOp<nn::ParamRefOp>();
      auto param = ref ? symbols.lookup<nn::ParamOp>(ref.getParam()) : nullptr;
      if (param && param.isTrainable())
        found.insert({param.getSymNameAttr(), stageOf(chunkOf(call), 0)});
    }
  return found;
}

SmallVector<int64_t> StepGraph::usersOf(StringAttr param) const {
  llvm::SmallSetVector<int64_t, 4> found;
  for (const CallList *list : {&train, &model})
    for (func::CallOp call : list->calls())
      for (Value operand : call.getOperands()) {
        auto ref = operand.getDefiningOp<nn::ParamRefOp>();
        if (ref && ref.getParamAttr().getAttr() == param && chunkOf(call) >= 0)
          found.insert_range(stages[chunkOf(call)]);
      }
  SmallVector<int64_t> sorted = found.takeVector();
  llvm::sort(sorted);
  return sorted;
}

void StepGraph::buildSequences() {
  sequences.resize(chunks);
  auto build = [&](const CallList &list, int64_t chunk, SequenceKind kind,
                   SequenceKind phase, ValueRange roots,
                   llvm::SetVector<Operation *> *earlier) {
    llvm::SetVector<Operation *> calls;
    for (func::CallOp call : list.calls()) {
      if (chunkOf(call) != chunk || sequenceOf(call) != phase)
        continue;
      for (Value operand : call.getOperands())
        addRepeated(operand, calls, earlier);
      calls.insert(call);
    }
    for (Value root : roots)
      addRepeated(root, calls, earlier);
    auto &sequence = sequences[chunk][static_cast<int>(kind)];
    for (Operation *call : calls) {
      sequence.push_back(cast<func::CallOp>(call));
      if (earlier)
        earlier->insert(call);
    }
  };
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    llvm::SetVector<Operation *> earlier;
    for (SequenceKind kind :
         {SequenceKind::Forward, SequenceKind::Backward, SequenceKind::Weight})
      build(train, chunk, kind, kind, {}, &earlier);
    // Outputs that depend on inputs alone are made where the loss is.
    build(model, chunk, SequenceKind::Evaluate, SequenceKind::Forward,
          chunk == lossChunk ? model.returnOp()->getOperands() : ValueRange(),
          nullptr);
  }
}

FailureOr<PlanOp> mgq::pipe::findPlan(ModuleOp module) {
  auto plans = module.getOps<PlanOp>();
  if (plans.empty())
    return module.emitError("has no pipe.plan");
  return *plans.begin();
}

FailureOr<StepGraph> StepGraph::create(ModuleOp module) {
  FailureOr<PlanOp> plan = findPlan(module);
  if (failed(plan))
    return failure();
  return create(module, *plan);
}

FailureOr<StepGraph> StepGraph::create(ModuleOp module, PlanOp plan) {
  StepGraph graph;
  graph.plan = plan;
  for (ChunkOp chunk : plan.getOps<ChunkOp>()) {
    graph.stages.emplace_back(chunk.getRanks());
    graph.splitsWeight.push_back(chunk.getWeight());
  }
  graph.chunks = graph.stages.size();
  if (failed(readCalls(module, "train", graph.train)) ||
      failed(readCalls(module, "model", graph.model)) ||
      failed(readCalls(module, "count", graph.count)))
    return failure();
  if (!graph.train.function() || !graph.model.function()) {
    module.emitError("has no @train or no @model to plan");
    return failure();
  }
  for (const CallList *list : {&graph.train, &graph.model})
    for (func::CallOp call : list->calls())
      if (chunkOf(call) >= graph.chunks) {
        call.emitError("is in chunk ")
            << chunkOf(call) << ", the plan has " << graph.chunks;
        return failure();
      }
  func::CallOp loss = producer(graph.train.returnOp()->getOperand(0));
  if (!loss || chunkOf(loss) < 0) {
    graph.train.function().emitError(
        "not supported yet: a loss that no layer makes");
    return failure();
  }
  graph.lossChunk = chunkOf(loss);
  graph.buildSequences();
  return graph;
}

void StepGraph::addCrossings(const CallList &list,
                             SmallVectorImpl<Crossing> &found) const {
  for (func::CallOp call : list.calls()) {
    int64_t from = chunkOf(call);
    if (from < 0)
      continue;
    EdgeKind kind = &list == &model ? EdgeKind::Evaluation
                    : phaseOf(call) == SequenceKind::Forward
                        ? EdgeKind::Activation
                        : EdgeKind::Gradient;
    for (Value result : call.getResults()) {
      SmallVector<int64_t> readers;
      for (Operation *user : result.getUsers())
        if (auto reader = dyn_cast<func::CallOp>(user))
          if (chunkOf(reader) >= 0 && chunkOf(reader) != from)
            readers.push_back(chunkOf(reader));
      llvm::sort(readers);
      readers.erase(llvm::unique(readers), readers.end());
      for (int64_t to : readers)
        found.push_back({kind, from, to, result});
    }
  }
}

SmallVector<Crossing> StepGraph::crossings() const {
  SmallVector<Crossing> found;
  addCrossings(train, found);
  addCrossings(model, found);
  return found;
}
