//===- Collective.h - Messages that several ranks exchange ------*- C++ -*-===//
//
// A collective is a state machine: begin() posts its first messages, advance()
// looks whether what is open has arrived and goes on. Neither sleeps, so the
// rank computes meanwhile; who has nothing to compute sleeps until one of the
// open requests has news (Reducer).
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_COLLECTIVE_H
#define MGQ_RUNTIME_COMMON_COLLECTIVE_H

#include "runtime/src/common/Group.h"
#include "runtime/src/common/HiddenTime.h"
#include "runtime/src/common/Program.h"
#include <algorithm>
#include <memory>

namespace mgq::rt {

/// Messages that are open together.
class MessageSet {
public:
  /// `most`: messages that are open at once; more allocate. `times`, if not
  /// null, is told when they travelled.
  MessageSet(Group &group, size_t most, HiddenTime *times)
      : group(group), times(times) {
    open.reserve(most);
  }

  /// Messages without bytes are not sent.
  void send(const void *data, int64_t bytes, int32_t peer, int32_t tag);
  void receive(void *data, int64_t bytes, int32_t peer, int32_t tag);

  /// Whether all are done.
  bool done();
  /// Requests of those that are not.
  const std::vector<int64_t> &requests() const { return open; }
  /// Bytes sent so far.
  int64_t sentBytes() const { return sent; }

private:
  Group &group;
  HiddenTime *times;
  std::vector<int64_t> open;
  int64_t sent = 0;
};

/// What is done with one bucket, once a step.
class Collective {
public:
  virtual ~Collective() = default;
  /// Posts the first messages.
  virtual void begin() = 0;
  /// Goes on with what has arrived. Returns true when all is done.
  virtual bool advance() = 0;
  /// Requests to sleep for, while advance() returns false.
  virtual const std::vector<int64_t> &requests() const = 0;
  /// In all steps so far.
  virtual int64_t sentBytes() const = 0;
  /// Of an accelerator, whose begin() enqueues all of it: what is enqueued to
  /// compute from here on comes after it.
  virtual void join() {}
  /// The same as DeviceMessages::span().
  virtual mgq_span span() { return {-1, -1}; }
};

/// Whether an op begins a collective.
inline bool isCollective(const mgq_op &op) {
  return op.kind == MGQ_OP_ALL_REDUCE || op.kind == MGQ_OP_ALL_GATHER;
}

/// What a collective works on.
struct Bucket {
  const mgq_op *op; ///< MGQ_OP_ALL_REDUCE or MGQ_OP_ALL_GATHER.
  float *values;    ///< op->bytes / 4 of them, summed or filled in place.
  std::byte *room;  ///< op->room_bytes.
  int32_t firstTag; ///< Two tags are this bucket's own.
};

/// How a sum over replicas is cut, in elements: rounds that fit the room; in a
/// round each replica owns a shard, gets the others' values of it, adds them in
/// order and sends the sums back. All shards of a round have the same size but
/// the last ones, which may be empty.
class SumRounds {
public:
  /// Throws Error if there is no room.
  SumRounds(const Bucket &bucket, int32_t replicas);

  /// The next round, of `left` elements.
  void start(int64_t left);
  int64_t beginOf(int32_t replica) const {
    return std::min(size, shardSize * replica);
  }
  int64_t sizeOf(int32_t replica) const {
    return beginOf(replica + 1) - beginOf(replica);
  }
  /// `count` up to whole lines of 64 bytes, which kernels may count on.
  static int64_t wholeLines(int64_t count);

  const int64_t count; ///< Of the bucket.
  int64_t size = 0;    ///< Of the round.

private:
  int32_t replicas;
  int64_t mostShard = 0, shardSize = 0;
};

/// Sums f32 values in the order of replicas: every element is
/// ((v0 + v1) + v2) + ..., however it is cut. Throws Error if there is no room.
std::unique_ptr<Collective> makeDenseAllReduce(const RankView &view,
                                               const Bucket &bucket,
                                               Group &group, HiddenTime *times);

/// Fills the place with the slices of all members of a shard, in their order.
std::unique_ptr<Collective> makeShardGather(const RankView &view,
                                            const Bucket &bucket, Group &group,
                                            HiddenTime *times);

/// Throws Error if a gather's place is not that of its members' slices.
void checkGather(const RankView &view, const Bucket &bucket);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_COLLECTIVE_H
