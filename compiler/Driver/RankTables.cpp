//===- RankTables.cpp - A rank's plan as constant tables ------------------===//
//
// One function per struct of runtime/include/rt.h, fields in its order.
//
//===----------------------------------------------------------------------===//

#include "compiler/Driver/RankTables.h"

#include "compiler/Driver/Tables.h"
#include "dialects/NN/NNPhases.h"
#include "passes/Pipe/PlanModel.h"
#include "runtime/include/rt.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::pipe;
using llvm::Constant;
using Table = ConstantBuilder::Table;

namespace {
class RankWriter {
public:
  RankWriter(ConstantBuilder &make, ModuleOp module, PlanOp plan, RankOp rank,
             const TableIndex &index);

  Constant *write();

private:
  Constant *ref(Attribute place);
  Constant *nowhere() {
    return make.record({make.i32(MGQ_SPACE_NONE), make.i32(0), make.i64(0)});
  }
  /// What takes a layer function's place in bf16, or null.
  Constant *late(StringRef kernel) {
    FlatSymbolRefAttr name = nn::lateOf(module, kernel);
    return name ? make.function(name.getValue()) : make.null();
  }
  Constant *call(CallOp call);
  Constant *sequence(SequenceKind kind, int64_t chunk = -1);
  Table places(Block &block);
  Table uses();
  Table shards();
  Table grads(int64_t chunk);
  Table chunks();
  std::pair<Table, Table> frozenCalls(int64_t chunk);
  Table outputs();
  Table ops(Block &block);
  Constant *residuals();
  int64_t localChunk(int64_t chunk) const { return local.lookup(chunk); }
  int64_t tagOf(EdgeOp edge, int64_t microBatch) {
    return edgeNumber.lookup(edge) * int64_t(plan.getMicroBatches()) +
           std::max<int64_t>(0, microBatch);
  }

  ConstantBuilder &make;
  ModuleOp module;
  PlanOp plan;
  RankOp rank;
  const TableIndex &index;
  SymbolTable symbols;
  llvm::DenseMap<int64_t, int64_t> local; // by chunk
  llvm::DenseMap<Operation *, int64_t> edgeNumber;
  int64_t microBatchFlops = 0;
};
} // namespace

RankWriter::RankWriter(ConstantBuilder &make, ModuleOp module, PlanOp plan,
                       RankOp rank, const TableIndex &index)
    : make(make), module(module), plan(plan), rank(rank), index(index),
      symbols(module) {
  for (PlaceSlotsOp slots : rank.getOps<PlaceSlotsOp>())
    local.insert({slots.getChunk(), local.size()});
  for (EdgeOp edge : module.getOps<EdgeOp>())
    edgeNumber.insert({edge, edgeNumber.size()});
}

Constant *RankWriter::ref(Attribute place) {
  if (auto range = dyn_cast<ArenaAttr>(place))
    return make.record(
        {make.i32(MGQ_SPACE_ARENA), make.i32(0), make.i64(range.getOffset())});
  if (auto range = dyn_cast<SlotAttr>(place))
    return make.record({make.i32(MGQ_SPACE_SLOT),
                        make.i32(localChunk(range.getChunk())),
                        make.i64(range.getOffset())});
  auto weight = cast<WeightAttr>(place);
  return make.record(
      {make.i32(MGQ_SPACE_WEIGHT),
       make.i32(index.params.lookup(weight.getParam().getValue())),
       make.i64(0)});
}

Constant *RankWriter::sequence(SequenceKind kind, int64_t chunk) {
  SmallVector<Constant *> loads, calls;
  if (SequenceOp sequence = rank.getSequence(kind, chunk))
    for (Operation &op : sequence.getBody().front()) {
      if (auto load = dyn_cast<LoadOp>(op)) {
        loads.push_back(
            make.record({make.i32(index.inputs.lookup(load.getName())),
                         ref(load.getPlace())}));
        continue;
      }
      auto its = cast<CallOp>(op);
      if (kind == SequenceKind::Forward || kind == SequenceKind::Backward ||
          kind == SequenceKind::Weight)
        microBatchFlops += flopsOf(module, its.getKernel());
      calls.push_back(call(its));
    }
  Table loadTable = make.table(loads), callTable = make.table(calls);
  return make.record(
      {loadTable.data, loadTable.count, callTable.data, callTable.count});
}

