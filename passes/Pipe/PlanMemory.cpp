//===- PlanMemory.cpp - Every value of a step gets its place --------------===//
//
// In: @train, @model and @count call layer functions on tensors; @kernels holds
// the code of the layer functions with its scratch sizes; a pipe.rank holds
// the program of a step. Out: the rank also holds placements and sequences, and
// messages have places.
//
// RankPlanner.h has the layout of the arena.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/RankPlanner.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_PLANMEMORYPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

/// The argument of @train that holds the gradient of the loss.
static Value seedOf(func::FuncOp train) {
  for (BlockArgument argument : train.getArguments())
    if (train.getArgAttr(argument.getArgNumber(), "nn.seed"))
      return argument;
  return nullptr;
}

void RankPlanner::collectChunks() {
  // The loss has a cell, unless gradients read it too.
  Value loss = graph.train.returnOp()->getOperand(0);
  if (llvm::none_of(loss.getUsers(),
                    [](Operation *user) { return isa<func::CallOp>(user); }))
    inCells.insert(loss);
  if (Value seed = seedOf(graph.train.function()))
    inCells.insert(seed);

  for (int64_t chunk = 0; chunk < graph.chunks; ++chunk) {
    if (!isHere(chunk))
      continue;
    int64_t slots = 0;
    auto count = [&](auto op) {
      if (int64_t(op.getChunk()) == chunk)
        slots = std::max<int64_t>(slots, op.getSlot() + 1);
    };
    for (ForwardOp op : rank.getOps<ForwardOp>())
      count(op);
    chunks.push_back(Chunk{chunk, slots, 0,
                           ChunkLayout(graph, chunk, crossings, inCells),
                           Places()});
  }
}

/// Every call that the rank may run.
SmallVector<func::CallOp> RankPlanner::allCalls() const {
  SmallVector<func::CallOp> calls;
  for (const Chunk &chunk : chunks)
    for (SequenceKind kind : {SequenceKind::Forward, SequenceKind::Backward,
                              SequenceKind::Weight, SequenceKind::Evaluate})
      llvm::append_range(calls, graph.calls(kind, chunk.index));
  llvm::append_range(calls, graph.count.calls());
  return calls;
}

/// Outputs of @model and @count have fixed cells: the runtime reads them.
LogicalResult RankPlanner::placeOutputs(const CallList &list) {
  if (!list.function())
    return success();
  bool isCount = &list == &graph.count;
  Places &places = isCount ? counted : evaluated;
  for (OpOperand &operand : list.returnOp()->getOpOperands()) {
    unsigned i = operand.getOperandNumber();
    Value value = operand.get();
    auto role = list.function().getResultAttrOfType<StringAttr>(i, "nn.loss");
    auto output =
        list.function().getResultAttrOfType<StringAttr>(i, nn::kOutputAttr);
    auto type = cast<RankedTensorType>(value.getType());
    if ((role || isCount) &&
        (!type.getElementType().isF32() || type.getNumElements() != 1))
      return list.function().emitError("not supported yet: a loss of type ")
             << type << "; supported: one f32";
    auto call = StepGraph::producer(value);
    std::string key = isCount  ? "count"
                      : output ? ("out:" + output.getValue()).str()
                               : "evaluated count";
    if (places.contains(value) || !call)
      return list.function().emitError("not supported yet: output ")
             << (output ? output.getValue() : StringRef(key))
             << " that is also an input, a parameter or another output";
    int64_t maker = StepGraph::chunkOf(call);
    if (!isCount &&
        graph.stageOf(maker < 0 ? graph.lossChunk : maker, 0) != stage)
      continue;
    ArenaAttr place = memory.cell(key, type);
    places[value] = place;
    if (isCount)
      PlaceCountOp::create(builder, rank.getLoc(), place.getOffset());
    else if (output)
      PlaceOutputOp::create(builder, list.function().getLoc(), output,
                            TypeAttr::get(type),
                            builder.getI64IntegerAttr(place.getOffset()));
  }
  return success();
}

