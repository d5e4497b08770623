//===- Executor.cpp - Runs a rank's sequences -----------------------------===//

#include "runtime/src/local/Executor.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/local/ThreadPool.h"
#include <algorithm>
#include <cstring>

using namespace mgq::rt;

/// Where faults of the calling thread's rank go.
static IndexFault &indexFault() {
  static IndexFault withoutPool;
  ThreadPool *pool = ThreadPool::current();
  return pool ? pool->indexFault : withoutPool;
}

extern "C" void mgq_index_error(const char *what, int64_t index, int64_t size) {
  IndexFault &fault = indexFault();
  if (fault.taken.exchange(true))
    return;
  fault.what = what;
  fault.index = index;
  fault.size = size;
  fault.complete.store(true, std::memory_order_release);
}

void mgq::rt::checkIndexError(const char *where) {
  IndexFault &fault = indexFault();
  if (!fault.complete.load(std::memory_order_acquire))
    return;
  std::string text = fmt::format(
      "index {} is outside [0, {}) in node '{}' (layer {})", fault.index,
      fault.size, fault.what ? fault.what : "?", where);
  fault.complete = false;
  fault.taken = false;
  throw Error(text);
}

Executor::Executor(const RankView &view, Arena &arena, const Weights &weights,
                   Trace &trace, std::function<void()> pulse)
    : view(view), arena(arena), weights(weights), trace(trace),
      pulse(std::move(pulse)), times(view.program.layer_count),
      forwards(view.tables.chunk_count), work([this] { enqueuePart(); }) {
  for (int32_t i = 0; i < view.program.input_count; ++i)
    randomOps.push_back(randomOpOf(view.program.inputs[i]));
  Slots none(view.tables.chunk_count, -1);
  prepareFrozen = &prepare(view.tables.prepare_frozen, -1, none);
  prepareTrainable = &prepare(view.tables.prepare_trainable, -1, none);
  for (int32_t i = 0; i < view.tables.shard_count; ++i) {
    const mgq_shard &shard = view.tables.shards[i];
    if (!view.isInside(shard, arena.size()))
      fail("the program's tables are damaged: shard {}", i);
    packs.push_back(&prepare(shard.pack, -1, none));
  }
}

std::byte *Executor::resolve(const mgq_ref &ref, int64_t bytes,
                             const Slots &slots, const char *what) {
  if (ref.space == MGQ_SPACE_NONE)
    return nullptr;
  if (ref.space == MGQ_SPACE_WEIGHT) {
    if (device().accelerator())
      fail(
          "the program's tables are damaged: {} is in a file, not in the arena",
          what);
    if (ref.index < 0 || ref.index >= view.program.param_count ||
        !weights.data(ref.index))
      fail("the program's tables are damaged: {}", what);
    // Kernels take void *; they only read operands.
    return const_cast<std::byte *>(weights.data(ref.index) + ref.offset);
  }
  int64_t offset = ref.offset;
  if (ref.space == MGQ_SPACE_SLOT) {
    if (ref.index < 0 || ref.index >= view.tables.chunk_count)
      fail("the program's tables are damaged: {}", what);
    const mgq_chunk &chunk = view.tables.chunks[ref.index];
    int32_t slot = slots[ref.index];
    if (slot < 0 || slot >= chunk.slot_count || ref.offset < 0 ||
        ref.offset + bytes > chunk.slot_bytes)
      fail("the program's tables are damaged: {} (slot {} of chunk {})", what,
           slot, chunk.index);
    offset += chunk.slots_offset + slot * chunk.slot_bytes;
  }
  if (offset < 0 || offset + bytes > arena.size())
    fail("the program's tables are damaged: {}", what);
  return arena.at(offset);
}

/// The slots that a sequence's references use; others are -1.
static Slots usedSlots(const mgq_sequence &sequence, const Slots &slots) {
  Slots used(slots.size(), -1);
  auto note = [&](const mgq_ref &ref) {
    if (ref.space == MGQ_SPACE_SLOT && ref.index >= 0 &&
        ref.index < static_cast<int32_t>(slots.size()))
      used[ref.index] = slots[ref.index];
  };
  for (int32_t i = 0; i < sequence.load_count; ++i)
    note(sequence.loads[i].place);
  for (int32_t i = 0; i < sequence.call_count; ++i)
    for (int32_t j = 0; j < sequence.calls[i].arg_count; ++j)
      note(sequence.calls[i].args[j]);
  return used;
}

