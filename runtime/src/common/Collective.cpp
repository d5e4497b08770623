//===- Collective.cpp - Messages that several ranks exchange --------------===//

#include "runtime/src/common/Collective.h"
#include "runtime/src/local/ThreadPool.h"
#include <algorithm>
#include <cstring>

using namespace mgq::rt;

void MessageSet::send(const void *data, int64_t bytes, int32_t peer,
                      int32_t tag) {
  if (!bytes)
    return;
  open.push_back(group.send(data, bytes, peer, tag));
  sent += bytes;
}

void MessageSet::receive(void *data, int64_t bytes, int32_t peer, int32_t tag) {
  if (bytes)
    open.push_back(group.receive(data, bytes, peer, tag));
}

bool MessageSet::done() {
  auto isDone = [&](int64_t request) {
    mgq_span span;
    if (!group.test(request, &span))
      return false;
    if (times)
      times->addMessage(span);
    return true;
  };
  open.erase(std::remove_if(open.begin(), open.end(), isDone), open.end());
  return open.empty();
}

static constexpr int64_t lineElements = 16; // 64 bytes.
static constexpr int64_t pieceElements = 1 << 16;

/// `count` up to whole lines: kernels may count on alignment.
static int64_t wholeLines(int64_t count) {
  return (count + lineElements - 1) / lineElements * lineElements;
}

namespace {
class DenseAllReduce : public Collective {
public:
  DenseAllReduce(const RankView &view, const Bucket &bucket, Group &group,
                 HiddenTime *times);

  void begin() override;
  bool advance() override;
  const std::vector<int64_t> &requests() const override {
    return messages.requests();
  }
  int64_t sentBytes() const override { return messages.sentBytes(); }

private:
  /// Elements of the running round: all shards have the same size but the last
  /// ones, which may be empty.
  int64_t beginOf(int32_t replica) const {
    return std::min(roundSize, shardSize * replica);
  }
  int64_t sizeOf(int32_t replica) const {
    return beginOf(replica + 1) - beginOf(replica);
  }
  float *round() const { return bucket.values + at; }
  void scatter();
  void gather();
  void addShards(float *own, int64_t size);

  const RankView &view;
  Bucket bucket;
  int64_t count, mostShard = 0; ///< Elements.
  MessageSet messages;
  int64_t at = 0, roundSize = 0, shardSize = 0;
  bool gathers = false; ///< Sums come back; else shards go to their owners.
};
} // namespace

DenseAllReduce::DenseAllReduce(const RankView &view, const Bucket &bucket,
                               Group &group, HiddenTime *times)
    : view(view), bucket(bucket), count(bucket.op->bytes / 4),
      messages(group, 2 * view.program.replicas, times) {
  int64_t others = view.program.replicas - 1;
  if (!others || !count)
    return;
  mostShard = bucket.op->room_bytes / others / 4;
  mostShard -= mostShard % lineElements;
  if (mostShard <= 0 || !bucket.room)
    fail("the program's tables are damaged: {} bytes for exchanges",
         bucket.op->room_bytes);
}

void DenseAllReduce::begin() {
  at = 0;
  roundSize = 0;
  gathers = false;
  if (view.program.replicas > 1 && count)
    scatter();
}

/// Sends each other replica its shard of the next round.
void DenseAllReduce::scatter() {
  int32_t replicas = view.program.replicas, me = view.replica;
  roundSize = std::min(count - at, mostShard * replicas);
  shardSize =
      std::min(wholeLines((roundSize + replicas - 1) / replicas), mostShard);
  std::byte *to = bucket.room;
  for (int32_t r = 0; r < replicas; ++r) {
    if (r == me)
      continue;
    messages.receive(to, sizeOf(me) * 4, view.rankOfReplica(r),
                     bucket.firstTag);
    to += wholeLines(sizeOf(me)) * 4;
    messages.send(round() + beginOf(r), sizeOf(r) * 4, view.rankOfReplica(r),
                  bucket.firstTag);
  }
}

/// Sends the sums of the own shard to all.
void DenseAllReduce::gather() {
  int32_t me = view.replica;
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    messages.receive(round() + beginOf(r), sizeOf(r) * 4, view.rankOfReplica(r),
                     bucket.firstTag + 1);
    messages.send(round() + beginOf(me), sizeOf(me) * 4, view.rankOfReplica(r),
                  bucket.firstTag + 1);
  }
}

bool DenseAllReduce::advance() {
  while (messages.done()) {
    if (roundSize && !gathers) {
      addShards(round() + beginOf(view.replica), sizeOf(view.replica));
      gathers = true;
      gather();
      continue;
    }
    at += roundSize;
    if (at == count || view.program.replicas == 1)
      return true;
    gathers = false;
    scatter();
  }
  return false;
}

/// Adds the shards in the room and `own`, in the order of replicas, into `own`.
void DenseAllReduce::addShards(float *own, int64_t size) {
  auto *shards = reinterpret_cast<float *>(bucket.room);
  auto add = [&](float *sum, const float *values) {
    int64_t pieces = (size + pieceElements - 1) / pieceElements;
    parallelFor(pieces, [&](int64_t i) {
      int64_t begin = i * pieceElements;
      view.program.accumulate(sum + begin, values + begin,
                              std::min(pieceElements, size - begin));
    });
  };
  if (!size)
    return;
  int64_t stride = wholeLines(size);
  if (view.replica > 0) {
    for (int32_t r = 1; r < view.replica; ++r)
      add(shards, shards + r * stride);
    add(shards, own);
    memcpy(own, shards, size * sizeof(float));
  }
  for (int32_t r = view.replica + 1; r < view.program.replicas; ++r)
    add(own, shards + (r - 1) * stride);
}

std::unique_ptr<Collective> mgq::rt::makeDenseAllReduce(const RankView &view,
                                                        const Bucket &bucket,
                                                        Group &group,
                                                        HiddenTime *times) {
  return std::make_unique<DenseAllReduce>(view, bucket, group, times);
}