LogicalResult RankPlanner::placeCells() {
  auto scalar = RankedTensorType::get({}, builder.getF32Type());
  ArenaAttr seed = memory.cell("seed", scalar);
  if (failed(placeOutputs(graph.model)) || failed(placeOutputs(graph.count)))
    return failure();
  Value loss = graph.train.returnOp()->getOperand(0);
  auto lossType = cast<RankedTensorType>(loss.getType());
  if (!lossType.getElementType().isF32() || lossType.getNumElements() != 1)
    return graph.train.function().emitError(
               "not supported yet: a loss of type ")
           << lossType << "; supported: one f32";
  Value seedArgument = seedOf(graph.train.function());
  for (Chunk &chunk : chunks) {
    if (seedArgument)
      chunk.places[seedArgument] = seed;
    if (chunk.index == graph.lossChunk && inCells.contains(loss))
      chunk.places[loss] = memory.cell("loss", loss.getType());
  }
  return success();
}

/// Slots of all chunks, then the shared part.
void RankPlanner::placeSlots() {
  // One micro-batch in one chunk: its values may share all memory, unless they
  // live on from one step to the next.
  bool runsAhead = llvm::any_of(rank.getOps<ForwardOp>(),
                                [](ForwardOp op) { return op.getAhead(); });
  bool oneSlot =
      chunks.size() == 1 && chunks.front().slotCount <= 1 && !runsAhead;
  int64_t at = memory.cells.end();
  for (Chunk &chunk : chunks) {
    chunk.layout.place(oneSlot);
    chunk.slotsBegin = at;
    at += chunk.layout.slotBytes() * chunk.slotCount;
    PlaceSlotsOp::create(builder, rank.getLoc(), chunk.index, chunk.slotsBegin,
                         chunk.layout.slotBytes(), chunk.slotCount);
    sharedBytes = std::max(sharedBytes, chunk.layout.sharedBytes());
  }
  // Evaluations keep nothing: they may use the only slot as well.
  sharedBegin = oneSlot ? memory.cells.end() : at;
  for (Chunk &chunk : chunks)
    for (const PlacedValue &value : chunk.layout.values()) {
      int64_t offset = value.lifetime.offset, bytes = value.lifetime.bytes;
      chunk.places[value.value] =
          value.inSlot ? Attribute(SlotAttr::get(builder.getContext(),
                                                 chunk.index, offset, bytes))
                       : Attribute(memory.arena(sharedBegin + offset, bytes));
    }
  activationBytes = at - memory.cells.end();
}

/// Packs the weights once, when they have been loaded.
void RankPlanner::addPrepareSequence() {
  if (memory.panels.empty())
    return;
  auto sequence = SequenceOp::create(
      builder, rank.getLoc(), SequenceKind::PrepareFrozen, IntegerAttr());
  OpBuilder body(builder.getContext());
  body.createBlock(&sequence.getBody());
  for (auto &[key, place] : memory.panels) {
    auto [param, pack] = key;
    CallOp::create(body, rank.getLoc(), pack.getValue(),
                   builder.getArrayAttr({memory.params.lookup(param), place}),
                   /*results=*/1, scratch(pack.getValue()), StringAttr());
  }
}

/// Packs or places the weights that are spread, and places their gathers.
void RankPlanner::addShards() {
  for (const Shard &shard : memory.shards) {
    auto op = ShardOp::create(builder, rank.getLoc(), shard.chunk, shard.slice,
                              shard.buffer);
    OpBuilder body(builder.getContext());
    body.createBlock(&op.getBody());
    for (auto &[key, place] : shard.weights.panels)
      CallOp::create(
          body, rank.getLoc(), key.second.getValue(),
          builder.getArrayAttr({memory.params.lookup(key.first), place}),
          /*results=*/1, scratch(key.second.getValue()), StringAttr());
    for (auto &[key, place] : shard.weights.copies)
      memory.createCopy(body, key, place);
    rank.getBody().walk([&](AllGatherOp gather) {
      if (int64_t(gather.getChunk()) != shard.chunk)
        return;
      gather.setPlaceAttr(shard.buffer);
      gather.setSliceAttr(shard.slice);
    });
  }
}

