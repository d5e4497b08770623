//===- OpList.h - A rank's program, ready to run ----------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_OPLIST_H
#define MGQ_RUNTIME_COMMON_OPLIST_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/common/Reducer.h"

namespace mgq::rt {

/// Bytes sent to other ranks, by mgq_traffic. (Chunks of one rank may exchange
/// messages, too.)
struct SentBytes {
  int64_t of[3] = {0, 0, 0};
};

/// Ops of a step or of an evaluation, with their places resolved for the slots
/// of their micro-batches, and the messages that are open. Allocates nothing
/// after construction.
class OpList {
public:
  struct Entry {
    const mgq_op *op;
    const Runnable *runnable = nullptr; ///< What a computing op runs.
    std::byte *place = nullptr;         ///< A message's, or what is reduced.
    std::vector<std::byte *>
        grads;             ///< Of the chunk's table; not of this op: 0.
    float *loss = nullptr; ///< Where the op leaves the loss, or null.
    float *seed = nullptr; ///< Where the op reads the seed, or null.
    int64_t request = -1;  ///< Of an open message; 0: DeviceMessages has it.
  };

  /// Throws Error if the tables are damaged. `reducer`, if there is one, moves
  /// on while messages are waited for; `times` is told of the messages.
  OpList(const RankView &view, const mgq_op *ops, int32_t count,
         Executor &executor, Group &group, Trace &trace,
         Reducer *reducer = nullptr, HiddenTime *times = nullptr);

  std::vector<Entry> &entries() { return list; }
  int32_t indexOf(const Entry &entry) const {
    return static_cast<int32_t>(&entry - list.data());
  }

  /// The slots of a micro-batch in the rank's chunks.
  Slots slotsOf(int32_t microBatch) const;

  /// Waits for what an op names, unless the op waits beside the program: some
  /// all_reduces, and messages and gathers of accelerators for others. There,
  /// to wait is said to the accelerator, which does.
  void waitBefore(const Entry &entry);
  /// Begins a send, receive or all_reduce.
  void begin(Entry &entry);
  /// Of an accelerator: see DeviceMessages.
  mgq_span span(int32_t index) {
    return messages ? messages->span(index) : mgq_span{-1, -1};
  }
  /// Waits for all that is open: the program's end.
  void waitAll();

  /// All runs together.
  const SentBytes &sent() const { return sentBytes; }

private:
  void prepare(Entry &entry);
  void prepareCompute(Entry &entry, const Slots &slots);
  void checkMessage(const Entry &entry, int32_t index) const;
  void wait(Entry &entry);
  void waitMessage(Entry &entry, double start);

  const RankView &view;
  Executor &executor;
  Group &group;
  Trace &trace;
  Reducer *reducer;
  HiddenTime *times;
  std::vector<Entry> list;
  std::unique_ptr<DeviceMessages> messages; ///< Null: they go through `group`.
  SentBytes sentBytes;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_OPLIST_H