Constant *RankWriter::call(CallOp call) {
  SmallVector<Constant *> args;
  for (Attribute arg : call.getArgs())
    args.push_back(ref(arg));
  auto layer = index.layers.find(call.getLayer().value_or(""));
  return make.record(
      {make.function(call.getKernel()),
       make.string(call.getLayer().value_or(call.getKernel())),
       make.array(args), make.i32(args.size()),
       make.i32(layer == index.layers.end() ? -1 : layer->second),
       make.i64(call.getScratch().getOffset()),
       make.i64(call.getScratch().getBytes()), late(call.getKernel())});
}

Table RankWriter::shards() {
  SmallVector<Constant *> table;
  for (ShardOp shard : rank.getOps<ShardOp>()) {
    SmallVector<Constant *> calls;
    for (CallOp pack : shard.getOps<CallOp>())
      calls.push_back(call(pack));
    Table loads = make.table({}), callTable = make.table(calls),
          copies = places(shard.getBody().front());
    table.push_back(make.record({make.record({loads.data, loads.count,
                                              callTable.data, callTable.count}),
                                 copies.data, copies.count,
                                 make.i64(shard.getBuffer().getOffset()),
                                 make.i64(shard.getSlice().getOffset()),
                                 make.i64(shard.getSlice().getBytes())}));
  }
  return make.table(table);
}

Table RankWriter::places(Block &block) {
  SmallVector<Constant *> table;
  auto offset = [&](std::optional<uint64_t> value) {
    return make.i64(value ? int64_t(*value) : -1);
  };
  for (PlaceParamOp place : block.getOps<PlaceParamOp>())
    table.push_back(make.record(
        {make.i32(index.params.lookup(place.getParam())),
         make.i32(place.getAs() ? int32_t(typeCode(*place.getAs())) : -1),
         offset(place.getValue()), offset(place.getGradient()),
         offset(place.getMomentum()), offset(place.getVariance())}));
  return make.table(table);
}

Table RankWriter::uses() {
  SmallVector<Constant *> table;
  for (PlaceUseOp use : rank.getOps<PlaceUseOp>())
    table.push_back(make.record({make.i32(index.params.lookup(use.getParam())),
                                 make.i64(use.getAccumulator())}));
  return make.table(table);
}

Table RankWriter::grads(int64_t chunk) {
  SmallVector<Constant *> table;
  for (PlaceGradientOp place : rank.getOps<PlaceGradientOp>())
    if (int64_t(place.getChunk()) == chunk)
      table.push_back(make.record(
          {make.i32(index.params.lookup(place.getParam())),
           make.i32(place.getWeight()), make.i32(place.getAfter()),
           ref(place.getPlace()), make.i64(place.getAccumulator())}));
  return make.table(table);
}

Table RankWriter::chunks() {
  SmallVector<Constant *> table;
  for (PlaceSlotsOp slots : rank.getOps<PlaceSlotsOp>()) {
    int64_t chunk = slots.getChunk();
    Table gradTable = grads(chunk), frozenTable, keptTable;
    std::tie(frozenTable, keptTable) = frozenCalls(chunk);
    table.push_back(
        make.record({make.i32(chunk), make.i32(slots.getCount()),
                     make.i64(slots.getOffset()), make.i64(slots.getBytes()),
                     sequence(SequenceKind::Forward, chunk),
                     sequence(SequenceKind::Backward, chunk),
                     sequence(SequenceKind::Weight, chunk),
                     sequence(SequenceKind::Evaluate, chunk), gradTable.data,
                     gradTable.count, frozenTable.data, frozenTable.count,
                     keptTable.data, keptTable.count}));
  }
  return make.table(table);
}

static int64_t bytesOf(Attribute place) {
  if (auto range = dyn_cast<ArenaAttr>(place))
    return range.getBytes();
  return cast<SlotAttr>(place).getBytes();
}

/// Calls that a cache of the frozen prefix skips, and what it keeps of them.
std::pair<Table, Table> RankWriter::frozenCalls(int64_t chunk) {
  SmallVector<Constant *> frozen, kept;
  if (SequenceOp sequence = rank.getSequence(SequenceKind::Forward, chunk))
    for (auto [i, call] :
         llvm::enumerate(sequence.getBody().getOps<CallOp>())) {
      auto results = call->getAttrOfType<DenseI64ArrayAttr>(kKeptAttr);
      if (!results)
        continue;
      frozen.push_back(make.i32(i));
      int64_t first = int64_t(call.getArgs().size() - call.getResults());
      for (int64_t result : results.asArrayRef())
        kept.push_back(
            make.record({make.i32(i), make.i32(first + result),
                         make.i64(bytesOf(call.getArgs()[first + result]))}));
    }
  return {make.table(frozen), make.table(kept)};
}

