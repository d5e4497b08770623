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

#include "passes/Pipe/Passes.h"

#include "llvm/ADT/DenseMap.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_RUNPREFIXAHEADPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

/// Chunks at the beginning of the model without gradients. The last chunk has
/// the loss: it is none of them.
static int64_t prefixChunks(PlanOp plan) {
  int64_t count = 0, all = llvm::range_size(plan.getOps<ChunkOp>());
  for (ChunkOp chunk : plan.getOps<ChunkOp>()) {
    if (chunk.getBackward() || chunk.getWeight() || count + 1 == all)
      break;
    ++count;
  }
  return count;
}

/// Moves the forward ops of the first chunks to the end.
static void runAhead(RankOp rank, int64_t chunks) {
  auto optimizers = rank.getOps<OptimizerOp>();
  if (optimizers.empty())
    return;
  llvm::DenseMap<int64_t, int64_t> slots; // by chunk: given out
  for (ForwardOp forward :
       llvm::make_early_inc_range(rank.getOps<ForwardOp>())) {
    if (int64_t(forward.getChunk()) >= chunks || forward.getAhead())
      continue;
    forward.setAhead(true);
    forward.setSlot(slots[forward.getChunk()]++);
    forward->moveBefore(*optimizers.begin());
  }
}

namespace {
struct RunPrefixAheadPass
    : mgq::pipe::impl::RunPrefixAheadPassBase<RunPrefixAheadPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto plans = module.getOps<PlanOp>();
    if (plans.empty()) {
      module.emitError("has no pipe.plan");
      return signalPassFailure();
    }
    PlanOp plan = *plans.begin();
    // Without replicas no sum is waited for.
    if (plan.getReplicas() == 1)
      return;
    for (RankOp rank : module.getOps<RankOp>())
      runAhead(rank, prefixChunks(plan));
  }
};
} // namespace
