//===- Network.h - How a rank's GPU reaches others --------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_NETWORK_H
#define MGQ_RUNTIME_CUDA_NETWORK_H

#include "runtime/src/common/Group.h"
#include "runtime/src/common/Program.h"
#include "runtime/src/cuda/Channels.h"
#include "runtime/src/cuda/Driver.h"
#include "runtime/src/cuda/Nccl.h"
#include <functional>
#include <memory>

namespace mgq::rt {

/// A communicator, and the stream that its messages are enqueued on.
struct Link {
  Link(std::string what, const ncclUniqueId &id, int member, int size, int most)
      : communicator(std::move(what), id, member, size, most) {}
  Stream stream;
  Communicator communicator;
};

/// The links of a rank: one for each channel that begins or ends here, one
/// between the replicas of its stage, and one between those that share frozen
/// weights.
class Network {
public:
  /// `explain` adds to the text of a fault what the GPU says, if it is broken.
  /// Throws Error if the messages of the program cannot be matched.
  using Explain = std::function<std::string(const std::string &)>;
  Network(const mgq_program &program, Group &group, Explain explain);

  /// All ranks at once: opens the links, and sends something over each, so that
  /// none has to be set up later, when a rank would wait for another to be
  /// there. `await` waits for an event.
  void connect(const std::function<void(CUevent)> &await);

  const ChannelPlan &channels() const { return plan; }
  /// After connect(); of a channel of this stage.
  Link &channel(int32_t index) { return *links.at(index); }
  Link &replicas() { return *amongReplicas; }
  Link &members() { return *amongMembers; }

  /// Does something with NCCL. If that fails because another rank has, that
  /// one's own text is thrown.
  template <typename Action>
  void run(Action action) {
    try {
      action();
    } catch (const Error &error) {
      failExplained(error.what());
    }
  }
  /// Throws what has gone wrong in messages, if anything has.
  void check();
  /// Ends what is enqueued, for good.
  void abort();

private:
  std::vector<ncclUniqueId> exchangeIds();
  void openLinks(const std::vector<ncclUniqueId> &ids);
  void greet(const std::function<void(CUevent)> &await);
  [[noreturn]] void failExplained(const std::string &text);
  /// Whether frozen weights are spread.
  bool hasShards() const { return view.tables.shard_count > 0; }
  template <typename Action>
  void forLinks(Action action);
  bool isSender(const Channel &channel) const {
    return channel.from == view.stage;
  }
  bool isMember(const Channel &channel) const {
    return isSender(channel) || channel.to == view.stage;
  }

  RankView view;
  Group &group;
  Explain explain;
  ChannelPlan plan;
  std::vector<std::unique_ptr<Link>> links; ///< By channel; others' are null.
  std::unique_ptr<Link> amongReplicas;      ///< Null: there is one replica.
  std::unique_ptr<Link> amongMembers;       ///< Null: no weights are spread.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_NETWORK_H
