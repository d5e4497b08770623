//===- Channels.cpp - Orders of messages between ranks --------------------===//

#include "runtime/src/cuda/Channels.h"
#include "runtime/src/common/Error.h"
#include <algorithm>
#include <unordered_map>

using namespace mgq::rt;

// Each takes memory of both GPUs.
static constexpr size_t mostChannels = 4;

/// Indices of the ops of `kind` whose other side is `peer`.
static std::vector<int32_t> opsWith(const mgq_op *ops, int32_t count,
                                    int32_t kind, int32_t peer) {
  std::vector<int32_t> found;
  for (int32_t i = 0; i < count; ++i)
    if (ops[i].kind == kind && ops[i].peer == peer)
      found.push_back(i);
  return found;
}

[[noreturn]] static void failMessage(int32_t from, int32_t to, int32_t tag,
                                     const char *what) {
  fail("the program's tables are damaged: the message with tag {} from stage "
       "{} to stage {} {}",
       tag, from, to, what);
}

/// Gives each message of a pair to the first channel that has both sides of it
/// behind those that are there: as few channels as there can be.
void ChannelPlan::planPair(bool evaluates, int32_t from, int32_t to) {
  StageOps &sender = stageOps(from, evaluates);
  StageOps &receiver = stageOps(to, evaluates);
  std::vector<int32_t> sends =
      opsWith(sender.ops, sender.count, MGQ_OP_SEND, to);
  std::vector<int32_t> receives =
      opsWith(receiver.ops, receiver.count, MGQ_OP_RECEIVE, from);
  std::unordered_map<int32_t, int32_t> byTag; // Indices of receives.
  for (int32_t index : receives)
    if (!byTag.emplace(receiver.ops[index].tag, index).second)
      failMessage(from, to, receiver.ops[index].tag, "is received twice");
  std::vector<int32_t> last; // Receive, of each channel.
  for (int32_t index : sends) {
    const mgq_op &send = sender.ops[index];
    auto it = byTag.find(send.tag);
    if (it == byTag.end())
      failMessage(from, to, send.tag, "is not received");
    int32_t receive = it->second;
    byTag.erase(it);
    if (receiver.ops[receive].bytes != send.bytes)
      failMessage(from, to, send.tag, "has two sizes");
    auto place = std::find_if(last.begin(), last.end(),
                              [&](int32_t other) { return other < receive; });
    if (place == last.end()) {
      if (last.size() == mostChannels)
        fail("not supported yet: messages from stage {} to stage {} in more "
             "than {} orders",
             from, to, mostChannels);
      place = last.insert(place, receive);
    }
    *place = receive;
    auto number = static_cast<int32_t>(place - last.begin());
    sender.channels[index] = receiver.channels[receive] = {from, to, number};
    list.push_back({from, to, number});
  }
  if (!byTag.empty())
    failMessage(from, to, byTag.begin()->first, "is not sent");
}

void ChannelPlan::plan(const mgq_program &program, bool evaluates) {
  for (int32_t from = 0; from < program.stages; ++from)
    for (int32_t to = 0; to < program.stages; ++to)
      if (from != to)
        planPair(evaluates, from, to);
}

ChannelPlan::ChannelPlan(const mgq_program &program) {
  for (int32_t stage = 0; stage < program.stages; ++stage) {
    const mgq_rank &rank = program.ranks[stage];
    stages.push_back({rank.ops, rank.op_count, {}, {}});
    stages.push_back({rank.evaluate_ops, rank.evaluate_op_count, {}, {}});
  }
  for (StageOps &each : stages)
    each.channels.assign(each.count, {0, 0, -1});
  plan(program, /*evaluates=*/false);
  plan(program, /*evaluates=*/true);
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  for (StageOps &each : stages)
    for (const Channel &channel : each.channels)
      each.indices.push_back(
          channel.number < 0
              ? -1
              : static_cast<int32_t>(
                    std::lower_bound(list.begin(), list.end(), channel) -
                    list.begin()));
}

const ChannelOfOp &ChannelPlan::channelsOf(int32_t stage,
                                           const mgq_op *ops) const {
  const StageOps &step = stages[2 * stage], &evaluation = stages[2 * stage + 1];
  return (ops == step.ops && step.count ? step : evaluation).indices;
}
