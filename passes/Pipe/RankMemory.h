//===- RankMemory.h - What stays in a rank's arena --------------*- C++ -*-===//
//
//   arena: | weights | gradients | optimizer | cells | activations | scratch |
//
// This part places the first four: trainable values, frozen weights as kernels
// read them where that is not as they are stored, accumulators, Adam's states,
// and scalars and outputs that the runtime reads or writes.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_PIPE_RANKMEMORY_H
#define MGQ_PASSES_PIPE_RANKMEMORY_H

#include "passes/Pipe/ArenaLayout.h"
#include "passes/Pipe/StepGraph.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "llvm/ADT/MapVector.h"

namespace mgq::pipe {

/// Code of layer functions, by name. Before phase `kernels` there is none: no
/// weight is packed, no call has scratch.
class Kernels {
public:
  explicit Kernels(mlir::ModuleOp module);

  mlir::LLVM::LLVMFuncOp find(llvm::StringRef name) const;
  /// Bytes of scratch that a layer function asks for, in either phase of
  /// progressive precision.
  int64_t scratchBytes(llvm::StringRef name) const;
  /// The function that packs what a call reads as this operand, or null: the
  /// kernel reads the parameter as it is stored.
  mlir::FlatSymbolRefAttr packFunction(mlir::func::CallOp call,
                                       unsigned operand) const;
  /// Bytes that a packing function writes.
  int64_t panelBytes(llvm::StringRef packFunction) const;

private:
  static int64_t scratchBytes(mlir::LLVM::LLVMFuncOp code);

  mutable mlir::ModuleOp module;
  std::optional<mlir::SymbolTable> symbols;
};

/// A part of the arena that grows while things are placed in it.
struct Region {
  int64_t begin = 0;
  int64_t bytes = 0;

  int64_t take(int64_t size) {
    int64_t offset = begin + bytes;
    bytes += alignBytes(size);
    return offset;
  }
  int64_t end() const { return begin + bytes; }
};

/// A frozen weight, and the function that packs it.
using PanelKey = std::pair<mlir::StringAttr, mlir::StringAttr>;
/// A frozen weight that is copied, and the type in which calls read it.
using CopyKey = std::pair<mlir::StringAttr, mlir::Type>;

/// What calls read of the frozen weights in memory, with a T of each.
template <typename T>
struct FrozenWeights {
  llvm::MapVector<PanelKey, T> panels;
  llvm::MapVector<CopyKey, T> copies;

  bool empty() const { return panels.empty() && copies.empty(); }
};

/// Frozen weights of a chunk that are spread over ranks.
struct Shard {
  int64_t chunk;
  FrozenWeights<ArenaAttr> weights; ///< In the buffer.
  ArenaAttr slice, buffer;
};

/// The persistent part of one rank's arena.
class RankMemory {
public:
  /// `copyWeights`: kernels cannot read files.
  RankMemory(mlir::ModuleOp module, const StepGraph &graph,
             const Kernels &kernels, int64_t stage, bool copyWeights);

  /// Owned parameters in the order in which their gradients lie in the arena;
  /// those that are not named come first, in the order of the module.
  llvm::SmallVector<mlir::StringAttr> gradientOrder;

  /// Places parameters, accumulators and states; writes place_param, place_use.
  mlir::LogicalResult placeParams(mlir::OpBuilder &builder,
                                  llvm::ArrayRef<mlir::func::CallOp> calls);
  /// The place of a named cell, made on first use.
  ArenaAttr cell(llvm::StringRef name, mlir::Type type);

  /// Room for what compressed gradients have not sent yet; fills in the rank's
  /// place_residuals. After placeParams, before any cell.
  void placeResiduals(RankOp rank, int64_t replicas);
  /// Bytes that a compressed reduction exchanges at once: pieces of all
  /// replicas, sent and received.
  int64_t compressedExchangeBytes(ArenaAttr gradients, int64_t replicas);

  /// The op that says where the copy of a frozen weight is.
  void createCopy(mlir::OpBuilder &builder, CopyKey key, ArenaAttr place);

  /// Where a call finds a parameter.
  mlir::Attribute placeOf(mlir::func::CallOp call, unsigned operand);
  ArenaAttr arena(int64_t offset, int64_t bytes) const {
    return ArenaAttr::get(context, offset, bytes);
  }
  /// The accumulator of gradient number `use` of @train, on this rank.
  int64_t accumulator(unsigned use) const { return accumulators.lookup(use); }
  /// A trainable parameter's value.
  ArenaAttr valueOf(mlir::StringAttr param) const;
  /// The gradients of consecutive parameters of `gradientOrder`.
  ArenaAttr gradientsOf(mlir::StringAttr first, mlir::StringAttr last);
  /// Gradients of owned parameters: one range.
  ArenaAttr ownedGradients() const {
    return arena(gradients.begin, ownedBytes);
  }

  /// By chunk, what only it reads, packed or copied, with its bytes.
  static std::vector<FrozenWeights<int64_t>>
  shardedWeights(const StepGraph &graph, const Kernels &kernels,
                 bool copyWeights);

  /// Chunks whose weights are spread over `members` ranks, in the order in
  /// which they take turns at two buffers.
  llvm::SmallVector<int64_t> shardedChunks;
  int64_t members = 1;
  llvm::SmallVector<Shard, 0> shards;

  /// By parameter and function that packs it: where the panels are that the
  /// rank has whole.
  llvm::MapVector<PanelKey, ArenaAttr> panels;
  llvm::MapVector<mlir::StringAttr, mlir::Attribute> params;
  /// Of frozen weights that are copied: by the type in which calls read them.
  llvm::MapVector<CopyKey, ArenaAttr> copies;
  Region weights, gradients, optimizer, cells;

private:
  void placeShards();
  ArenaAttr shardedPlace(PanelKey key) const;
  ArenaAttr shardedPlace(CopyKey key) const;
  void placeCopies(mlir::OpBuilder &builder,
                   llvm::ArrayRef<mlir::func::CallOp> calls);
  int64_t blocksIn(ArenaAttr gradients);
  void placePanels(llvm::ArrayRef<mlir::func::CallOp> calls);
  void placeAccumulators(mlir::OpBuilder &builder);

  mlir::ModuleOp module;
  mlir::MLIRContext *context;
  const StepGraph &graph;
  const Kernels &kernels;
  int64_t stage;
  bool copyWeights;
  int64_t ownedBytes = 0;
  llvm::MapVector<mlir::StringAttr, int64_t> owners;
  llvm::DenseMap<mlir::StringAttr, int64_t> ownOffsets;
  llvm::DenseMap<unsigned, int64_t> accumulators;
  llvm::StringMap<ArenaAttr> cellPlaces;
};

/// Calls `visit` with each gradient of @train: result number and parameter.
void forEachGradient(
    mlir::func::FuncOp train,
    llvm::function_ref<void(unsigned, mlir::StringAttr)> visit);

} // namespace mgq::pipe

#endif // MGQ_PASSES_PIPE_RANKMEMORY_H
