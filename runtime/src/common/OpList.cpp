//===- OpList.cpp - A rank's program, ready to run ------------------------===//

#include "runtime/src/common/OpList.h"

using namespace mgq::rt;

// Waits shorter than this are not worth an event.
static constexpr double tracedWait = 2e-6;

static bool isMessage(const mgq_op &op) {
  return op.kind == MGQ_OP_SEND || op.kind == MGQ_OP_RECEIVE;
}

[[noreturn]] static void failOp(int32_t index, const mgq_op &op,
                                const char *what) {
  fail("the program's tables are damaged: op {} of kind {}: {}", index, op.kind,
       what);
}

OpList::OpList(const RankView &view, const mgq_op *ops, int32_t count,
               Executor &executor, Group &group, Trace &trace, Reducer *reducer,
               HiddenTime *times)
    : view(view), executor(executor), group(group), trace(trace),
      reducer(reducer), times(times) {
  for (int32_t i = 0; i < count; ++i) {
    const mgq_op &op = ops[i];
    bool computes = op.kind <= MGQ_OP_EVALUATE;
    if (op.kind < 0 || op.kind > MGQ_OP_OPTIMIZER)
      failOp(i, op, "its kind");
    if (op.chunk >= view.tables.chunk_count || (computes && op.chunk < 0))
      failOp(i, op, "its chunk");
    if (op.micro_batch >= view.program.micro_batches ||
        (computes && op.micro_batch < 0 && op.kind != MGQ_OP_EVALUATE))
      failOp(i, op, "its micro-batch");
    list.push_back({});
    list.back().op = &op;
  }
  for (int32_t i = 0; i < count; ++i) {
    checkMessage(list[i], i);
    prepare(list[i]);
  }
  if (Accelerator *accelerator = executor.device().accelerator())
    messages = accelerator->makeMessages(view, ops, count);
}

void OpList::checkMessage(const Entry &entry, int32_t index) const {
  const mgq_op &op = *entry.op;
  if (isMessage(op)) {
    if (op.peer < 0 || op.peer >= view.program.stages)
      failOp(index, op, "its peer");
    if (op.tag < 0 || op.tag >= TagGather)
      failOp(index, op, "its tag");
    if (op.bytes < 0 || op.traffic < 0 || op.traffic > MGQ_TRAFFIC_PARAMETER)
      failOp(index, op, "its bytes");
  }
  for (int32_t i = 0; i < op.wait_count; ++i)
    if (op.waits[i] < 0 || op.waits[i] >= index ||
        !(isMessage(*list[op.waits[i]].op) ||
          isCollective(*list[op.waits[i]].op)))
      failOp(index, op, "what it waits for");
}

Slots OpList::slotsOf(int32_t microBatch) const {
  Slots slots(view.tables.chunk_count, -1);
  for (const Entry &entry : list)
    if (entry.op->chunk >= 0 && entry.op->slot >= 0 &&
        entry.op->micro_batch == microBatch && slots[entry.op->chunk] < 0)
      slots[entry.op->chunk] = entry.op->slot;
  return slots;
}

void OpList::prepare(Entry &entry) {
  const mgq_op &op = *entry.op;
  Slots slots = slotsOf(op.micro_batch);
  // A message's slot is of the chunk that its place is in.
  int32_t chunk = op.chunk;
  if (op.place.space == MGQ_SPACE_SLOT && chunk < 0)
    chunk = op.place.index;
  if (op.slot >= 0 && chunk >= 0 && chunk < view.tables.chunk_count)
    slots[chunk] = op.slot;
  if (isMessage(op)) {
    entry.place = executor.resolve(op.place, op.bytes, slots, "an op's place");
    if (!entry.place)
      fail("the program's tables are damaged: an op's place");
  } else if (op.kind <= MGQ_OP_EVALUATE) {
    prepareCompute(entry, slots);
  }
}

