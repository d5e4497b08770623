//===- ShardFrozen.cpp - Frozen weights are spread over ranks -------------===//
//
// In: programs in which all micro-batches go through a chunk of the frozen
// prefix before the first goes on (RunPrefixAhead, layers first). Out: the
// chunks' weights come in time, through two buffers by turns:
//
//   %0 = all_gather chunk(0)
//   %1 = all_gather chunk(1)
//   %2 = forward chunk(0) micro_batch(0) after(%0)
//   %3 = forward chunk(0) micro_batch(1) after(%0)
//   %4 = all_gather chunk(2) after(%0, %3)   into the buffer of chunk 0
//   %5 = forward chunk(1) micro_batch(0) after(%1)
//
// So each is gathered once a step, while the chunk before runs. All ranks take
// part, also those that run none of the chunk. The same for an evaluation.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/RankMemory.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_SHARDFROZENPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

/// The chunk that a forward or evaluate op runs, -1: another op.
static int64_t chunkRunBy(Operation &op) {
  if (auto forward = dyn_cast<ForwardOp>(op))
    return forward.getChunk();
  if (auto evaluate = dyn_cast<EvaluateOp>(op))
    return evaluate.getChunk();
  return -1;
}

/// Inserts the gathers of `chunks` into a program. `end`: where those go whose
/// chunks the rank does not run; null: to the beginning.
static void insertGathers(Block &block, ArrayRef<int64_t> chunks, bool isAhead,
                          Operation *end, Location loc) {
  llvm::DenseMap<int64_t, SmallVector<Operation *>> runs; // by chunk
  Operation *first = nullptr;
  for (Operation &op : block)
    if (int64_t chunk = chunkRunBy(op); llvm::is_contained(chunks, chunk)) {
      runs[chunk].push_back(&op);
      first = first ? first : &op;
    }
  OpBuilder builder(loc.getContext());
  if (first || end)
    builder.setInsertionPoint(first ? first : end);
  else
    builder.setInsertionPointToStart(&block);
  SmallVector<AllGatherOp> gathers;
  for (auto [i, chunk] : llvm::enumerate(chunks)) {
    SmallVector<Value> after;
    if (i >= 2) {
      // The chunk before the last had this buffer. Its ops may be skipped, with
      // micro-batches that do not count.
      after.push_back(gathers[i - 2].getEvent());
      if (!runs[chunks[i - 2]].empty()) {
        after.push_back(runs[chunks[i - 2]].back()->getResult(0));
        builder.setInsertionPointAfter(runs[chunks[i - 2]].back());
      }
    }
    gathers.push_back(
        AllGatherOp::create(builder, loc, EventType::get(loc.getContext()),
                            chunk, isAhead, ArenaAttr(), ArenaAttr(), after));
    for (Operation *reader : runs[chunk])
      reader->insertOperands(reader->getNumOperands(),
                             gathers.back().getEvent());
  }
}

namespace {
struct ShardFrozenPass : mgq::pipe::impl::ShardFrozenPassBase<ShardFrozenPass> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<StepGraph> graph = StepGraph::create(module);
    if (failed(graph))
      return signalPassFailure();
    PlanOp plan = graph->plan;
    if (plan.getStages() * plan.getReplicas() == 1)
      return;
    Kernels kernels(module);
    SmallVector<int64_t> chunks;
    auto weights = RankMemory::shardedWeights(*graph, kernels, copyWeights);
    for (int64_t chunk = 0; chunk < frozenChunks(plan); ++chunk)
      if (!weights[chunk].empty())
        chunks.push_back(chunk);
    bool isAhead = false;
    for (RankOp rank : module.getOps<RankOp>())
      for (ForwardOp forward : rank.getOps<ForwardOp>())
        isAhead |= forward.getAhead();
    for (RankOp rank : module.getOps<RankOp>()) {
      auto optimizers = rank.getOps<OptimizerOp>();
      insertGathers(rank.getBody().front(), chunks, isAhead,
                    isAhead ? *optimizers.begin() : OptimizerOp(),
                    rank.getLoc());
      for (EvaluationOp evaluation : rank.getOps<EvaluationOp>())
        insertGathers(evaluation.getBody().front(), chunks, /*isAhead=*/false,
                      nullptr, rank.getLoc());
    }
  }
};
} // namespace