const Runnable &Executor::prepare(const mgq_sequence &sequence, int32_t chunk,
                                  const Slots &slots) {
  Slots used = usedSlots(sequence, slots);
  for (const Runnable &old : runnables)
    if (old.sequence == &sequence && old.slots == used)
      return old;
  Runnable made{&sequence, chunk, used, {}, {}, {}};
  for (int32_t i = 0; i < sequence.load_count; ++i) {
    const mgq_load &load = sequence.loads[i];
    const mgq_input &input = view.program.inputs[load.input];
    made.loads.push_back(
        resolve(load.place, input.tensor.bytes, used, input.name));
    if (!made.loads.back())
      fail("the program's tables are damaged: load of input '{}'", input.name);
  }
  for (int32_t i = 0; i < sequence.call_count; ++i) {
    const mgq_call &call = sequence.calls[i];
    if (call.layer >= view.program.layer_count)
      fail("the program's tables are damaged: call {} is of layer {}, there "
           "are {}",
           call.name, call.layer, view.program.layer_count);
    made.firstPointer.push_back(made.pointers.size());
    std::string what = fmt::format("arguments of call {}", call.name);
    for (int32_t j = 0; j < call.arg_count; ++j)
      made.pointers.push_back(resolve(call.args[j], 0, used, what.c_str()));
    if (call.scratch_bytes &&
        (call.scratch_offset < 0 || call.scratch_offset % 64 ||
         call.scratch_offset + call.scratch_bytes > arena.size()))
      fail("the program's tables are damaged: scratch of call {}", call.name);
  }
  runnables.push_back(std::move(made));
  return runnables.back();
}

void Executor::prepareShards() {
  for (size_t i = 0; i < packs.size(); ++i) {
    const mgq_shard &shard = view.tables.shards[i];
    if (shard.pack.call_count == 0)
      continue; // The slice was loaded.
    run(*packs[i], Phase::Prepare, -1);
    device().copy(
        arena.at(shard.slice),
        arena.at(shard.buffer + view.shardMember() * shard.slice_bytes),
        shard.slice_bytes);
  }
}

void Executor::resetTimes() {
  times.assign(times.size(), {});
  forwards.assign(forwards.size(), 0);
}

void Executor::load(const Runnable &runnable, const DataReader &data,
                    const RecordList &micro, const RandomKey &key) {
  double start = secondsNow();
  const mgq_sequence &sequence = *runnable.sequence;
  for (int32_t i = 0; i < sequence.load_count; ++i) {
    int32_t input = sequence.loads[i].input, op = randomOps[input];
    if (op < 0) {
      int64_t all = view.program.inputs[input].tensor.bytes;
      std::byte *to = device().beginWrite(runnable.loads[i], all);
      for (int32_t j = 0; j < micro.count; ++j)
        data.load(micro.records[j], input, to + j * (all / micro.count));
      device().endWrite();
      continue;
    }
    int64_t values[4] = {static_cast<int64_t>(key.seed), key.step,
                         key.firstSample, key.off ? -1 : op};
    device().write(runnable.loads[i], values, sizeof values);
  }
  double seconds = secondsNow() - start;
  loading += seconds;
  trace.add(Phase::Load, "data", start, seconds, -1);
}

void Executor::noteCall(const mgq_call &call, Phase phase, int32_t microBatch,
                        double start, double seconds) {
  if (call.layer >= 0 && phase == Phase::Forward)
    times[call.layer].forward += seconds;
  if (call.layer >= 0 && phase == Phase::Backward)
    times[call.layer].backward += seconds;
  if (call.layer >= 0 && phase == Phase::Weight)
    times[call.layer].weight += seconds;
  trace.add(phase, call.name, start, seconds, microBatch);
}

void Executor::timeDevice() {
  timed = device().accelerator();
  if (timed)
    timed->clearMarks();
}

void Executor::collectTimes() {
  if (!timed)
    return;
  for (const TimedCall &one : timedCalls) {
    double start = timed->secondsAt(one.begin);
    noteCall(*one.call, one.phase, one.microBatch, start,
             timed->secondsAt(one.end) - start);
  }
  timedCalls.clear();
  timed->clearMarks();
}

void Executor::rehearse(Accelerator &accelerator) {
  accelerator.rehearse(true);
  for (const Runnable &runnable : runnables)
    for (int32_t i = 0; i < runnable.sequence->call_count; ++i) {
      const mgq_call &call = runnable.sequence->calls[i];
      void *scratch =
          call.scratch_bytes ? arena.at(call.scratch_offset) : nullptr;
      void *const *args = runnable.pointers.data() + runnable.firstPointer[i];
      accelerator.enterCall(call.name);
      call.kernel(args, scratch);
      if (call.late)
        call.late(args, scratch);
      accelerator.leaveCall(call.name);
      pulse();
    }
  accelerator.rehearse(false);
  accelerator.synchronize();
}

