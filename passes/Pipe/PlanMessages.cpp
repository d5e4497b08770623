//===- PlanMessages.cpp - Memory of messages and reductions ---------------===//

#include "passes/Pipe/RankPlanner.h"

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

/// Most bytes of gradients that replicas exchange at once, per replica: enough
/// for the speed of any link, little beside activations.
static constexpr int64_t kExchangeBytes = int64_t(4) << 20;

/// Gives sends and receives their ranges.
void RankPlanner::placeMessages() {
  SymbolTable symbols(module);
  auto placeOf = [&](EdgeOp edge, bool isSend) -> Attribute {
    int64_t call = int64_t(edge.getCall());
    switch (edge.getKind()) {
    case EdgeKind::Accumulator:
      return memory.arena(memory.accumulator(call), byteSize(edge.getType()));
    case EdgeKind::Parameter:
      return memory.valueOf(edge.getParamAttr().getAttr());
    case EdgeKind::Evaluation:
      return evaluated.lookup(graph.model.result(call, edge.getResult()));
    default: {
      Value value = graph.train.result(call, edge.getResult());
      for (const Chunk &chunk : chunks)
        if (chunk.index == int64_t(isSend ? edge.getFrom() : edge.getTo()))
          return chunk.places.lookup(value);
      return Attribute();
    }
    }
  };
  rank.getBody().walk([&](Operation *op) {
    if (auto send = dyn_cast<SendOp>(op))
      send.setPlaceAttr(
          placeOf(symbols.lookup<EdgeOp>(send.getEdge()), /*isSend=*/true));
    if (auto recv = dyn_cast<RecvOp>(op))
      recv.setPlaceAttr(
          placeOf(symbols.lookup<EdgeOp>(recv.getEdge()), /*isSend=*/false));
  });
}

/// Gives all_reduces what they sum, and room for each other replica's part of
/// what this one adds. One that waits for another may take its room.
void RankPlanner::placeReductions() {
  struct Room {
    int64_t bytes;
    Operation *last; // the all_reduce that has it
  };
  int64_t others = plan.getReplicas() - 1;
  SmallVector<Room> rooms;
  SmallVector<std::pair<AllReduceOp, size_t>> found;
  for (AllReduceOp reduce : rank.getOps<AllReduceOp>()) {
    ArenaAttr place = memory.ownedGradients();
    if (auto params = reduce.getParams(); params && !params->empty())
      place = memory.gradientsOf(
          cast<FlatSymbolRefAttr>((*params)[0]).getAttr(),
          cast<FlatSymbolRefAttr>((*params)[params->size() - 1]).getAttr());
    reduce.setPlaceAttr(place);
    int64_t shard =
        alignBytes(llvm::divideCeil(place.getBytes(), plan.getReplicas()));
    int64_t bytes = others * std::min(shard, kExchangeBytes);
    if (reduce.getCompression())
      bytes = std::max(
          bytes, memory.compressedExchangeBytes(place, plan.getReplicas()));
    auto isFree = [&](const Room &room) {
      return llvm::any_of(reduce.getAfter(), [&](Value event) {
        return event.getDefiningOp() == room.last;
      });
    };
    auto it = llvm::find_if(rooms, isFree);
    if (it == rooms.end())
      it = &rooms.emplace_back(Room{0, nullptr});
    *it = {std::max(it->bytes, bytes), reduce};
    found.push_back({reduce, it - rooms.begin()});
  }
  for (auto [reduce, number] : found) {
    int64_t begin = scratchBegin + scratchSize;
    for (const Room &room : ArrayRef(rooms).take_front(number))
      begin += room.bytes;
    reduce.setRoomAttr(memory.arena(begin, rooms[number].bytes));
  }
  for (const Room &room : rooms)
    scratchSize += room.bytes;
}
