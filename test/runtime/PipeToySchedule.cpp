//===- PipeToySchedule.cpp - Orders the pipeline's ops --------------------===//

#include "test/runtime/PipeToyBuilder.h"
#include <algorithm>
#include <cstdlib>
#include <utility>

using namespace pipetoy;

namespace {
/// Orders the ops of all ranks: in each round every rank runs one that is
/// ready.
struct Scheduler {
  Builder &builder;
  const Plan &plan;
  std::vector<Stage> &stages;
  bool evaluation;
  /// When forward, backward, weight of a chunk and micro-batch was done, -1.
  std::vector<std::vector<int>> done[3];
  std::vector<std::vector<std::vector<int32_t>>> messages;
  int round = 0;

  std::vector<mgq_op> &ops(int stage) {
    return evaluation ? stages[stage].evaluateOps : stages[stage].ops;
  }
  int tag(int chunk, int mb, bool backward) const {
    return ((evaluation ? 1 : 0) * 1000 + chunk * 100 + mb) * 2 + backward;
  }
  bool isDone(int kind, int chunk, int mb) const {
    int when = done[kind][chunk][mb];
    return when >= 0 && when < round;
  }
  bool isReady(int kind, int chunk, int mb) const;
  void emit(int kind, int chunk, int mb);
  void message(int stage, bool send, int chunk, int mb, bool backward,
               mgq_ref place, std::vector<int32_t> waits);
  void run(int microBatches);
};
} // namespace

bool Scheduler::isReady(int kind, int chunk, int mb) const {
  int stage = builder.stageOf(chunk), before = mb - plan.slots;
  bool last = builder.isLast(chunk);
  if (done[kind][chunk][mb] >= 0)
    return false;
  if (kind == 0) {
    // The slot's last user has gone, in the chunk that reads it, too.
    bool isFree = before < 0 || (isDone(1, chunk, before) &&
                                 (!plan.split || isDone(2, chunk, before)));
    if (!last && builder.stageOf(chunk + 1) == stage && before >= 0)
      isFree = isFree && (!plan.split || isDone(2, chunk + 1, before));
    return isFree && (chunk == 0 || isDone(0, chunk - 1, mb)) &&
           (mb == 0 || done[0][chunk][mb - 1] >= 0);
  }
  if (kind == 1)
    return isDone(0, chunk, mb) && (last || isDone(1, chunk + 1, mb)) &&
           (mb == 0 || done[1][chunk][mb - 1] >= 0);
  return isDone(1, chunk, mb) && (mb == 0 || done[2][chunk][mb - 1] >= 0);
}

void Scheduler::message(int stage, bool send, int chunk, int mb, bool backward,
                        mgq_ref place, std::vector<int32_t> waits) {
  mgq_op op = {};
  op.kind = send ? MGQ_OP_SEND : MGQ_OP_RECEIVE;
  op.chunk = place.index;
  op.micro_batch = mb;
  op.slot = mb % plan.slots;
  // A message is named after the chunk that needs it.
  op.peer = builder.stageOf(send ? chunk : chunk + (backward ? 1 : -1));
  op.tag = tag(chunk, mb, backward);
  op.traffic = backward ? MGQ_TRAFFIC_GRADIENT : MGQ_TRAFFIC_ACTIVATION;
  op.place = place;
  op.bytes = actBytes;
  op.wait_count = static_cast<int32_t>(waits.size());
  op.waits = keep(std::move(waits));
  ops(stage).push_back(op);
}

void Scheduler::emit(int kind, int chunk, int mb) {
  int stage = builder.stageOf(chunk);
  bool last = builder.isLast(chunk);
  int count = builder.layerCount(chunk);
  bool fromPeer = chunk > 0 && builder.stageOf(chunk - 1) != stage;
  bool toPeer = !last && builder.stageOf(chunk + 1) != stage;
  // Messages of the slot so far: done before it is used again.
  std::vector<int32_t> &open = messages[chunk][mb % plan.slots];
  std::vector<int32_t> waits;
  auto add = [&](bool send, int named, bool backward, mgq_ref place) {
    message(stage, send, named, mb, backward, place, {});
    open.push_back(static_cast<int32_t>(ops(stage).size()) - 1);
  };
  if (kind == 0) {
    waits = std::exchange(open, {});
    if (fromPeer) {
      message(stage, false, chunk, mb, false, builder.act(chunk, 0), waits);
      waits.push_back(static_cast<int32_t>(ops(stage).size()) - 1);
    }
  } else if (kind == 1 && toPeer) {
    waits = std::exchange(open, {});
  }
  mgq_op op = {};
  op.kind = evaluation ? MGQ_OP_EVALUATE : MGQ_OP_FORWARD + kind;
  op.chunk = builder.localOf(chunk);
  op.micro_batch = mb;
  op.slot = mb % plan.slots;
  op.peer = op.tag = -1;
  op.wait_count = static_cast<int32_t>(waits.size());
  op.waits = keep(std::move(waits));
  ops(stage).push_back(op);
  done[kind][chunk][mb] = round;
  if (kind == 0 && toPeer) {
    add(true, chunk + 1, false, builder.act(chunk, count));
    if (!evaluation)
      add(false, chunk, true, builder.grad(chunk, count));
  }
  if (kind == 1 && fromPeer)
    add(true, chunk - 1, true, builder.grad(chunk, 0));
}

