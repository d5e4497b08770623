//===- RankPlanner.h - The memory of one rank ------------------*- C++ -*-===//
//
//   activations: | slots of chunk 0 | slots of chunk 1 | ... | shared |
//
// Slots hold what micro-batches in flight keep; the shared part what lives in
// one sequence only, and an evaluation's values. Scratch is the running call's;
// then comes room for all_reduces, shared by those never under way together.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PIPE_RANKPLANNER_H
#define MGQ_PASSES_PIPE_RANKPLANNER_H

#include "passes/Pipe/ChunkLayout.h"
#include "passes/Pipe/RankMemory.h"

namespace mgq::pipe {

using Places = llvm::DenseMap<mlir::Value, mlir::Attribute>;

/// Plans one rank.
class RankPlanner {
public:
  RankPlanner(mlir::ModuleOp module, PlanOp plan, const StepGraph &graph,
              const Kernels &kernels, llvm::ArrayRef<Crossing> crossings,
              RankOp rank, bool copyWeights)
      : module(module), plan(plan), graph(graph), kernels(kernels),
        crossings(crossings), rank(rank), stage(rank.getStage()),
        builder(mlir::OpBuilder::atBlockBegin(&rank.getBody().front())),
        memory(module, graph, kernels, stage, copyWeights) {}

  mlir::LogicalResult run();

private:
  struct Chunk {
    int64_t index, slotCount, slotsBegin;
    ChunkLayout layout;
    Places places; // of @train's values
  };
  struct Evaluated {
    llvm::SmallVector<mlir::Value> values;
    llvm::SmallVector<Lifetime> lifetimes;
    llvm::DenseMap<int64_t, llvm::SmallVector<mlir::Value>> loads; // by chunk
  };

  void collectChunks();
  llvm::SmallVector<mlir::func::CallOp> allCalls() const;
  mlir::LogicalResult placeCells();
  mlir::LogicalResult placeOutputs(const CallList &list);
  void placeSlots();
  Evaluated layOutEvaluation();
  llvm::SmallVector<mlir::Value> layOutCount();
  void addPrepareSequence();
  void addSequence(SequenceKind kind, std::optional<int64_t> chunk,
                   llvm::ArrayRef<mlir::func::CallOp> calls,
                   llvm::ArrayRef<mlir::Value> loads, const Places &places);
  mlir::LogicalResult placeGradients();
  void addShards();
  void placeMessages();
  void placeReductions();
  ArenaAttr scratch(llvm::StringRef kernel) {
    return memory.arena(scratchBegin, kernels.scratchBytes(kernel));
  }
  bool isHere(int64_t chunk) const {
    return llvm::is_contained(graph.stagesOf(chunk), stage);
  }

  mlir::ModuleOp module;
  PlanOp plan;
  const StepGraph &graph;
  const Kernels &kernels;
  llvm::ArrayRef<Crossing> crossings;
  RankOp rank;
  int64_t stage;
  mlir::OpBuilder builder;
  RankMemory memory;
  llvm::SmallVector<Chunk, 0> chunks;
  llvm::DenseSet<mlir::Value> inCells; // loss, seed
  Places evaluated, counted;
  int64_t sharedBegin = 0, sharedBytes = 0, activationBytes = 0,
          scratchBegin = 0, scratchSize = 0;
};

} // namespace mgq::pipe

#endif // MGQ_PASSES_PIPE_RANKPLANNER_H