Table RankWriter::outputs() {
  SmallVector<Constant *> table;
  for (PlaceOutputOp output : rank.getOps<PlaceOutputOp>())
    table.push_back(
        make.record({make.i32(index.outputs.lookup(output.getName())),
                     make.record({make.i32(MGQ_SPACE_ARENA), make.i32(0),
                                  make.i64(output.getOffset())})}));
  return make.table(table);
}

static mgq_traffic trafficOf(EdgeKind kind) {
  switch (kind) {
  case EdgeKind::Gradient:
  case EdgeKind::Accumulator:
    return MGQ_TRAFFIC_GRADIENT;
  case EdgeKind::Parameter:
    return MGQ_TRAFFIC_PARAMETER;
  default:
    return MGQ_TRAFFIC_ACTIVATION;
  }
}

/// Ops of a program. Waits name what runs beside the compute stream, which is
/// the order of the table.
Table RankWriter::ops(Block &block) {
  SmallVector<Constant *> table;
  llvm::DenseMap<Operation *, int64_t> number;
  int64_t buckets = 0, gathers = 0;
  for (Operation &op : block) {
    if (op.getNumResults() != 1 || !isa<EventType>(op.getResult(0).getType()))
      continue;
    mgq_op_kind kind = MGQ_OP_OPTIMIZER;
    int64_t chunk = -1, microBatch = -1, slot = -1, peer = -1, tag = -1,
            traffic = 0, compression = 0, bytes = 0;
    bool isAhead = false;
    int64_t bucket = -1, beginsIn = -1, beginsAfter = -1, roomBytes = 0;
    Constant *place = nowhere(), *room = nowhere();
    auto task = [&](auto task, mgq_op_kind its) {
      kind = its;
      chunk = localChunk(task.getChunk());
      microBatch = task.getMicroBatch();
      slot = task.getSlot();
    };
    auto message = [&](auto message, mgq_op_kind its) {
      kind = its;
      auto edge = symbols.lookup<EdgeOp>(message.getEdge());
      microBatch =
          message.getMicroBatch() ? int64_t(*message.getMicroBatch()) : -1;
      slot = message.getSlot() ? int64_t(*message.getSlot()) : -1;
      peer = message.getPeer();
      isAhead = message.getAhead();
      tag = tagOf(edge, microBatch);
      traffic = trafficOf(edge.getKind());
      bytes = bytesOf(message.getPlaceAttr());
      place = ref(message.getPlaceAttr());
    };
    if (auto forward = dyn_cast<ForwardOp>(op)) {
      task(forward, MGQ_OP_FORWARD);
      isAhead = forward.getAhead();
    } else if (auto backward = dyn_cast<BackwardOp>(op)) {
      task(backward, MGQ_OP_BACKWARD);
    } else if (auto weight = dyn_cast<WeightGradOp>(op)) {
      task(weight, MGQ_OP_WEIGHT);
    } else if (auto evaluate = dyn_cast<EvaluateOp>(op)) {
      kind = MGQ_OP_EVALUATE;
      chunk = localChunk(evaluate.getChunk());
    } else if (auto send = dyn_cast<SendOp>(op)) {
      message(send, MGQ_OP_SEND);
    } else if (auto recv = dyn_cast<RecvOp>(op)) {
      message(recv, MGQ_OP_RECEIVE);
    } else if (isa<CombineOp>(op)) {
      kind = MGQ_OP_COMBINE;
    } else if (auto reduce = dyn_cast<AllReduceOp>(op)) {
      kind = MGQ_OP_ALL_REDUCE;
      place = ref(reduce.getPlaceAttr());
      bytes = bytesOf(reduce.getPlaceAttr());
      if (auto its = reduce.getCompression())
        compression = int64_t(*its);
      room = ref(reduce.getRoomAttr());
      roomBytes = bytesOf(reduce.getRoomAttr());
      bucket = buckets++;
      if (reduce.getCall()) {
        beginsIn = number.lookup(reduce.getAfter()[0].getDefiningOp());
        beginsAfter = *reduce.getCall();
      }
    }
    if (auto gather = dyn_cast<AllGatherOp>(op)) {
      kind = MGQ_OP_ALL_GATHER;
      isAhead = gather.getAhead();
      place = ref(gather.getPlaceAttr());
      bytes = bytesOf(gather.getPlaceAttr());
      room = ref(gather.getSliceAttr());
      roomBytes = bytesOf(gather.getSliceAttr());
      bucket = gathers++;
    }
    SmallVector<Constant *> waits;
    for (Value event : op.getOperands())
      if (Operation *earlier = event.getDefiningOp();
          isa<SendOp, RecvOp, AllReduceOp, AllGatherOp>(earlier))
        waits.push_back(make.i32(number.lookup(earlier)));
    Table waitTable = make.table(waits);
    number[&op] = table.size();
    table.push_back(
        make.record({make.i32(kind), make.i32(chunk), make.i32(microBatch),
                     make.i32(slot), make.i32(peer), make.i32(tag),
                     make.i32(traffic), make.i32(compression), place,
                     make.i64(bytes), waitTable.data, waitTable.count,
                     make.i32(isAhead), make.i32(bucket), make.i32(beginsIn),
                     make.i32(beginsAfter), room, make.i64(roomBytes)}));
  }
  return make.table(table);
}

