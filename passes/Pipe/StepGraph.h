//===- StepGraph.h - Calls of a step by chunk -------------------*- C++ -*-===//
//
// A view of @train, @model and @count after partition: which calls make up each
// sequence of each chunk, and which values go from one chunk to another.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PIPE_STEPGRAPH_H
#define MGQ_PASSES_PIPE_STEPGRAPH_H

#include "passes/Pipe/Passes.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include <array>

namespace mgq::pipe {

/// Phase of a call of @train: forward, backward or weight.
SequenceKind phaseOf(mlir::func::CallOp call);

/// Whether a value is a graph input: an argument of @train, @model or @count.
bool isInput(mlir::Value value);

/// How many chunks at the beginning of the model have no gradients. The last
/// chunk has the loss: it is none of them.
int64_t frozenChunks(PlanOp plan);

/// Kinds of sequences.
inline constexpr int kSequenceKinds = getMaxEnumValForSequenceKind() + 1;

/// Bytes of a tensor, dense; a boolean takes one byte.
int64_t byteSize(mlir::Type type);

/// A value that chunk `from` makes and chunk `to` reads.
struct Crossing {
  EdgeKind kind;
  int64_t from, to;
  mlir::Value value;
};

/// The calls of @train, @model or @count.
class CallList {
public:
  CallList() = default;
  explicit CallList(mlir::func::FuncOp function) : op(function) {}

  mlir::func::FuncOp function() const { return op; }
  mlir::Operation *returnOp() const {
    return function().getBody().front().getTerminator();
  }
  void add(mlir::func::CallOp call) {
    index[call] = list.size();
    list.push_back(call);
  }
  llvm::ArrayRef<mlir::func::CallOp> calls() const { return list; }
  int64_t numberOf(mlir::func::CallOp call) const { return index.lookup(call); }
  mlir::Value result(int64_t call, int64_t number) const {
    return list[call]->getResult(number);
  }

private:
  mlir::func::FuncOp op;
  llvm::SmallVector<mlir::func::CallOp> list;
  llvm::DenseMap<mlir::Operation *, int64_t> index;
};

/// The plan of a module; fails, with a message, where there is none.
mlir::FailureOr<PlanOp> findPlan(mlir::ModuleOp module);

class StepGraph {
public:
  /// Fails, with a message, for functions that hold more than calls. Weight
  /// calls of a chunk that the plan runs without a weight op belong to its
  /// backward sequence.
  static mlir::FailureOr<StepGraph> create(mlir::ModuleOp module, PlanOp plan);
  /// With the module's own plan.
  static mlir::FailureOr<StepGraph> create(mlir::ModuleOp module);

  PlanOp plan;
  CallList train, model, count;
  int64_t chunks = 0;
  /// The chunk that makes the loss.
  int64_t lossChunk = -1;

  /// Calls of a sequence in order, with the calls on inputs that it repeats.
  llvm::ArrayRef<mlir::func::CallOp> calls(SequenceKind kind,
                                           int64_t chunk) const {
    return sequences[chunk][static_cast<int>(kind)];
  }

  /// The sequence of a chunk that a call of @train belongs to.
  SequenceKind sequenceOf(mlir::func::CallOp call) const;

  /// The stage on which a chunk runs a micro-batch.
  int64_t stageOf(int64_t chunk, int64_t microBatch) const {
    const auto &ranks = stages[chunk];
    return ranks[microBatch % ranks.size()];
  }
  /// All stages on which a chunk runs.
  llvm::ArrayRef<int64_t> stagesOf(int64_t chunk) const {
    return stages[chunk];
  }

  /// Trainable parameters by first use, with the stage of that use, which owns
  /// them.
  llvm::MapVector<mlir::StringAttr, int64_t> owners(mlir::ModuleOp) const;
  /// Stages that read a parameter, ascending.
  llvm::SmallVector<int64_t> usersOf(mlir::StringAttr param) const;

  /// What goes between chunks, by producer and result, then by reader.
  llvm::SmallVector<Crossing> crossings() const;

  /// The call that defines a value, or null.
  static mlir::func::CallOp producer(mlir::Value value) {
    return value.getDefiningOp<mlir::func::CallOp>();
  }
  /// The chunk of a call, -1: every chunk that needs it.
  static int64_t chunkOf(mlir::func::CallOp call);

private:
  std::vector<std::array<llvm::SmallVector<mlir::func::CallOp>, kSequenceKinds>>
      sequences;
  std::vector<llvm::SmallVector<int64_t>> stages; // by chunk
  std::vector<bool> splitsWeight;                 // by chunk

  void buildSequences();
  void addCrossings(const CallList &list,
                    llvm::SmallVectorImpl<Crossing> &found) const;
};

} // namespace mgq::pipe

#endif // MGQ_PASSES_PIPE_STEPGRAPH_H
