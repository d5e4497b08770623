//===- DeviceTimes.cpp - When an accelerator computed ---------------------===//

#include "runtime/src/common/DeviceTimes.h"
#include "runtime/src/common/Trace.h"
#include <algorithm>

using namespace mgq::rt;

DeviceTimes::DeviceTimes(const RankView &view, Accelerator &accelerator,
                         Group &group)
    : view(view), accelerator(accelerator), group(group) {
  const mgq_program &program = view.program;
  for (int32_t stage = 0; stage < program.stages; ++stage)
    width = std::max(width, size_t{2} * program.ranks[stage].op_count);
  mine.assign(width, -1);
  all.resize(width * rankCount(program));
  for (int32_t i = 0; i < view.tables.op_count; ++i)
    sides.push_back(sidesOf(i));
}

bool DeviceTimes::counts(const mgq_op &op) {
  return !op.ahead && (op.kind == MGQ_OP_SEND || op.kind == MGQ_OP_RECEIVE ||
                       isCollective(op));
}

/// The gather with this number on each member of a shard, the own one last.
static void addGather(const RankView &view, int32_t bucket,
                      std::vector<DeviceTimes::Side> &list) {
  for (int32_t i = 1; i <= view.shardMembers(); ++i) {
    int32_t rank =
        view.rankOfMember((view.shardMember() + i) % view.shardMembers());
    const mgq_rank &its = view.program.ranks[rank % view.program.stages];
    for (int32_t op = 0; op < its.op_count; ++op)
      if (its.ops[op].kind == MGQ_OP_ALL_GATHER && its.ops[op].bucket == bucket)
        list.push_back({rank, op});
  }
}

/// The last is where it ends.
std::vector<DeviceTimes::Side> DeviceTimes::sidesOf(int32_t index) const {
  const mgq_op &op = view.tables.ops[index];
  std::vector<Side> list;
  if (!counts(op))
    return list;
  if (op.kind == MGQ_OP_ALL_REDUCE) {
    for (int32_t r = 0; r < view.program.replicas; ++r)
      if (r != view.replica)
        list.push_back({view.rankOfReplica(r), index});
    if (!list.empty())
      list.push_back({view.index, index});
    return list;
  }
  if (op.kind == MGQ_OP_ALL_GATHER) {
    addGather(view, op.bucket, list);
    return list;
  }
  const mgq_rank &peer = view.program.ranks[op.peer];
  int32_t wanted = op.kind == MGQ_OP_SEND ? MGQ_OP_RECEIVE : MGQ_OP_SEND;
  for (int32_t i = 0; i < peer.op_count; ++i)
    if (peer.ops[i].kind == wanted && peer.ops[i].tag == op.tag &&
        peer.ops[i].peer == view.stage)
      list = {{view.rankOfStage(op.peer), i}, {view.index, index}};
  if (op.kind == MGQ_OP_SEND)
    std::reverse(list.begin(), list.end());
  return list;
}

void DeviceTimes::startStep() {
  computations.clear();
  ready = -1;
}

void DeviceTimes::endOp(const mgq_op &op) {
  computations.push_back(
      {opBegan, accelerator.mark(), op.ahead != 0,
       op.kind == MGQ_OP_BACKWARD || op.kind == MGQ_OP_WEIGHT});
}

void DeviceTimes::gradientReady() {
  if (ready < 0)
    ready = accelerator.mark();
}

void DeviceTimes::exchange(HiddenTime &times, double clockOffset) {
  group.allGather(mine.data(), static_cast<int64_t>(width * sizeof(double)),
                  all.data());
  for (const std::vector<Side> &list : sides) {
    mgq_span span = unknown;
    bool isKnown = !list.empty();
    for (const Side &side : list) {
      const double *its = all.data() + side.rank * width + size_t{2} * side.op;
      isKnown &= its[0] >= 0;
      span = {std::max(span.begin, its[0]), its[1]};
    }
    if (isKnown && span.end >= 0)
      times.addMessage({span.begin - clockOffset, span.end - clockOffset});
  }
}

DeviceTimes::Computed DeviceTimes::computed(HiddenTime &times) const {
  Computed sum = {secondsNow(), 0, 0};
  for (const Computation &one : computations) {
    double begin = accelerator.secondsAt(one.begin);
    double end = accelerator.secondsAt(one.end);
    times.addBusy(begin, end);
    if (one.isAhead)
      continue;
    sum.began = std::min(sum.began, begin);
    sum.busy += end - begin;
    if (one.hasGradients)
      sum.ended = end;
  }
  if (ready >= 0)
    times.gradientReady(accelerator.secondsAt(ready));
  return sum;
}
