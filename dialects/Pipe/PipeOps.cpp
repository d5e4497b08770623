//===- PipeOps.cpp - Verifiers and accessors of pipe ops ------------------===//

#include "dialects/Pipe/Pipe.h"

#include "mlir/IR/Builders.h"
#include <numeric>

using namespace mlir;
using namespace mgq::pipe;

//===----------------------------------------------------------------------===//
// plan
//===----------------------------------------------------------------------===//

LogicalResult PlanOp::verify() {
  if (getStages() < 1 || getReplicas() < 1 || getMicroBatches() < 1)
    return emitOpError("needs at least one stage, replica and micro-batch");
  int64_t expected = 0;
  for (ChunkOp chunk : getOps<ChunkOp>()) {
    if (int64_t(chunk.getIndex()) != expected++)
      return chunk.emitOpError("has index ")
             << chunk.getIndex() << ", expected " << expected - 1;
    for (int64_t rank : chunk.getRanks())
      if (rank < 0 || rank >= int64_t(getStages()))
        return chunk.emitOpError("is on stage ")
               << rank << ", there are " << getStages();
  }
  if (expected == 0)
    return emitOpError("has no chunk");
  return success();
}

LogicalResult ChunkOp::verify() {
  if (getRanks().empty())
    return emitOpError("is on no stage");
  if (getSeconds().size() != 5 || getBytes().size() != 2)
    return emitOpError("needs five seconds and two numbers of bytes");
  if (getRanks().size() > 1 && getBackward())
    return emitOpError("with a backward pass is on more than one stage");
  return success();
}

//===----------------------------------------------------------------------===//
// rank
//===----------------------------------------------------------------------===//

SequenceOp RankOp::getSequence(SequenceKind kind, int64_t chunk) {
  for (SequenceOp sequence : getOps<SequenceOp>())
    if (sequence.getKind() == kind &&
        int64_t(sequence.getChunk().value_or(-1)) == chunk)
      return sequence;
  return nullptr;
}

PlaceSlotsOp RankOp::getSlots(int64_t chunk) {
  for (PlaceSlotsOp slots : getOps<PlaceSlotsOp>())
    if (int64_t(slots.getChunk()) == chunk)
      return slots;
  return nullptr;
}

int64_t RankOp::getArenaBytes() {
  auto memory = getMemory().value_or(ArrayRef<int64_t>());
  return std::accumulate(memory.begin(), memory.end(), int64_t(0));
}

LogicalResult RankOp::verify() {
  if (getMemory() && getMemory()->size() != 6)
    return emitOpError("has ")
           << getMemory()->size() << " memory sizes, expected 6";
  if (!getMemory())
    return success();
  int64_t arena = getArenaBytes();
  llvm::DenseMap<int64_t, int64_t> slotBytes;
  for (PlaceSlotsOp slots : getOps<PlaceSlotsOp>()) {
    slotBytes[slots.getChunk()] = slots.getBytes();
    if (int64_t(slots.getOffset() + slots.getBytes() * slots.getCount()) >
        arena)
      return slots.emitOpError("leave the arena of ") << arena << " bytes";
  }
  WalkResult result = getBody().walk([&](CallOp call) {
    for (Attribute arg : call.getArgs()) {
      if (auto range = dyn_cast<ArenaAttr>(arg))
        if (range.getOffset() < 0 ||
            range.getOffset() + range.getBytes() > arena) {
          call.emitOpError("uses bytes ")
              << range.getOffset() << " to "
              << range.getOffset() + range.getBytes() << " of an arena of "
              << arena;
          return WalkResult::interrupt();
        }
      if (auto range = dyn_cast<SlotAttr>(arg))
        if (range.getOffset() < 0 || range.getOffset() + range.getBytes() >
                                         slotBytes.lookup(range.getChunk())) {
          call.emitOpError("uses bytes ")
              << range.getOffset() << " to "
              << range.getOffset() + range.getBytes() << " of a slot of "
              << slotBytes.lookup(range.getChunk());
          return WalkResult::interrupt();
        }
    }
    return WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}

//===----------------------------------------------------------------------===//
// placements, calls
//===----------------------------------------------------------------------===//

LogicalResult PlaceParamOp::verify() {
  int64_t states = int64_t(getGradient().has_value()) +
                   getMomentum().has_value() + getVariance().has_value();
  if (states != 0 && (states != 3 || !getValue()))
    return emitOpError("of a trainable parameter needs a value, a gradient, a "
                       "momentum and a variance");
  if (getAs() && (states != 0 || !getValue()))
    return emitOpError("has a type, but is not the copy of a frozen parameter");
  return success();
}

LogicalResult PlaceResidualsOp::verify() {
  if (!getGradients())
    return success();
  for (std::optional<ArrayAttr> pair : {getWorker(), getOwner()})
    if (!pair || pair->size() != 2 || !isa<ArenaAttr>((*pair)[0]) ||
        !isa<ArenaAttr>((*pair)[1]))
      return emitOpError("needs two ranges of the arena for workers and two "
                         "for owners");
  return success();
}

/// Whether two places share a byte of one memory.
static bool overlap(Attribute a, Attribute b) {
  auto meet = [](auto x, auto y) {
    return x.getOffset() < y.getOffset() + y.getBytes() &&
           y.getOffset() < x.getOffset() + x.getBytes();
  };
  if (isa<ArenaAttr>(a) && isa<ArenaAttr>(b))
    return meet(cast<ArenaAttr>(a), cast<ArenaAttr>(b));
  if (isa<SlotAttr>(a) && isa<SlotAttr>(b))
    return cast<SlotAttr>(a).getChunk() == cast<SlotAttr>(b).getChunk() &&
           meet(cast<SlotAttr>(a), cast<SlotAttr>(b));
  return false;
}

LogicalResult CallOp::verify() {
  int64_t count = getArgs().size(), results = getResults();
  if (results < 0 || results > count)
    return emitOpError("has ")
           << results << " results among " << count << " arguments";
  for (Attribute arg : getArgs())
    if (!isa<ArenaAttr, SlotAttr, WeightAttr>(arg))
      return emitOpError("has argument ")
             << arg << ", expected #pipe.arena, #pipe.slot or #pipe.weight";
  for (int64_t i = count - results; i < count; ++i) {
    Attribute written = getArgs()[i];
    if (isa<WeightAttr>(written))
      return emitOpError("writes to ") << written;
    for (int64_t j = 0; j < count; ++j)
      if (j != i && overlap(written, getArgs()[j]))
        return emitOpError("writes ") << written << " over " << getArgs()[j];
  }
  return success();
}

//===----------------------------------------------------------------------===//
// program
//===----------------------------------------------------------------------===//

LogicalResult AllReduceOp::verify() {
  if (!getCall())
    return success();
  Operation *op = getAfter().empty() ? nullptr : getAfter()[0].getDefiningOp();
  if (!isa_and_nonnull<BackwardOp, WeightGradOp>(op))
    return emitOpError("begins at call ")
           << *getCall() << " of no backward or weight op";
  return success();
}

#define GET_OP_CLASSES
#include "dialects/Pipe/PipeOps.cpp.inc"
