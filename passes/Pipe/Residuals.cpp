//===- Residuals.cpp - Room for compressed gradients ----------------------===//
//
// The runtime (runtime/src/common/CompressedGradients) cuts the owned gradients
// into blocks of 256 values of one parameter, deals them out to replicas as
// shards, and exchanges them piece by piece.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/RankMemory.h"

using namespace mlir;
using namespace mgq::pipe;

static constexpr int64_t kBlock = 256; // values
/// A block takes no more bytes on its way than as bf16.
static constexpr int64_t kEncodedBlock = 2 * kBlock;
/// Most bytes of a piece: enough for the speed of any link.
static constexpr int64_t kPieceBytes = int64_t(4) << 20;

/// Blocks of the parameters whose gradients are in a range.
int64_t RankMemory::blocksIn(ArenaAttr gradients) {
  int64_t blocks = 0;
  for (nn::ParamOp param : module.getOps<nn::ParamOp>()) {
    auto it = ownOffsets.find(param.getSymNameAttr());
    if (it == ownOffsets.end() || it->second < gradients.getOffset() ||
        it->second >= gradients.getOffset() + gradients.getBytes())
      continue;
    blocks += llvm::divideCeil(
        cast<RankedTensorType>(param.getValueType()).getNumElements(), kBlock);
  }
  return blocks;
}

void RankMemory::placeResiduals(RankOp rank, int64_t replicas) {
  auto ops = rank.getOps<PlaceResidualsOp>();
  if (ops.empty() || !ownedBytes)
    return;
  // Shards of each all_reduce are rounded up to blocks.
  int64_t reductions = llvm::range_size(rank.getOps<AllReduceOp>());
  int64_t ownerBytes =
      (llvm::divideCeil(blocksIn(ownedGradients()), replicas) + reductions) *
      kBlock * 4;
  auto pair = [&](int64_t bytes) {
    Attribute first = arena(optimizer.take(bytes), bytes);
    Attribute second = arena(optimizer.take(bytes), bytes);
    return ArrayAttr::get(context, {first, second});
  };
  PlaceResidualsOp op = *ops.begin();
  op.setGradientsAttr(ownedGradients());
  op.setWorkerAttr(pair(ownedBytes));
  op.setOwnerAttr(pair(ownerBytes));
  cells.begin = optimizer.end();
}

int64_t RankMemory::compressedExchangeBytes(ArenaAttr gradients,
                                            int64_t replicas) {
  int64_t shard =
      llvm::divideCeil(blocksIn(gradients), replicas) * kEncodedBlock;
  return 2 * replicas * std::min(shard, kPieceBytes);
}
