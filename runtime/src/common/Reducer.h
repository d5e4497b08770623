//===- Reducer.h - Collectives beside what a rank computes ------*- C++ -*-===//
//
// The gradients of a rank are cut into buckets, each an MGQ_OP_ALL_REDUCE of
// the program. A bucket's sum goes on beside what the rank computes: it is
// begun when its last gradient is there, and moved on between kernel calls and
// while the rank waits. There is no thread for it. MGQ_OP_ALL_GATHER, frozen
// weights that are spread over ranks, goes the same way.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_REDUCER_H
#define MGQ_RUNTIME_COMMON_REDUCER_H

#include "runtime/src/common/CompressedGradients.h"
#include "runtime/src/common/Trace.h"
#include "runtime/src/local/Executor.h"

namespace mgq::rt {

/// Runs the collectives of a program: of a step or of an evaluation. Allocates
/// nothing after construction. Buckets are named by the indices of their ops in
/// the program.
class Reducer {
public:
  /// Throws Error if the tables are damaged, or an op needs room and there is
  /// none.
  Reducer(const RankView &view, const mgq_op *ops, int32_t count,
          Executor &executor, Group &group, Trace &trace, HiddenTime *times,
          CompressedGradients *compressed = nullptr);

  /// Messages of all buckets in a step, at most.
  static size_t mostMessages(const RankView &view);

  /// All buckets are to be begun again.
  void startStep();
  /// Begins a bucket, once those whose room it takes are done. A bucket that
  /// has been begun in this step is left alone.
  void begin(int32_t op);
  /// Begins the buckets that `call` of the backward or weight op `op` fills.
  void afterCall(int32_t op, int32_t call);
  /// Whether there are any.
  bool beginsAfter(int32_t op, int32_t call) const;
  /// Moves on all that is open, without sleeping.
  void progress();
  /// Whether nothing is open.
  bool idle() const { return open == 0; }
  /// Sleeps until a bucket is done. One that was never begun is. An accelerator
  /// does the waiting.
  void finish(int32_t op);
  void finishAll();
  /// Sleeps until a message is done, moving on all that is open meanwhile.
  void wait(int64_t request, mgq_span *span);

  /// Of an accelerator: when a bucket's sum travelled.
  mgq_span span(int32_t op) {
    Entry *entry = find(op);
    return entry ? entry->collective->span() : mgq_span{-1, -1};
  }

  /// Bytes sent in all steps so far, by mgq_op_kind.
  int64_t sentBytes(mgq_op_kind kind) const;
  /// Whether there is a collective.
  bool empty() const { return entries.empty(); }

private:
  enum class State { Idle, Waiting, Running, Done, Joined };
  struct Entry {
    int32_t op; ///< Index in the program.
    int32_t kind;
    std::unique_ptr<Collective> collective;
    std::vector<size_t> before; ///< Entries that must be done first.
    State state = State::Idle;
    double began = 0;
    int64_t sentBefore = 0;
  };
  struct Trigger {
    int32_t op, call;
    size_t entry;
  };

  Entry *find(int32_t op);
  void start(Entry &entry);
  void sleep(int64_t request);

  const RankView &view;
  Group &group;
  Trace &trace;
  std::vector<Entry> entries;
  std::vector<Trigger> triggers;
  std::vector<int64_t> requests; ///< To sleep for.
  size_t open = 0;               ///< Waiting or running.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_REDUCER_H