/// What a call runs in this step.
mgq_kernel Executor::kernelOf(const mgq_call &call) const {
  bool isLate = call.late && call.layer >= 0 &&
                step >= view.program.layers[call.layer].late_from;
  return isLate ? call.late : call.kernel;
}

bool Executor::changesIn(int64_t number) const {
  const mgq_layer *layers = view.program.layers;
  return std::any_of(
      layers, layers + view.program.layer_count,
      [&](const mgq_layer &layer) { return layer.late_from == number; });
}

void Executor::callKernel(const Runnable &runnable, int32_t index) {
  const mgq_call &call = runnable.sequence->calls[index];
  device().enterCall(call.name);
  kernelOf(call)(runnable.pointers.data() + runnable.firstPointer[index],
                 call.scratch_bytes ? arena.at(call.scratch_offset) : nullptr);
}

void Executor::enqueuePart() {
  const mgq_call *calls = part.runnable->sequence->calls;
  for (int32_t i = part.first; i < part.end; ++i) {
    callKernel(*part.runnable, i);
    device().leaveCall(calls[i].name);
    if (part.hook)
      part.hook->enqueue(i);
  }
}

/// A call that may be skipped.
void Executor::enqueueFiltered(const Runnable &runnable, int32_t index,
                               CallHook *hook, CallFilter &filter) {
  void *const *args = runnable.pointers.data() + runnable.firstPointer[index];
  if (filter.skips(index, args))
    return;
  callKernel(runnable, index);
  device().leaveCall(runnable.sequence->calls[index].name);
  pulse();
  filter.ran(index, args);
  if (hook)
    hook->afterCall(index);
}

/// Calls are given to the accelerator at once, up to one whose hook enqueues
/// more, since messages begin there, or that a filter handles.
void Executor::enqueueParts(const Runnable &runnable, CallHook *hook,
                            CallFilter *filter, bool finishes) {
  const mgq_sequence &sequence = *runnable.sequence;
  for (int32_t first = 0, end; first < sequence.call_count; first = end) {
    end = first + 1;
    if (filter && filter->handles(first)) {
      if (finishes)
        enqueueFiltered(runnable, first, hook, *filter);
      continue;
    }
    while (end < sequence.call_count &&
           !(hook && hook->enqueuesMore(end - 1)) &&
           !(filter && filter->handles(end)))
      ++end;
    part = {&runnable, first, end, hook};
    key.clear();
    key.push_back(reinterpret_cast<uintptr_t>(&runnable));
    key.push_back(first);
    key.push_back(end);
    for (int32_t i = first; i < end; ++i) {
      key.push_back(reinterpret_cast<uintptr_t>(kernelOf(sequence.calls[i])));
      if (hook)
        hook->plan(i, key);
    }
    device().accelerator()->enqueueRecorded(key, sequence.calls[end - 1].name,
                                            work);
    pulse();
    for (int32_t i = first; hook && finishes && i < end; ++i)
      hook->finish(i);
  }
}

void Executor::record(const Runnable &runnable, CallHook *hook,
                      CallFilter *filter) {
  recorded = true;
  enqueueParts(runnable, hook, filter, /*finishes=*/false);
}

void Executor::run(const Runnable &runnable, Phase phase, int32_t microBatch,
                   CallHook *hook, CallFilter *filter) {
  const mgq_sequence &sequence = *runnable.sequence;
  if (phase == Phase::Forward && runnable.chunk >= 0)
    ++forwards[runnable.chunk];
  if (recorded && !timed && &runnable != prepareFrozen)
    return enqueueParts(runnable, hook, filter, /*finishes=*/true);
  int32_t mark = timed ? timed->mark() : 0;
  for (int32_t i = 0; i < sequence.call_count; ++i) {
    const mgq_call &call = sequence.calls[i];
    void *const *args = runnable.pointers.data() + runnable.firstPointer[i];
    if (filter && filter->skips(i, args))
      continue;
    double start = secondsNow();
    callKernel(runnable, i);
    double seconds = secondsNow() - start;
    device().leaveCall(call.name);
    pulse();
    if (timed) {
      timedCalls.push_back({&call, phase, microBatch, mark, timed->mark()});
      mark = timedCalls.back().end;
    } else {
      noteCall(call, phase, microBatch, start, seconds);
    }
    if (filter)
      filter->ran(i, args);
    if (hook)
      hook->afterCall(i);
  }
}