void Scheduler::run(int microBatches) {
  int chunks = builder.chunkCount();
  for (auto &list : done)
    list.assign(chunks, std::vector<int>(microBatches, -1));
  messages.assign(chunks, std::vector<std::vector<int32_t>>(plan.slots));
  int kinds = evaluation ? 1 : plan.split ? 3 : 2;
  auto step = [&](int stage) {
    for (int k = 0; k < kinds; ++k)
      for (int mb = 0; mb < microBatches; ++mb)
        for (int chunk = stage; chunk < chunks; chunk += plan.stages) {
          int kind = plan.eager || kinds == 1 ? k : (k + 1) % kinds;
          if (!isReady(kind, chunk, mb))
            continue;
          emit(kind, chunk, mb);
          return true;
        }
    return false;
  };
  for (int idle = 0; idle < 2; ++round) {
    bool any = false;
    for (int stage = 0; stage < plan.stages; ++stage)
      any |= step(stage);
    idle = any ? 0 : idle + 1;
  }
  for (int k = 0; k < kinds; ++k)
    for (const auto &list : done[k])
      if (std::count(list.begin(), list.end(), -1))
        abort();
}

/// What follows the micro-batches.
void Builder::addTail(std::vector<Stage> &all) {
  constexpr int gradTag = 9000, valueTag = 9001;
  Stage &first = all.front(), &last = all.back();
  auto add = [](Stage &stage, int kind, mgq_ref place = {}, int64_t bytes = 0,
                int peer = -1, int tag = -1, int traffic = 0,
                std::vector<int32_t> waits = {}) {
    mgq_op op = {};
    op.kind = kind;
    op.chunk = op.micro_batch = op.slot = op.begins_in = -1;
    op.peer = peer;
    op.tag = tag;
    op.traffic = traffic;
    op.place = place;
    op.bytes = bytes;
    op.wait_count = static_cast<int32_t>(waits.size());
    op.waits = keep(std::move(waits));
    stage.ops.push_back(op);
    return static_cast<int32_t>(stage.ops.size()) - 1;
  };
  std::vector<int32_t> waits;
  if (plan.stages > 1) {
    add(last, MGQ_OP_SEND, at(last.headAccumulator), width * 4, 0, gradTag,
        MGQ_TRAFFIC_GRADIENT);
    waits.push_back(add(first, MGQ_OP_RECEIVE, at(first.uses[1].accumulator),
                        width * 4, plan.stages - 1, gradTag,
                        MGQ_TRAFFIC_GRADIENT));
  }
  for (Stage &stage : all) {
    add(stage, MGQ_OP_COMBINE, {}, 0, -1, -1, 0,
        &stage == &first ? waits : std::vector<int32_t>());
    int64_t bytes = stage.gradsEnd - stage.gradsBegin;
    int64_t half = bytes / 128 * 64;
    std::vector<int32_t> buckets;
    if (plan.replicas > 1 && bytes) {
      auto reduce = [&](int64_t begin, int64_t size) {
        buckets.push_back(add(stage, MGQ_OP_ALL_REDUCE, at(begin), size));
        mgq_op &op = stage.ops.back();
        op.bucket = static_cast<int32_t>(buckets.size()) - 1;
        op.room_bytes = 256; // Many rounds.
        op.room = at(stage.take(op.room_bytes));
      };
      reduce(stage.gradsBegin, half);
      reduce(stage.gradsBegin + half, bytes - half);
    }
    // One stage leaves the op out: it takes part all the same.
    if (plan.stages < 3 || stage.index != 1)
      add(stage, MGQ_OP_OPTIMIZER, {}, 0, -1, -1, 0, buckets);
  }
  if (plan.stages == 1)
    return;
  add(first, MGQ_OP_SEND, at(first.places[0].value_offset), width * 4,
      plan.stages - 1, valueTag, MGQ_TRAFFIC_PARAMETER);
  add(last, MGQ_OP_RECEIVE, at(last.places[0].value_offset), width * 4, 0,
      valueTag, MGQ_TRAFFIC_PARAMETER);
}

void Builder::schedule(std::vector<Stage> &all) {
  Scheduler{*this, plan, all, false, {}, {}}.run(plan.microBatches);
  Scheduler{*this, plan, all, true, {}, {}}.run(1);
  addTail(all);
}
