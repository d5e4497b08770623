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

int64_t SumRounds::wholeLines(int64_t count) {
  return (count + lineElements - 1) / lineElements * lineElements;
}

SumRounds::SumRounds(const Bucket &bucket, int32_t replicas)
    : count(bucket.op->bytes / 4), replicas(replicas) {
  if (replicas == 1 || !count)
    return;
  mostShard = bucket.op->room_bytes / (replicas - 1) / 4;
  mostShard -= mostShard % lineElements;
  if (mostShard <= 0 || !bucket.room)
    fail("the program's tables are damaged: {} bytes for exchanges",
         bucket.op->room_bytes);
}

void SumRounds::start(int64_t left) {
  size = std::min(left, mostShard * replicas);
  shardSize = std::min(wholeLines((size + replicas - 1) / replicas), mostShard);
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
  float *round() const { return bucket.values + at; }
  void scatter();
  void gather();
  void addShards(float *own, int64_t size);

  const RankView &view;
  Bucket bucket;
  SumRounds rounds;
  MessageSet messages;
  int64_t at = 0;       ///< Where the running round begins.
  bool gathers = false; ///< Sums come back; else shards go to their owners.
};
} // namespace

DenseAllReduce::DenseAllReduce(const RankView &view, const Bucket &bucket,
                               Group &group, HiddenTime *times)
    : view(view), bucket(bucket), rounds(bucket, view.program.replicas),
      messages(group, 2 * view.program.replicas, times) {}

void DenseAllReduce::begin() {
  at = 0;
  rounds.size = 0;
  gathers = false;
  if (view.program.replicas > 1 && rounds.count)
    scatter();
}

/// Sends each other replica its shard of the next round.
void DenseAllReduce::scatter() {
  int32_t replicas = view.program.replicas, me = view.replica;
  rounds.start(rounds.count - at);
  std::byte *to = bucket.room;
  for (int32_t r = 0; r < replicas; ++r) {
    if (r == me)
      continue;
    messages.receive(to, rounds.sizeOf(me) * 4, view.rankOfReplica(r),
                     bucket.firstTag);
    to += SumRounds::wholeLines(rounds.sizeOf(me)) * 4;
    messages.send(round() + rounds.beginOf(r), rounds.sizeOf(r) * 4,
                  view.rankOfReplica(r), bucket.firstTag);
  }
}

/// Sends the sums of the own shard to all.
void DenseAllReduce::gather() {
  int32_t me = view.replica;
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    messages.receive(round() + rounds.beginOf(r), rounds.sizeOf(r) * 4,
                     view.rankOfReplica(r), bucket.firstTag + 1);
    messages.send(round() + rounds.beginOf(me), rounds.sizeOf(me) * 4,
                  view.rankOfReplica(r), bucket.firstTag + 1);
  }
}

bool DenseAllReduce::advance() {
  while (messages.done()) {
    if (rounds.size && !gathers) {
      addShards(round() + rounds.beginOf(view.replica),
                rounds.sizeOf(view.replica));
      gathers = true;
      gather();
      continue;
    }
    at += rounds.size;
    if (at == rounds.count || view.program.replicas == 1)
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
  int64_t stride = SumRounds::wholeLines(size);
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
