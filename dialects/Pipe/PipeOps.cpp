//===- PipeOps.cpp - Verifiers and accessors of pipe ops ------------------===//

#include "dialects/Pipe/Pipe.h"

#include "mlir/IR/Builders.h"
#include <numeric>

using namespace mlir;
using namespace mgq::pipe;

//===----------------------------------------------------------------------===//
// rank
//===----------------------------------------------------------------------===//

SequenceOp RankOp::getSequence(SequenceKind kind) {
  for (SequenceOp sequence : getOps<SequenceOp>())
    if (sequence.getKind() == kind)
      return sequence;
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
  WalkResult result = getBody().walk([&](CallOp call) {
    for (Attribute arg : call.getArgs())
      if (auto range = dyn_cast<ArenaAttr>(arg))
        if (range.getOffset() < 0 ||
            range.getOffset() + range.getBytes() > arena) {
          call.emitOpError("uses bytes ")
              << range.getOffset() << " to "
              << range.getOffset() + range.getBytes() << " of an arena of "
              << arena;
          return WalkResult::interrupt();
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
  return success();
}

LogicalResult CallOp::verify() {
  int64_t count = getArgs().size(), results = getResults();
  if (results < 0 || results > count)
    return emitOpError("has ")
           << results << " results among " << count << " arguments";
  for (Attribute arg : getArgs())
    if (!isa<ArenaAttr, WeightAttr>(arg))
      return emitOpError("has argument ")
             << arg << ", expected #pipe.arena or #pipe.weight";
  for (int64_t i = count - results; i < count; ++i) {
    auto written = dyn_cast<ArenaAttr>(getArgs()[i]);
    if (!written)
      return emitOpError("writes to ") << getArgs()[i];
    for (int64_t j = 0; j < count; ++j) {
      auto other = dyn_cast<ArenaAttr>(getArgs()[j]);
      if (j == i || !other)
        continue;
      if (written.getOffset() < other.getOffset() + other.getBytes() &&
          other.getOffset() < written.getOffset() + written.getBytes())
        return emitOpError("writes ") << written << " over " << other;
    }
  }
  return success();
}

#define GET_OP_CLASSES
#include "dialects/Pipe/PipeOps.cpp.inc"