void OpList::prepareCompute(Entry &entry, const Slots &slots) {
  const mgq_op &op = *entry.op;
  const mgq_rank &tables = view.tables;
  const mgq_chunk &chunk = tables.chunks[op.chunk];
  const mgq_sequence *sequences[] = {&chunk.forward, &chunk.backward,
                                     &chunk.weight, &chunk.evaluate};
  entry.runnable = &executor.prepare(*sequences[op.kind], op.chunk, slots);
  bool hasLoss = op.chunk == tables.loss_chunk;
  auto scalar = [&](const mgq_ref &ref) {
    return reinterpret_cast<float *>(
        executor.resolve(ref, sizeof(float), slots, "the loss"));
  };
  if (op.kind == MGQ_OP_FORWARD && hasLoss)
    entry.loss = scalar(tables.loss);
  if (op.kind == MGQ_OP_EVALUATE && hasLoss)
    entry.loss = scalar(tables.evaluate_loss);
  if (op.kind != MGQ_OP_BACKWARD && op.kind != MGQ_OP_WEIGHT)
    return;
  if (hasLoss)
    entry.seed = scalar(tables.seed);
  entry.grads.resize(chunk.grad_count);
  for (int32_t i = 0; i < chunk.grad_count; ++i) {
    const mgq_grad &grad = chunk.grads[i];
    const mgq_param &param = view.program.params[grad.param];
    if ((grad.of_weight != 0) == (op.kind == MGQ_OP_WEIGHT))
      entry.grads[i] = executor.resolve(grad.place, paramElements(param) * 4,
                                        slots, param.name);
  }
}

void OpList::wait(Entry &entry) {
  const mgq_op &op = *entry.op;
  double start = secondsNow();
  if (isCollective(op) && reducer) {
    reducer->finish(indexOf(entry));
    double seconds = secondsNow() - start;
    if (seconds >= tracedWait)
      trace.add(Phase::Wait,
                op.kind == MGQ_OP_ALL_REDUCE ? "wait_all_reduce"
                                             : "wait_all_gather",
                start, seconds, -1);
    return;
  }
  if (entry.request < 0)
    return;
  if (messages)
    messages->wait(indexOf(entry));
  else
    waitMessage(entry, start);
  entry.request = -1;
}

/// Sleeps until a message of the group is done.
void OpList::waitMessage(Entry &entry, double start) {
  const mgq_op &op = *entry.op;
  mgq_span span;
  if (reducer)
    reducer->wait(entry.request, &span);
  else
    group.wait(entry.request, &span);
  if (times && op.peer != view.stage)
    times->addMessage(span);
  double seconds = secondsNow() - start;
  if (seconds >= tracedWait)
    trace.add(Phase::Wait, op.kind == MGQ_OP_SEND ? "wait_send" : "wait_recv",
              start, seconds, op.micro_batch,
              {op.bytes, view.rankOfStage(op.peer), op.traffic});
}

void OpList::waitBefore(const Entry &entry) {
  if (entry.op->kind == MGQ_OP_ALL_REDUCE && entry.op->begins_in >= 0)
    return;
  auto isBeside = [&](const mgq_op &other) {
    return messages && ((isMessage(*entry.op) && isMessage(other)) ||
                        (entry.op->kind == MGQ_OP_ALL_GATHER &&
                         other.kind == MGQ_OP_ALL_GATHER));
  };
  for (int32_t i = 0; i < entry.op->wait_count; ++i)
    if (Entry &other = list[entry.op->waits[i]]; !isBeside(*other.op))
      wait(other);
}

void OpList::begin(Entry &entry) {
  const mgq_op &op = *entry.op;
  if (isCollective(op)) {
    if (reducer)
      reducer->begin(indexOf(entry));
    return;
  }
  int32_t peer = view.rankOfStage(op.peer);
  bool isSend = op.kind == MGQ_OP_SEND;
  double start = secondsNow();
  if (messages) {
    messages->begin(indexOf(entry), entry.place);
    entry.request = 0;
  } else {
    entry.request = isSend ? group.send(entry.place, op.bytes, peer, op.tag)
                           : group.receive(entry.place, op.bytes, peer, op.tag);
  }
  if (isSend && peer != view.index)
    sentBytes.of[op.traffic] += op.bytes;
  trace.add(isSend ? Phase::Send : Phase::Receive, isSend ? "send" : "recv",
            start, secondsNow() - start, op.micro_batch,
            {op.bytes, peer, op.traffic});
}

void OpList::waitAll() {
  for (Entry &entry : list)
    wait(entry);
}
