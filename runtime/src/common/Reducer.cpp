//===- Reducer.cpp - Collectives beside what a rank computes -------------===//

#include "runtime/src/common/Reducer.h"
#include "runtime/src/common/Accelerator.h"
#include <algorithm>

using namespace mgq::rt;

[[noreturn]] static void failBucket(int32_t op, const char *what) {
  fail("the program's tables are damaged: collective {}: {}", op, what);
}

Reducer::Reducer(const RankView &view, const mgq_op *ops, int32_t count,
                 Executor &executor, Group &group, Trace &trace,
                 HiddenTime *times, CompressedGradients *compressed)
    : view(view), group(group), trace(trace) {
  Slots none(view.tables.chunk_count, -1);
  entries.reserve(std::count_if(ops, ops + count, isCollective));
  int32_t reductions = 0, gathers = 0;
  for (int32_t i = 0; i < count; ++i) {
    const mgq_op &op = ops[i];
    if (!isCollective(op))
      continue;
    bool reduces = op.kind == MGQ_OP_ALL_REDUCE;
    if (op.bucket != (reduces ? reductions++ : gathers++) ||
        op.bucket >= mostBuckets)
      failBucket(i, "its number");
    Bucket bucket = {&op, nullptr, nullptr,
                     (reduces ? TagReduce : TagShard) + 2 * op.bucket};
    bucket.values = reinterpret_cast<float *>(
        executor.resolve(op.place, op.bytes, none, "a collective's place"));
    bucket.room = executor.resolve(op.room, op.room_bytes, none,
                                   "the room of a collective");
    if (op.bytes < 0 || (op.bytes && !bucket.values))
      failBucket(i, "its place");
    Entry entry = {i, op.kind, nullptr, {}};
    Accelerator *accelerator = executor.device().accelerator();
    if (!reduces)
      entry.collective = accelerator
                             ? accelerator->makeShardGather(view, bucket)
                             : makeShardGather(view, bucket, group, times);
    else if (accelerator && view.program.replicas > 1)
      entry.collective = accelerator->makeAllReduce(view, bucket, compressed);
    else if (compressed)
      entry.collective = compressed->makeAllReduce(bucket, times);
    if (!entry.collective)
      entry.collective = makeDenseAllReduce(view, bucket, group, times);
    for (int32_t w = 0; w < op.wait_count; ++w)
      if (Entry *earlier = find(op.waits[w]))
        entry.before.push_back(earlier - entries.data());
    if (op.kind == MGQ_OP_ALL_REDUCE && op.begins_in >= 0) {
      const mgq_op *in = op.begins_in < i ? &ops[op.begins_in] : nullptr;
      if (!in || (in->kind != MGQ_OP_BACKWARD && in->kind != MGQ_OP_WEIGHT) ||
          op.wait_count != static_cast<int32_t>(entry.before.size()))
        failBucket(i, "where it begins");
      triggers.push_back({op.begins_in, op.begins_after, entries.size()});
    }
    entries.push_back(std::move(entry));
  }
  auto members = std::max(view.program.replicas, view.program.stages);
  requests.reserve(2 * entries.size() * members + 1);
}

size_t Reducer::mostMessages(const RankView &view) {
  int64_t others = view.program.replicas - 1, messages = 0;
  for (int32_t i = 0; i < view.tables.op_count; ++i) {
    const mgq_op &op = view.tables.ops[i];
    if (op.kind == MGQ_OP_ALL_REDUCE && op.room_bytes > 0)
      messages += (op.bytes / op.room_bytes + 2) * 4 * others;
    if (op.kind == MGQ_OP_ALL_GATHER)
      messages += int64_t{2} * (view.shardMembers() - 1);
  }
  return messages;
}

Reducer::Entry *Reducer::find(int32_t op) {
  auto it = std::find_if(entries.begin(), entries.end(),
                         [&](const Entry &entry) { return entry.op == op; });
  return it == entries.end() ? nullptr : &*it;
}

void Reducer::startStep() {
  for (Entry &entry : entries)
    entry.state = State::Idle;
  open = 0;
}

void Reducer::begin(int32_t op) {
  Entry *entry = find(op);
  if (!entry || entry->state != State::Idle)
    return;
  entry->state = State::Waiting;
  ++open;
  progress();
}

void Reducer::afterCall(int32_t op, int32_t call) {
  for (const Trigger &trigger : triggers)
    if (trigger.op == op && trigger.call == call)
      begin(entries[trigger.entry].op);
}

bool Reducer::beginsAfter(int32_t op, int32_t call) const {
  return std::any_of(triggers.begin(), triggers.end(), [&](const Trigger &one) {
    return one.op == op && one.call == call;
  });
}

void Reducer::start(Entry &entry) {
  entry.state = State::Running;
  entry.began = secondsNow();
  entry.sentBefore = entry.collective->sentBytes();
  entry.collective->begin();
}

void Reducer::progress() {
  if (open == 0)
    return;
  for (Entry &entry : entries) {
    auto isDone = [&](size_t i) {
      State state = entries[i].state;
      return state != State::Waiting && state != State::Running;
    };
    if (entry.state == State::Waiting &&
        std::all_of(entry.before.begin(), entry.before.end(), isDone))
      start(entry);
    if (entry.state != State::Running || !entry.collective->advance())
      continue;
    entry.state = State::Done;
    --open;
    bool reduces = entry.kind == MGQ_OP_ALL_REDUCE;
    trace.add(reduces ? Phase::AllReduce : Phase::AllGather,
              reduces ? "all_reduce" : "all_gather", entry.began,
              secondsNow() - entry.began, -1,
              {entry.collective->sentBytes() - entry.sentBefore, view.index,
               reduces ? MGQ_TRAFFIC_GRADIENT : MGQ_TRAFFIC_PARAMETER});
  }
}

/// Until something that is open, or `request` (-1: none), may have news.
void Reducer::sleep(int64_t request) {
  requests.clear();
  if (request >= 0)
    requests.push_back(request);
  for (const Entry &entry : entries)
    if (entry.state == State::Running)
      requests.insert(requests.end(), entry.collective->requests().begin(),
                      entry.collective->requests().end());
  group.waitAny(requests);
}

void Reducer::finish(int32_t op) {
  Entry *entry = find(op);
  auto isOpen = [&] {
    return entry &&
           (entry->state == State::Waiting || entry->state == State::Running);
  };
  while (isOpen()) {
    progress();
    if (isOpen())
      sleep(-1);
  }
  if (entry && entry->state == State::Done) {
    entry->collective->join();
    entry->state = State::Joined;
  }
}

void Reducer::finishAll() {
  for (const Entry &entry : entries)
    finish(entry.op);
}

void Reducer::wait(int64_t request, mgq_span *span) {
  while (open) {
    progress();
    if (group.test(request, span))
      return;
    if (open)
      sleep(request);
  }
  group.wait(request, span);
}

int64_t Reducer::sentBytes(mgq_op_kind kind) const {
  int64_t sent = 0;
  for (const Entry &entry : entries)
    if (entry.kind == kind)
      sent += entry.collective->sentBytes();
  return sent;
}
