//===- CompressedReducer.h - Sums over replicas, compressed --------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_COMMON_COMPRESSEDREDUCER_H
#define MGQ_RUNTIME_COMMON_COMPRESSEDREDUCER_H

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Compression.h"
#include "runtime/src/common/Group.h"
#include "runtime/src/common/Program.h"

namespace mgq::rt {

/// Adds gradients of the same stage in all replicas, in fewer bytes. Each
/// replica owns a shard of the blocks. In a round it encodes a piece of every
/// shard (its own too), gets the others' pieces of its own shard, adds them in
/// the order of replicas, and sends the encoded sum back. Everyone, the owner
/// too, decodes that: so replicas hold equal bits. Both sides keep what they
/// lost as a residual and add it in the next step. Allocates nothing after
/// construction.
class CompressedReducer {
public:
  /// Throws Error if the tables are damaged.
  CompressedReducer(const RankView &view, Arena &arena, Group &group);

  /// Whether any all_reduce of the rank is compressed.
  bool isUsed() const { return !reductions.empty(); }
  /// Whether any rank of the program has residuals.
  bool isSaved() const { return usedSomewhere; }

  /// Sums what `op`, an all_reduce of the rank's program, reduces. `factor`
  /// undoes the loss scale. Returns the bytes sent.
  int64_t allReduce(const mgq_op &op, float factor);

  /// After a step that was not skipped: residuals that reductions have left
  /// since the last call hold from now on. Otherwise the old ones do.
  void commit();

  /// For checkpoints, between steps: whole tensors are put together and taken
  /// apart in the array that the next step will write, laid out as the owned
  /// gradients. All ranks call these together.
  ///
  /// Where that array is in the arena.
  int64_t stagingOffset() const;
  /// Replica 0 gets the residuals of all owners, or of one worker.
  void collectOwners();
  void collectWorker(int32_t replica);
  /// Takes over residuals of owners, or of worker `saved` of `savedCount`,
  /// called once for each in turn. Another number of workers than replicas is
  /// added up and shared out in equal parts.
  void adoptOwners();
  void adoptWorker(int32_t saved, int32_t savedCount);

private:
  /// An all_reduce. Blocks have their values among the owned gradients.
  struct Reduction {
    const mgq_op *op;
    CompressedBlocks blocks;
    int64_t shardBlocks; ///< Of each replica; the last ones may have fewer.
    int64_t owner;       ///< Its first value among an owner's residuals.
  };
  struct Range {
    int64_t begin, end;
  };

  void add(const mgq_op &op, int64_t &ownerValues);
  void placeBuffers();
  Range shardOf(const Reduction &reduction, int32_t replica) const;
  Range pieceOf(const Reduction &reduction, int32_t replica,
                int64_t round) const;
  int64_t scatter(const Reduction &reduction, int64_t round, float factor);
  int64_t gather(const Reduction &reduction, int64_t round);
  void finish(const Reduction &reduction, int64_t round);
  void waitAll();
  float *staging() const { return worker[1 - current]; }
  void putShards(int32_t replica, const float *from, float *values) const;

  const RankView &view;
  Arena &arena;
  Group &group;
  std::vector<Reduction> reductions;
  /// Room for a piece of each replica.
  std::vector<std::byte *> sending, receiving;
  int64_t pieceBlocks = 0;
  float *gradients = nullptr; ///< Owned ones.
  float *worker[2] = {nullptr, nullptr}, *owner[2] = {nullptr, nullptr};
  int current = 0;
  bool changed = false, usedSomewhere = false;
  std::vector<int64_t> requests;
  std::vector<const std::byte *> pieces; ///< Of the own shard, by replica.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_COMPRESSEDREDUCER_H
