//===- Channels.h - Orders of messages between ranks ------------*- C++ -*-===//
//
// NCCL has no tags: both sides of a message know it by its place in the order
// in which they enqueue what goes from one to the other. A *channel* is
// messages from one stage to another that both have in the same order in their
// programs; each has a communicator and a stream of its own. So a message
// waits for nothing that it would not wait for if it were alone: those before
// it in its channel are begun before it on both sides.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_CUDA_CHANNELS_H
#define MGQ_RUNTIME_CUDA_CHANNELS_H

#include "runtime/include/rt.h"
#include <tuple>
#include <vector>

namespace mgq::rt {

struct Channel {
  int32_t from, to; ///< Stages.
  int32_t number;   ///< Among those between the two.

  bool operator<(const Channel &other) const {
    return std::tie(from, to, number) <
           std::tie(other.from, other.to, other.number);
  }
  bool operator==(const Channel &other) const {
    return from == other.from && to == other.to && number == other.number;
  }
};

/// Of each op of a stage's list (step or evaluation): its message's channel
/// among those of the program, -1: it is no message for another stage.
using ChannelOfOp = std::vector<int32_t>;

/// The channels of a program, the same on all ranks.
class ChannelPlan {
public:
  /// Throws Error that names stages and tag: a message has no other side, or
  /// one of another size, or there are too many orders.
  explicit ChannelPlan(const mgq_program &program);

  const std::vector<Channel> &channels() const { return list; }
  /// `ops`: those of a step or of an evaluation, of a stage's tables.
  const ChannelOfOp &channelsOf(int32_t stage, const mgq_op *ops) const;

private:
  void plan(const mgq_program &program, bool evaluates);
  void planPair(bool evaluates, int32_t from, int32_t to);

  struct StageOps {
    const mgq_op *ops;
    int32_t count;
    std::vector<Channel> channels; ///< Number -1: none.
    ChannelOfOp indices;
  };
  StageOps &stageOps(int32_t stage, bool evaluates) {
    return stages[2 * stage + (evaluates ? 1 : 0)];
  }

  std::vector<StageOps> stages; ///< Two of each.
  std::vector<Channel> list;    ///< Sorted.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_CHANNELS_H
