//===- CheckMemory.cpp - Each call reads what was written for it ----------===//
//
// Keeps the set of written ranges in the order in which the sequences run. A
// read of a range whose last write was another range is a broken plan.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"

#include <map>

namespace mgq::pipe {
#define GEN_PASS_DEF_CHECKMEMORYPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

namespace {
/// A write still visible in full: its end, and the call that made it.
struct Write {
  int64_t end;
  Operation *writer;
};
using Writes = std::map<int64_t, Write>; // by offset
} // namespace

/// Forgets every write that [begin, end) touches, then records it.
static void record(Writes &writes, int64_t begin, int64_t end, Operation *op) {
  auto it = writes.upper_bound(begin);
  if (it != writes.begin() && std::prev(it)->second.end > begin)
    --it;
  while (it != writes.end() && it->first < end)
    it = writes.erase(it);
  writes[begin] = {end, op};
}

/// Checks the reads of one call against the writes so far; adds its writes.
static LogicalResult checkCall(CallOp call, int64_t persistent,
                               Writes &writes) {
  int64_t reads = call.getArgs().size() - call.getResults();
  for (auto [i, arg] : llvm::enumerate(call.getArgs())) {
    auto range = dyn_cast<ArenaAttr>(arg);
    if (!range)
      continue;
    int64_t begin = range.getOffset(), end = begin + range.getBytes();
    if (int64_t(i) >= reads) {
      record(writes, begin, end, call);
      continue;
    }
    if (end <= persistent)
      continue;
    auto it = writes.find(begin);
    if (it == writes.end() || it->second.end != end)
      return call.emitOpError("reads ")
             << range << " of argument " << i
             << ", which no call wrote or a later one wrote over";
  }
  return success();
}

/// Checks sequences that run one after the other on the same micro-batch.
static LogicalResult checkOrder(RankOp rank, ArrayRef<SequenceKind> kinds) {
  auto memory = rank.getMemory();
  if (!memory)
    return success();
  // Weights, gradients, optimizer and inputs are written by the runtime.
  int64_t persistent =
      (*memory)[0] + (*memory)[1] + (*memory)[2] + (*memory)[3];
  Writes writes;
  for (SequenceKind kind : kinds)
    if (SequenceOp sequence = rank.getSequence(kind))
      for (CallOp call : sequence.getOps<CallOp>())
        if (failed(checkCall(call, persistent, writes)))
          return failure();
  return success();
}

namespace {
struct CheckMemoryPass : mgq::pipe::impl::CheckMemoryPassBase<CheckMemoryPass> {
  void runOnOperation() override {
    for (RankOp rank : getOperation().getOps<RankOp>())
      if (failed(checkOrder(rank,
                            {SequenceKind::Forward, SequenceKind::Backward})) ||
          failed(checkOrder(rank, {SequenceKind::Evaluate})) ||
          failed(checkOrder(rank, {SequenceKind::Count})))
        return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace
