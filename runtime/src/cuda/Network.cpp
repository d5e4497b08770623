//===- Network.cpp - How a rank's GPU reaches others ----------------------===//

#include "runtime/src/cuda/Network.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Trace.h"
#include <algorithm>
#include <unistd.h>

using namespace mgq::rt;

// Blocks of the GPU that wait for or move a message. Few: they take the place
// of what computes, and their buffers memory. A message whose blocks have no
// room because others wait for it is never done, so all that a rank may have
// fit a small GPU together, of 24 multiprocessors (NCCL's guide, "Using
// multiple NCCL communicators concurrently").
// Gathers take theirs from the sums.
static constexpr int channelBlocks = 4, allChannelsBlocks = 16,
                     replicaBlocks = 8, memberBlocks = 4;
// How long a rank that has failed may take to say so.
static constexpr double hearSeconds = 2;

Network::Network(const mgq_program &program, Group &group, Explain explain)
    : view(program, group.rank()), group(group), explain(std::move(explain)),
      plan(program) {}

/// Calls action(link) with all that are open.
template <typename Action>
void Network::forLinks(Action action) {
  for (const std::unique_ptr<Link> &link : links)
    if (link)
      action(*link);
  for (Link *link : {amongReplicas.get(), amongMembers.get()})
    if (link)
      action(*link);
}

/// Names of all links, made by their first members: one row for each rank, of
/// the channels, its replicas, and those it shares frozen weights with.
std::vector<ncclUniqueId> Network::exchangeIds() {
  const std::vector<Channel> &channels = plan.channels();
  std::vector<ncclUniqueId> mine(channels.size() + 2);
  group.agree([&] {
    nccl(); // All have it, or all say so.
    for (size_t i = 0; i < channels.size(); ++i)
      if (isSender(channels[i]))
        mine[i] = makeUniqueId();
    if (view.replica == 0 && view.program.replicas > 1)
      mine[channels.size()] = makeUniqueId();
    if (view.shardMember() == 0 && hasShards())
      mine.back() = makeUniqueId();
  });
  std::vector<ncclUniqueId> all(mine.size() * group.size());
  group.allGather(mine.data(),
                  static_cast<int64_t>(mine.size() * sizeof(ncclUniqueId)),
                  all.data());
  return all;
}

/// Of a channel, on all ranks the same.
static int blocksOfChannel(const mgq_program &program,
                           const std::vector<Channel> &channels) {
  std::vector<int> counts(program.stages);
  for (const Channel &channel : channels) {
    ++counts[channel.from];
    ++counts[channel.to];
  }
  int most = std::max(1, *std::max_element(counts.begin(), counts.end()));
  return std::clamp(allChannelsBlocks / most, 1, channelBlocks);
}

/// In one order on all ranks, so the first that is not open has all its ranks
/// at it.
void Network::openLinks(const std::vector<ncclUniqueId> &ids) {
  const std::vector<Channel> &channels = plan.channels();
  size_t row = channels.size() + 2;
  int blocks = blocksOfChannel(view.program, channels);
  links.resize(channels.size());
  for (size_t i = 0; i < channels.size(); ++i) {
    const Channel &channel = channels[i];
    if (!isMember(channel))
      continue;
    int32_t from = view.rankOfStage(channel.from);
    std::string what = fmt::format("messages from rank {} to rank {}", from,
                                   view.rankOfStage(channel.to));
    links[i] = std::make_unique<Link>(std::move(what), ids[from * row + i],
                                      isSender(channel) ? 0 : 1, 2, blocks);
    group.pulse();
  }
  if (view.program.replicas > 1)
    amongReplicas = std::make_unique<Link>(
        fmt::format("sums over the replicas of stage {}", view.stage),
        ids[view.rankOfReplica(0) * row + channels.size()], view.replica,
        view.program.replicas,
        hasShards() ? replicaBlocks - memberBlocks : replicaBlocks);
  if (hasShards())
    amongMembers = std::make_unique<Link>(
        view.program.stages > 1
            ? fmt::format("frozen weights of replica {}", view.replica)
            : "frozen weights of all replicas",
        ids[view.rankOfMember(0) * row + channels.size() + 1],
        view.shardMember(), view.shardMembers(), memberBlocks);
}

void Network::greet(const std::function<void(CUevent)> &await) {
  int32_t replicas = view.program.replicas;
  DeviceMemory word(2 * (replicas + 1));
  auto *bytes = word.as<std::byte>();
  Event done;
  auto finish = [&](Link &link) {
    done.record(link.stream);
    await(done);
  };
  for (size_t i = 0; i < links.size(); ++i) {
    if (!links[i])
      continue;
    Link &link = *links[i];
    cuCall(cuMemsetD8Async, word.address(), 0, 1, link.stream);
    if (isSender(plan.channels()[i]))
      link.communicator.send(bytes, 1, ncclUint8, 1, link.stream);
    else
      link.communicator.receive(bytes, 1, ncclUint8, 0, link.stream);
    finish(link);
  }
  if (!amongReplicas)
    return;
  Link &link = *amongReplicas;
  cuCall(cuMemsetD8Async, word.address(), 0, 1, link.stream);
  link.communicator.beginGroup();
  for (int32_t r = 0; r < replicas; ++r) {
    if (r == view.replica)
      continue;
    link.communicator.send(bytes, 1, ncclUint8, r, link.stream);
    link.communicator.receive(bytes + r + 1, 1, ncclUint8, r, link.stream);
  }
  link.communicator.endGroup();
  finish(link);
}

void Network::connect(const std::function<void(CUevent)> &await) {
  if (plan.channels().empty() && view.program.replicas == 1 && !hasShards())
    return;
  std::vector<ncclUniqueId> ids = exchangeIds();
  run([&] {
    openLinks(ids);
    greet(await);
  });
}

/// Where this rank's GPU is not to blame, waits a little for another rank's
/// fault, and throws it.
void Network::failExplained(const std::string &text) {
  std::string explained = explain(text);
  double end = secondsNow() + (explained == text ? hearSeconds : 0);
  while (secondsNow() < end) {
    group.pulse();
    usleep(5000);
  }
  throw Error(explained);
}

void Network::check() {
  run([&] { forLinks([](Link &link) { link.communicator.check(); }); });
}

void Network::abort() {
  forLinks([](Link &link) { link.communicator.abort(); });
}
