//===- RunPrefixAhead.cpp - The next step's frozen prefix -----------------===//
//
// In: programs of compute ops. Out, where there are replicas:
//
//   F1 B1 F1 B1 combine all_reduce F0' F0' optimizer
//
// where F0' are the forward ops of the next step's micro-batches in a chunk in
// which nothing trains, nor below it: they depend on records alone, which are
// known, and hide the sums. Their slots live on into the next step; messages
// follow from that (InsertCommunication). The runtime runs these ops before the
// first step as well.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/StepGraph.h"

#include "llvm/ADT/DenseMap.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_RUNPREFIXAHEADPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

int64_t mgq::pipe::frozenChunks(PlanOp plan) {
  int64_t count = 0, all = llvm::range_size(plan.getOps<ChunkOp>());
  for (ChunkOp chunk : plan.getOps<ChunkOp>()) {
    if (chunk.getBackward() || chunk.getWeight() || count + 1 == all)
      break;
    ++count;
  }
  return count;
}

/// Moves the forward ops of the first chunks to the end, or to the beginning.
static void moveForward(RankOp rank, int64_t chunks, bool thisStep,
                        bool layersFirst) {
  Block &block = rank.getBody().front();
  auto optimizers = rank.getOps<OptimizerOp>();
  SmallVector<ForwardOp> ops;
  for (ForwardOp forward : rank.getOps<ForwardOp>())
    if (int64_t(forward.getChunk()) < chunks && !forward.getAhead())
      ops.push_back(forward);
  if (ops.empty() || optimizers.empty())
    return;
  if (layersFirst)
    llvm::sort(ops, [](ForwardOp a, ForwardOp b) {
      return std::pair(a.getChunk(), a.getMicroBatch()) <
             std::pair(b.getChunk(), b.getMicroBatch());
    });
  llvm::DenseMap<int64_t, int64_t> slots; // by chunk: given out
  Operation *before = nullptr;
  for (ForwardOp forward : ops) {
    forward.setAhead(!thisStep);
    forward.setSlot(slots[forward.getChunk()]++);
    if (!thisStep)
      forward->moveBefore(*optimizers.begin());
    else if (before)
      forward->moveAfter(before);
    else
      forward->moveBefore(&block, block.begin());
    before = forward;
  }
}

namespace {
struct RunPrefixAheadPass
    : mgq::pipe::impl::RunPrefixAheadPassBase<RunPrefixAheadPass> {
  using RunPrefixAheadPassBase::RunPrefixAheadPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<PlanOp> found = findPlan(module);
    if (failed(found))
      return signalPassFailure();
    PlanOp plan = *found;
    // Without replicas no sum is waited for.
    if (plan.getReplicas() == 1 && !thisStep)
      return;
    for (RankOp rank : module.getOps<RankOp>())
      moveForward(rank, frozenChunks(plan), thisStep, layersFirst);
  }
};
} // namespace