void RankPlanner::addSequence(SequenceKind kind, std::optional<int64_t> chunk,
                              ArrayRef<func::CallOp> calls,
                              ArrayRef<Value> loads, const Places &places) {
  auto sequence = SequenceOp::create(builder, rank.getLoc(), kind,
                                     chunk ? builder.getI64IntegerAttr(*chunk)
                                           : IntegerAttr());
  OpBuilder body(builder.getContext());
  body.createBlock(&sequence.getBody());
  for (Value value : loads) {
    auto argument = cast<BlockArgument>(value);
    auto function = cast<func::FuncOp>(argument.getOwner()->getParentOp());
    unsigned i = argument.getArgNumber();
    auto name = function.getArgAttrOfType<StringAttr>(i, nn::kInputAttr);
    // @model's arguments carry the limits.
    func::FuncOp model = graph.model.function();
    IntegerAttr limit, ignore;
    for (unsigned j = 0; j < model.getNumArguments(); ++j)
      if (model.getArgAttr(j, nn::kInputAttr) == name) {
        limit = model.getArgAttrOfType<IntegerAttr>(j, "nn.limit");
        ignore = model.getArgAttrOfType<IntegerAttr>(j, "nn.ignore");
      }
    LoadOp::create(body, value.getLoc(), name, TypeAttr::get(value.getType()),
                   places.lookup(value), limit, ignore);
  }
  for (func::CallOp call : calls) {
    SmallVector<Attribute> args;
    for (auto [i, value] : llvm::enumerate(call.getOperands()))
      args.push_back(value.getDefiningOp<nn::ParamRefOp>()
                         ? memory.placeOf(call, i)
                         : places.lookup(value));
    for (Value value : call.getResults())
      args.push_back(places.lookup(value));
    auto made = CallOp::create(
        body, call.getLoc(), call.getCallee(), builder.getArrayAttr(args),
        call.getNumResults(), scratch(call.getCallee()),
        call->getAttrOfType<StringAttr>(nn::kInstanceAttr));
    if (auto kept = call->getAttrOfType<DenseI64ArrayAttr>(kKeptAttr);
        kept && kind == SequenceKind::Forward)
      made->setAttr(kKeptAttr, kept);
  }
}

/// Where calls leave gradients, and when they are added to what.
LogicalResult RankPlanner::placeGradients() {
  Operation *ret = graph.train.returnOp();
  LogicalResult result = success();
  forEachGradient(graph.train.function(), [&](unsigned i, StringAttr param) {
    Value value = ret->getOperand(i);
    auto call = StepGraph::producer(value);
    if (!call || phaseOf(call) == SequenceKind::Forward) {
      result = graph.train.function().emitError("gradient of @")
               << param.getValue() << " is not the result of a backward call";
      return;
    }
    SequenceKind kind = graph.sequenceOf(call);
    for (const Chunk &chunk : chunks)
      if (chunk.index == StepGraph::chunkOf(call)) {
        ArrayRef<func::CallOp> calls = graph.calls(kind, chunk.index);
        PlaceGradientOp::create(builder, value.getLoc(), param.getValue(), i,
                                chunk.index, chunk.places.lookup(value),
                                memory.accumulator(i),
                                llvm::find(calls, call) - calls.begin(),
                                kind == SequenceKind::Weight);
      }
  });
  return result;
}

LogicalResult RankPlanner::run() {
  collectChunks();
  for (AllReduceOp reduce : rank.getOps<AllReduceOp>())
    if (auto params = reduce.getParams())
      for (Attribute param : *params)
        memory.gradientOrder.push_back(
            cast<FlatSymbolRefAttr>(param).getAttr());
  rank.getBody().walk([&](AllGatherOp gather) {
    if (!llvm::is_contained(memory.shardedChunks, int64_t(gather.getChunk())))
      memory.shardedChunks.push_back(gather.getChunk());
  });
  memory.members = plan.getStages() > 1 ? plan.getStages() : plan.getReplicas();
  SmallVector<func::CallOp> calls = allCalls();
  for (func::CallOp call : calls)
    if (!kernels.find(call.getCallee()))
      return call.emitError("calls @")
             << call.getCallee() << ", which has no code in @kernels";
  if (failed(memory.placeParams(builder, calls)))
    return failure();
  memory.placeResiduals(rank, plan.getReplicas());
  if (failed(placeCells()))
    return failure();
  placeSlots();
  Evaluated evaluation = layOutEvaluation();
  SmallVector<Value> countLoads = layOutCount();
  // Where a single slot holds everything, evaluations overlap it.
  activationBytes =
      std::max(activationBytes, sharedBegin + sharedBytes - memory.cells.end());
  scratchBegin = memory.cells.end() + activationBytes;
  for (func::CallOp call : calls)
    scratchSize = std::max(scratchSize,
                           alignBytes(kernels.scratchBytes(call.getCallee())));
  auto addPack = [&](StringAttr pack) {
    scratchSize = std::max(scratchSize, alignBytes(kernels.scratchBytes(pack)));
  };
  for (auto &[key, place] : memory.panels)
    addPack(key.second);
  for (const Shard &shard : memory.shards)
    for (auto &[key, place] : shard.weights.panels)
      addPack(key.second);
  placeReductions();

  if (failed(placeGradients()))
    return failure();
  for (const Chunk &chunk : chunks)
    if (chunk.index == graph.lossChunk)
      PlaceLossOp::create(
          builder, rank.getLoc(), chunk.index,
          chunk.places.lookup(graph.train.returnOp()->getOperand(0)),
          memory.cell("seed", RankedTensorType::get({}, builder.getF32Type())),
          evaluated.lookup(graph.model.returnOp()->getOperand(0)));
  addPrepareSequence();
  addShards();
  for (const Chunk &chunk : chunks) {
    for (SequenceKind kind :
         {SequenceKind::Forward, SequenceKind::Backward, SequenceKind::Weight})
      if (auto list = graph.calls(kind, chunk.index); !list.empty())
        addSequence(kind, chunk.index, list, chunk.layout.loads(kind),
                    chunk.places);
    if (graph.stageOf(chunk.index, 0) == stage)
      addSequence(SequenceKind::Evaluate, chunk.index,
                  graph.calls(SequenceKind::Evaluate, chunk.index),
                  evaluation.loads.lookup(chunk.index), evaluated);
  }
  if (graph.count.function())
    addSequence(SequenceKind::Count, std::nullopt, graph.count.calls(),
                countLoads, counted);
  placeMessages();
  rank.setMemory(ArrayRef<int64_t>{memory.weights.bytes, memory.gradients.bytes,
                                   memory.optimizer.bytes, memory.cells.bytes,
                                   activationBytes, scratchSize});
  return success();
}

namespace {
struct PlanMemoryPass : mgq::pipe::impl::PlanMemoryPassBase<PlanMemoryPass> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<StepGraph> graph = StepGraph::create(module);
    if (failed(graph))
      return signalPassFailure();
    Kernels kernels(module);
    SmallVector<Crossing> crossings = graph->crossings();
    for (RankOp rank : module.getOps<RankOp>())
      if (failed(RankPlanner(module, graph->plan, *graph, kernels, crossings,
                             rank, copyWeights)
                     .run()))
        return signalPassFailure();
  }
};
} // namespace
