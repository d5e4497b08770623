//===- ChunkLayout.h - Where a chunk keeps its values -----------*- C++ -*-===//
//
// The life of a micro-batch in a chunk, as steps:
//
//   receive | forward calls | send | receive gradients | backward calls |
//   send gradients | weight calls
//
// A value that is alive in more than one sequence, or is received or sent, is
// in the micro-batch's slot; any other in a part that all sequences of a rank
// share. The calls of the evaluate sequence make a life of their own.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PIPE_CHUNKLAYOUT_H
#define MGQ_PASSES_PIPE_CHUNKLAYOUT_H

#include "passes/Pipe/ArenaLayout.h"
#include "passes/Pipe/StepGraph.h"

namespace mgq::pipe {

/// A value of one chunk.
struct PlacedValue {
  mlir::Value value;
  Lifetime lifetime;
  bool inSlot = false;
  SequenceKind kind = SequenceKind::Forward; ///< Of its first step.
};

/// What one chunk needs on one rank, without the values in `elsewhere` (loss
/// and seed have cells).
class ChunkLayout {
public:
  ChunkLayout(const StepGraph &graph, int64_t chunk,
              llvm::ArrayRef<Crossing> crossings,
              const llvm::DenseSet<mlir::Value> &elsewhere);

  /// Gives offsets. With `oneSlot` everything goes into the slot.
  void place(bool oneSlot);

  int64_t slotBytes() const { return slots; }
  /// Of the part that all sequences share.
  int64_t sharedBytes() const { return shared; }
  llvm::ArrayRef<PlacedValue> values() const { return placed; }

  /// Inputs that a sequence loads: those no earlier one of the chunk has.
  llvm::ArrayRef<mlir::Value> loads(SequenceKind kind) const {
    return loaded[static_cast<int>(kind)];
  }

private:
  struct Sequence {
    SequenceKind kind;
    int64_t first; // step
  };
  SequenceKind sequenceAt(int64_t step) const;
  void add(mlir::Value value, int64_t begin);
  void use(mlir::Value value, int64_t step);

  llvm::SmallVector<PlacedValue> placed;
  llvm::DenseMap<mlir::Value, size_t> index;
  llvm::SmallVector<Sequence> sequences;
  std::array<llvm::SmallVector<mlir::Value>, kSequenceKinds> loaded;
  int64_t slots = 0, shared = 0;
};

} // namespace mgq::pipe

#endif // MGQ_PASSES_PIPE_CHUNKLAYOUT_H
