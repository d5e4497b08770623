//===- Executor.cpp - Runs a program's sequences --------------------------===//

#include "runtime/src/local/Executor.h"
#include "runtime/src/common/Error.h"
#include <atomic>

using namespace mgq::rt;

namespace {
/// The first index fault since the last check. Compute threads write it; the
/// executor reads it after the call, when all of them are done.
struct IndexFault {
  std::atomic<bool> taken{false};
  std::atomic<bool> complete{false};
  const char *what = nullptr;
  int64_t index = 0, size = 0;
};
} // namespace

static IndexFault indexFault;

extern "C" void mgq_index_error(const char *what, int64_t index, int64_t size) {
  if (indexFault.taken.exchange(true))
    return;
  indexFault.what = what;
  indexFault.index = index;
  indexFault.size = size;
  indexFault.complete.store(true, std::memory_order_release);
}

void mgq::rt::checkIndexError(const char *where) {
  if (!indexFault.complete.load(std::memory_order_acquire))
    return;
  std::string text = fmt::format(
      "index {} is outside [0, {}) in node '{}' (layer {})", indexFault.index,
      indexFault.size, indexFault.what ? indexFault.what : "?", where);
  indexFault.complete = false;
  indexFault.taken = false;
  throw Error(text);
}

Executor::Executor(const mgq_program &program, Arena &arena,
                   const Weights &weights, Trace &trace)
    : program(program), arena(arena), trace(trace), times(program.layer_count),
      prepareFrozen(prepare(program.prepare_frozen, weights)),
      prepareTrainable(prepare(program.prepare_trainable, weights)),
      forward(prepare(program.forward, weights)),
      backward(prepare(program.backward, weights)),
      evaluate(prepare(program.evaluate, weights)),
      count(prepare(program.count, weights)) {}

Executor::Prepared Executor::prepare(const mgq_sequence &sequence,
                                     const Weights &weights) {
  Prepared prepared{&sequence, {}, {}};
  for (int32_t i = 0; i < sequence.call_count; ++i) {
    const mgq_call &call = sequence.calls[i];
    if (call.layer >= program.layer_count)
      fail("the program's tables are damaged: call {} is of layer {}, there "
           "are {}",
           call.name, call.layer, program.layer_count);
    prepared.firstPointer.push_back(prepared.pointers.size());
    for (int32_t j = 0; j < call.arg_count; ++j) {
      const mgq_ref &ref = call.args[j];
      bool weight = ref.space == MGQ_SPACE_WEIGHT;
      if (weight ? ref.index < 0 || ref.index >= program.param_count
                 : ref.offset < 0 || ref.offset > arena.size())
        fail("the program's tables are damaged: argument {} of call {}", j,
             call.name);
      // Kernels take void *; they only read operands.
      void *pointer =
          weight ? const_cast<std::byte *>(weights.data(ref.index) + ref.offset)
                 : static_cast<void *>(arena.at(ref.offset));
      prepared.pointers.push_back(pointer);
    }
    if (call.scratch_bytes &&
        (call.scratch_offset < 0 || call.scratch_offset % 64 ||
         call.scratch_offset + call.scratch_bytes > arena.size()))
      fail("the program's tables are damaged: scratch of call {}", call.name);
  }
  return prepared;
}

void Executor::resetTimes() {
  times.assign(times.size(), {});
  forwards = 0;
}

void Executor::runForward(int32_t microBatch) {
  run(forward, Phase::Forward, microBatch);
  ++forwards;
}

void Executor::runBackward(int32_t microBatch,
                           const std::function<void(int32_t)> &afterCall) {
  run(backward, Phase::Backward, microBatch, &afterCall);
}

void Executor::run(Prepared &prepared, Phase phase, int32_t microBatch,
                   const std::function<void(int32_t)> *afterCall) {
  const mgq_sequence &sequence = *prepared.sequence;
  for (int32_t i = 0; i < sequence.call_count; ++i) {
    const mgq_call &call = sequence.calls[i];
    double start = secondsNow();
    call.kernel(prepared.pointers.data() + prepared.firstPointer[i],
                call.scratch_bytes ? arena.at(call.scratch_offset) : nullptr);
    double seconds = secondsNow() - start;
    checkIndexError(call.name);
    if (call.layer >= 0 && phase == Phase::Forward)
      times[call.layer].forward += seconds;
    if (call.layer >= 0 && phase == Phase::Backward)
      times[call.layer].backward += seconds;
    trace.add(phase, call.name, start, seconds, microBatch);
    if (afterCall)
      (*afterCall)(i);
  }
}
