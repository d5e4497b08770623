//===- CheckMemory.cpp - Each call reads what was written for it ----------===//
//
// Keeps the set of written ranges in the order in which the sequences run. A
// read of a range whose last write was another range is a broken plan. What a
// rank receives counts as written before the sequence that reads it.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"

#include <map>

namespace mgq::pipe {
#define GEN_PASS_DEF_CHECKMEMORYPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

namespace {
/// A write still visible in full: its end, and the call that made it.
struct Write {
  int64_t end;
  Operation *writer;
};
using Writes = std::map<int64_t, Write>; // by offset
} // namespace

/// Forgets every write that [begin, end) touches, then records it.
static void record(Writes &writes, int64_t begin, int64_t end, Operation *op) {
  auto it = writes.upper_bound(begin);
  if (it != writes.begin() && std::prev(it)->second.end > begin)
    --it;
  while (it != writes.end() && it->first < end)
    it = writes.erase(it);
  writes[begin] = {end, op};
}

namespace {
/// Writes of the arena, and of a slot of the chunk whose sequences run.
struct Memory {
  int64_t persistent = 0; // the runtime writes what lies before
  Writes arena, slot;

  void write(Attribute place, Operation *op) {
    if (auto range = dyn_cast_or_null<ArenaAttr>(place))
      record(arena, range.getOffset(), range.getOffset() + range.getBytes(),
             op);
    if (auto range = dyn_cast_or_null<SlotAttr>(place))
      record(slot, range.getOffset(), range.getOffset() + range.getBytes(), op);
  }
  bool isWhole(Attribute place) const {
    auto find = [](const Writes &writes, int64_t begin, int64_t end) {
      auto it = writes.find(begin);
      return it != writes.end() && it->second.end == end;
    };
    if (auto range = dyn_cast<ArenaAttr>(place)) {
      int64_t end = range.getOffset() + range.getBytes();
      return end <= persistent || find(arena, range.getOffset(), end);
    }
    if (auto range = dyn_cast<SlotAttr>(place))
      return find(slot, range.getOffset(),
                  range.getOffset() + range.getBytes());
    return true; // a weight
  }
};
} // namespace

/// Checks the reads of a sequence against the writes so far; adds its writes.
static LogicalResult checkSequence(SequenceOp sequence, Memory &memory) {
  for (Operation &op : sequence.getBody().front()) {
    if (auto load = dyn_cast<LoadOp>(op))
      memory.write(load.getPlace(), load);
    auto call = dyn_cast<CallOp>(op);
    if (!call)
      continue;
    int64_t reads = call.getArgs().size() - call.getResults();
    for (auto [i, arg] : llvm::enumerate(call.getArgs()))
      if (int64_t(i) >= reads)
        memory.write(arg, call);
      else if (!memory.isWhole(arg))
        return call.emitOpError("reads ")
               << arg << " of argument " << i
               << ", which no call wrote or a later one wrote over";
  }
  return success();
}

namespace {
/// A sequence, and the kind of edges on which things arrive before it.
struct Step {
  SequenceKind kind;
  int64_t chunk;
  std::optional<EdgeKind> arrives;
};
} // namespace

/// Checks sequences that run one after the other on the same micro-batch.
static LogicalResult checkOrder(RankOp rank, ArrayRef<Step> steps) {
  auto sizes = rank.getMemory();
  if (!sizes)
    return success();
  Memory memory;
  // Weights, gradients, optimizer and cells.
  memory.persistent = (*sizes)[0] + (*sizes)[1] + (*sizes)[2] + (*sizes)[3];
  auto module = rank->getParentOfType<ModuleOp>();
  for (const Step &step : steps) {
    rank.getBody().walk([&](RecvOp recv) {
      auto edge = module.lookupSymbol<EdgeOp>(recv.getEdge());
      if (edge && edge.getKind() == step.arrives &&
          int64_t(edge.getTo()) == step.chunk)
        memory.write(recv.getPlaceAttr(), recv);
    });
    SequenceOp sequence = rank.getSequence(step.kind, step.chunk);
    if (sequence && failed(checkSequence(sequence, memory)))
      return failure();
  }
  return success();
}

static LogicalResult checkRank(RankOp rank) {
  if (failed(checkOrder(rank, {{SequenceKind::Count, -1, std::nullopt}})))
    return failure();
  SmallVector<Step> evaluation;
  for (PlaceSlotsOp slots : rank.getOps<PlaceSlotsOp>()) {
    int64_t chunk = slots.getChunk();
    // Without slots the rank runs no micro-batch of it.
    if (slots.getCount() > 0 &&
        failed(checkOrder(rank,
                          {{SequenceKind::Forward, chunk, EdgeKind::Activation},
                           {SequenceKind::Backward, chunk, EdgeKind::Gradient},
                           {SequenceKind::Weight, chunk, std::nullopt}})))
      return failure();
    evaluation.push_back({SequenceKind::Evaluate, chunk, EdgeKind::Evaluation});
  }
  return checkOrder(rank, evaluation);
}

namespace {
struct CheckMemoryPass : mgq::pipe::impl::CheckMemoryPassBase<CheckMemoryPass> {
  void runOnOperation() override {
    for (RankOp rank : getOperation().getOps<RankOp>())
      if (failed(checkRank(rank)))
        return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace
