//===- Reducer.cpp - Sums over replicas -----------------------------------===//

#include "runtime/src/common/Reducer.h"
#include "runtime/src/local/ThreadPool.h"
#include <algorithm>
#include <cstring>

using namespace mgq::rt;

static constexpr int64_t lineElements = 16; // 64 bytes.
static constexpr int64_t pieceElements = 1 << 16;

/// `count` up to whole lines: kernels may count on alignment.
static int64_t wholeLines(int64_t count) {
  return (count + lineElements - 1) / lineElements * lineElements;
}

Reducer::Reducer(const RankView &view, Arena &arena, Group &group)
    : view(view), group(group), room(arena.at(view.tables.exchange_offset)) {
  const mgq_rank &tables = view.tables;
  int64_t others = view.program.replicas - 1;
  requests.reserve(2 * others);
  auto isReduce = [](const mgq_op &op) {
    return op.kind == MGQ_OP_ALL_REDUCE && op.bytes > 0;
  };
  if (!others ||
      std::none_of(tables.ops, tables.ops + tables.op_count, isReduce))
    return;
  shardElements = tables.exchange_bytes / others / 4;
  shardElements -= shardElements % lineElements;
  if (shardElements == 0 || tables.exchange_offset < 0 ||
      tables.exchange_offset + tables.exchange_bytes > arena.size())
    fail("the program's tables are damaged: {} bytes for exchanges",
         tables.exchange_bytes);
}

int64_t Reducer::allReduce(std::byte *place, int64_t bytes) {
  int64_t count = bytes / 4, sent = 0;
  auto *values = reinterpret_cast<float *>(place);
  if (view.program.replicas == 1)
    return 0;
  for (int64_t begin = 0, size; begin < count; begin += size) {
    size = std::min(count - begin, shardElements * view.program.replicas);
    sent += reduceRound(values + begin, size);
  }
  return sent;
}

int64_t Reducer::reduceRound(float *values, int64_t count) {
  int32_t replicas = view.program.replicas, me = view.replica;
  // All shards have the same size but the last ones, which may be empty.
  int64_t size =
      std::min(wholeLines((count + replicas - 1) / replicas), shardElements);
  auto beginOf = [&](int32_t r) { return std::min(count, size * r); };
  auto sizeOf = [&](int32_t r) { return beginOf(r + 1) - beginOf(r); };
  auto waitAll = [&] {
    for (int64_t request : requests)
      group.wait(request);
    requests.clear();
  };

  int64_t sent = 0, own = sizeOf(me);
  std::byte *to = room;
  for (int32_t r = 0; r < replicas; ++r) {
    if (r == me)
      continue;
    if (own)
      requests.push_back(
          group.receive(to, own * 4, view.rankOfReplica(r), TagReduce));
    to += wholeLines(own) * 4;
    if (sizeOf(r))
      requests.push_back(group.send(values + beginOf(r), sizeOf(r) * 4,
                                    view.rankOfReplica(r), TagReduce));
    sent += sizeOf(r) * 4;
  }
  waitAll();
  addShards(values + beginOf(me), own);
  for (int32_t r = 0; r < replicas; ++r) {
    if (r == me)
      continue;
    if (sizeOf(r))
      requests.push_back(group.receive(values + beginOf(r), sizeOf(r) * 4,
                                       view.rankOfReplica(r), TagReduced));
    if (own)
      requests.push_back(group.send(values + beginOf(me), own * 4,
                                    view.rankOfReplica(r), TagReduced));
    sent += own * 4;
  }
  waitAll();
  return sent;
}

/// Adds the shards in the room and `own`, in the order of replicas, into `own`.
void Reducer::addShards(float *own, int64_t count) {
  auto *shards = reinterpret_cast<float *>(room);
  auto add = [&](float *sum, const float *values) {
    int64_t pieces = (count + pieceElements - 1) / pieceElements;
    parallelFor(pieces, [&](int64_t i) {
      int64_t begin = i * pieceElements;
      view.program.accumulate(sum + begin, values + begin,
                              std::min(pieceElements, count - begin));
    });
  };
  if (!count)
    return;
  int64_t stride = wholeLines(count);
  if (view.replica > 0) {
    for (int32_t r = 1; r < view.replica; ++r)
      add(shards, shards + r * stride);
    add(shards, own);
    memcpy(own, shards, count * sizeof(float));
  }
  for (int32_t r = view.replica + 1; r < view.program.replicas; ++r)
    add(own, shards + (r - 1) * stride);
}