static_assert(int(Compression::Bf16) == MGQ_COMPRESSION_BF16 &&
              int(Compression::Sparse24) == MGQ_COMPRESSION_SPARSE24 &&
              int(Compression::Sparse24Int8) == MGQ_COMPRESSION_SPARSE24_INT8);

/// Where compressed gradients keep what they have not sent; -1: nowhere.
Constant *RankWriter::residuals() {
  ArenaAttr gradients;
  SmallVector<ArenaAttr> arrays; // worker, then owner
  for (PlaceResidualsOp place : rank.getOps<PlaceResidualsOp>())
    if (place.getGradients()) {
      gradients = place.getGradientsAttr();
      for (ArrayAttr pair : {place.getWorkerAttr(), place.getOwnerAttr()})
        llvm::append_range(arrays, pair.getAsRange<ArenaAttr>());
    }
  if (!gradients)
    return make.record({make.i64(-1), make.i64(0), make.i64(-1), make.i64(-1),
                        make.i64(-1), make.i64(-1), make.i64(0)});
  SmallVector<Constant *> fields = {make.i64(gradients.getOffset()),
                                    make.i64(gradients.getBytes())};
  for (ArenaAttr array : arrays)
    fields.push_back(make.i64(array.getOffset()));
  fields.push_back(make.i64(arrays.back().getBytes()));
  return make.record(fields);
}

Constant *RankWriter::write() {
  Table placeTable = places(rank.getBody().front()), useTable = uses(),
        chunkTable = chunks(), outputTable = outputs(), shardTable = shards(),
        opTable = ops(rank.getBody().front());
  Table evaluateTable = make.table({});
  for (EvaluationOp evaluation : rank.getOps<EvaluationOp>())
    evaluateTable = ops(evaluation.getBody().front());
  Constant *loss = nowhere(), *seed = nowhere(), *evaluateLoss = nowhere(),
           *count = nowhere();
  int64_t lossChunk = -1;
  for (PlaceLossOp place : rank.getOps<PlaceLossOp>()) {
    loss = ref(place.getLoss());
    seed = ref(place.getSeed());
    evaluateLoss = ref(place.getEvaluate());
    lossChunk = localChunk(place.getChunk());
  }
  for (PlaceCountOp place : rank.getOps<PlaceCountOp>())
    count = make.record(
        {make.i32(MGQ_SPACE_ARENA), make.i32(0), make.i64(place.getOffset())});
  SmallVector<Constant *> memory;
  ArrayRef<int64_t> sizes = *rank.getMemory();
  for (int64_t bytes : sizes)
    memory.push_back(make.i64(bytes));
  int64_t arena = rank.getArenaBytes();
  return make.record(
      {make.i32(rank.getStage()),
       placeTable.data,
       placeTable.count,
       useTable.data,
       useTable.count,
       chunkTable.data,
       chunkTable.count,
       sequence(SequenceKind::PrepareFrozen),
       shardTable.data,
       shardTable.count,
       sequence(SequenceKind::PrepareTrainable),
       sequence(SequenceKind::Count),
       count,
       loss,
       seed,
       evaluateLoss,
       make.i32(lossChunk),
       outputTable.data,
       outputTable.count,
       opTable.data,
       opTable.count,
       evaluateTable.data,
       evaluateTable.count,
       residuals(),
       make.i64(arena),
       make.record(memory),
       make.i64(microBatchFlops * int64_t(plan.getMicroBatches()))});
}

Constant *mgq::buildRankTable(ConstantBuilder &make, ModuleOp module,
                              PlanOp plan, RankOp rank,
                              const TableIndex &index) {
  return RankWriter(make, module, plan, rank, index).write();
}
