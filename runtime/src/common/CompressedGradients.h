//===- CompressedGradients.h - Sums over replicas, compressed ---*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_COMPRESSEDGRADIENTS_H
#define MGQ_RUNTIME_COMMON_COMPRESSEDGRADIENTS_H

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Collective.h"
#include "runtime/src/common/Compression.h"

namespace mgq::rt {

/// What a rank keeps for compressed sums of gradients over replicas: the
/// residuals of both sides, and the blocks of each all_reduce. Each replica
/// owns a shard of the blocks.
class CompressedGradients {
public:
  /// An all_reduce. Blocks have their values among the owned gradients.
  struct Reduction {
    const mgq_op *op;
    CompressedBlocks blocks;
    int64_t shardBlocks; ///< Of each replica; the last ones may have fewer.
    int64_t owner;       ///< Its first value among an owner's residuals.
  };
  /// Of blocks.
  struct Range {
    int64_t begin, end;
  };

  /// Throws Error if the tables are damaged.
  CompressedGradients(const RankView &view, Arena &arena, Group &group);

  /// Whether any all_reduce of the rank is compressed.
  bool isUsed() const { return !reductions.empty(); }
  /// Whether any rank of the program has residuals.
  bool isSaved() const { return usedSomewhere; }

  /// Whether the step's sums are compressed, and the factor that undoes the
  /// loss scale then.
  void startStep(bool compresses, float factor);
  /// After a step that was not skipped: the residuals that its sums have left
  /// hold from now on. Otherwise the old ones do.
  void commit();

  /// Goes on with another program's residuals, which are at the same places.
  void follow(const CompressedGradients &other) { current = other.current; }

  /// The all_reduce of an op, or null: it is not compressed.
  const Reduction *find(const mgq_op &op) const;
  /// The collective of a bucket on the host, or null: it is not compressed. It
  /// sends f32 in steps that do not compress. Throws Error if there is too
  /// little room.
  std::unique_ptr<Collective> makeAllReduce(const Bucket &bucket,
                                            HiddenTime *times);

  // For collectives. Addresses are those of the arena.
  bool compresses() const { return active; }
  float factor() const { return scale; }
  float *gradients() const { return owned; }
  const float *workerRead() const { return worker[current]; }
  float *workerWrite() const { return worker[1 - current]; }
  const float *ownerRead() const { return owner[current]; }
  float *ownerWrite() const { return owner[1 - current]; }
  /// The blocks of a replica.
  Range shardOf(const Reduction &reduction, int32_t replica) const;

  /// For checkpoints, between steps: whole tensors are put together and taken
  /// apart in the array that the next step will write, laid out as the owned
  /// gradients. All ranks call these together.
  ///
  /// Where that array is in the arena; -1: nowhere.
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
  void add(const mgq_op &op, int64_t &ownerValues);
  float *staging() const { return workerWrite(); }
  void putShards(int32_t replica, const float *from, float *values) const;
  void sendToFirst(const float *from, int64_t bytes);
  void receiveFrom(int32_t replica, float *to, int64_t bytes);
  int64_t pieceBytes(int64_t all) const;
  void accumulate(float *sum, const float *values, int64_t count) const;
  void scaleBy(float *values, float factor, int64_t count) const;

  const RankView &view;
  Device &device;
  Group &group;
  std::vector<Reduction> reductions;
  float *owned = nullptr; ///< Gradients.
  float *worker[2] = {nullptr, nullptr}, *owner[2] = {nullptr, nullptr};
  int current = 0;
  bool usedSomewhere = false, active = false;
  float scale = 1;
};

/// How a compressed sum is cut: in a round each replica has a piece of every
/// shard, its own too, encoded, and gets the others' pieces of its own shard.
/// It adds them in the order of replicas and sends the encoded sum back, which
/// everyone, the owner too, decodes: so replicas hold equal bits.
///
/// There is room for two encoded pieces of each replica. In `sending` are the
/// pieces of others' shards, then the sums of all shards; in `receiving` the
/// pieces of the own shard.
class CompressedRounds {
public:
  using Range = CompressedGradients::Range;

  /// Throws Error if there is too little room.
  CompressedRounds(const RankView &view, const CompressedGradients &state,
                   const CompressedGradients::Reduction &reduction,
                   const Bucket &bucket);

  /// Goes to the first round, or to the next if there is one.
  void start() { round = 0; }
  bool next() { return ++round * pieceBlocks < reduction.shardBlocks; }

  /// What the round sends of a replica's shard, and the bytes of it.
  Range pieceOf(int32_t replica) const;
  int64_t bytesOf(int32_t replica) const {
    Range piece = pieceOf(replica);
    return reduction.blocks.bytes(piece.begin, piece.end);
  }
  /// The own piece's first value among an owner's residuals.
  int64_t ownerValue() const;

  std::byte *sending(int32_t replica) const {
    return room + replica * stride();
  }
  std::byte *receiving(int32_t replica) const {
    return sending(replicas + replica);
  }
  /// Bytes from one to the next.
  int64_t stride() const { return pieceBlocks * largestBlock; }

private:
  // No block takes more bytes than one of bf16.
  static constexpr int64_t largestBlock = 2 * compressionBlock;

  const RankView &view;
  const CompressedGradients &state;
  const CompressedGradients::Reduction &reduction;
  std::byte *room;
  int32_t replicas;
  int64_t pieceBlocks, round = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_COMPRESSEDGRADIENTS_H
