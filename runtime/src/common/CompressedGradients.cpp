//===- CompressedGradients.cpp - Sums over replicas, compressed -----------===//

#include "runtime/src/common/CompressedGradients.h"
#include <algorithm>

using namespace mgq::rt;

// No block takes more bytes than one of bf16.
static constexpr int64_t largestBlock = 2 * compressionBlock;

[[noreturn]] static void failResiduals(const char *what) {
  fail("the program's tables are damaged: compressed gradients: {}", what);
}

/// Calls visit(op) for each all_reduce of a stage that is compressed.
template <typename Visit>
static void forCompressed(const mgq_rank &tables, Visit visit) {
  for (int32_t i = 0; i < tables.op_count; ++i)
    if (tables.ops[i].kind == MGQ_OP_ALL_REDUCE && tables.ops[i].bytes > 0 &&
        tables.ops[i].compression != MGQ_COMPRESSION_NONE)
      visit(tables.ops[i]);
}

CompressedGradients::CompressedGradients(const RankView &view, Arena &arena,
                                         Group &group)
    : view(view), group(group) {
  if (view.program.replicas == 1)
    return;
  for (int32_t stage = 0; stage < view.program.stages; ++stage)
    forCompressed(view.program.ranks[stage],
                  [&](const mgq_op &) { usedSomewhere = true; });
  int64_t ownerValues = 0;
  forCompressed(view.tables, [&](const mgq_op &op) { add(op, ownerValues); });
  if (!isUsed())
    return;
  const mgq_residuals &residuals = view.tables.residuals;
  auto floatsAt = [&](int64_t offset, int64_t bytes) {
    if (offset < 0 || offset % 64 || offset + bytes > arena.size())
      failResiduals("residuals");
    return arena.floatsAt(offset);
  };
  if (residuals.owner_bytes < ownerValues * 4)
    failResiduals("an owner's residuals");
  owned = floatsAt(residuals.gradients, residuals.bytes);
  for (int i = 0; i < 2; ++i) {
    worker[i] = floatsAt(residuals.worker[i], residuals.bytes);
    owner[i] = floatsAt(residuals.owner[i], residuals.owner_bytes);
  }
}

/// Collects the parameters that an all_reduce sums, by their place.
void CompressedGradients::add(const mgq_op &op, int64_t &ownerValues) {
  const mgq_residuals &residuals = view.tables.residuals;
  int64_t begin = op.place.offset, end = begin + op.bytes;
  if (op.compression < 0 || op.compression > MGQ_COMPRESSION_SPARSE24_INT8 ||
      op.place.space != MGQ_SPACE_ARENA || begin < residuals.gradients ||
      end > residuals.gradients + residuals.bytes)
    failResiduals("an all_reduce");
  std::vector<CompressedBlocks::Param> params;
  for (int32_t i = 0; i < view.tables.place_count; ++i) {
    const mgq_place &place = view.tables.places[i];
    int64_t count = paramElements(view.program.params[place.param]);
    if (place.grad_offset < begin || place.grad_offset >= end)
      continue;
    if (place.grad_offset + count * 4 > end)
      failResiduals(view.program.params[place.param].name);
    params.push_back({(place.grad_offset - residuals.gradients) / 4, count});
  }
  std::sort(params.begin(), params.end(),
            [](auto &a, auto &b) { return a.offset < b.offset; });
  CompressedBlocks blocks(static_cast<mgq_compression>(op.compression), params);
  int32_t replicas = view.program.replicas;
  int64_t shard = (blocks.count() + replicas - 1) / replicas;
  reductions.push_back({&op, std::move(blocks), shard, ownerValues});
  ownerValues += shard * compressionBlock;
}

CompressedGradients::Range
CompressedGradients::shardOf(const Reduction &reduction,
                             int32_t replica) const {
  int64_t count = reduction.blocks.count(), size = reduction.shardBlocks;
  return {std::min(count, size * replica),
          std::min(count, size * (replica + 1))};
}

void CompressedGradients::startStep(bool compresses, float factor) {
  active = compresses && isUsed();
  scale = factor;
}

void CompressedGradients::commit() {
  if (active)
    current = 1 - current;
}

//===----------------------------------------------------------------------===//
// The collective
//===----------------------------------------------------------------------===//

namespace {
/// In a round a replica encodes a piece of every shard (its own too), gets the
/// others' pieces of its own shard, adds them in the order of replicas, and
/// sends the encoded sum back. Everyone, the owner too, decodes that: so
/// replicas hold equal bits.
class CompressedAllReduce : public Collective {
public:
  using Reduction = CompressedGradients::Reduction;
  using Range = CompressedGradients::Range;

  CompressedAllReduce(const RankView &view, const CompressedGradients &state,
                      const Reduction &reduction, const Bucket &bucket,
                      Group &group, HiddenTime *times);

  void begin() override;
  bool advance() override;
  const std::vector<int64_t> &requests() const override {
    return isDense ? dense->requests() : messages.requests();
  }
  int64_t sentBytes() const override {
    return messages.sentBytes() + dense->sentBytes();
  }

private:
  Range pieceOf(int32_t replica) const;
  int64_t bytesOf(Range piece) const {
    return blocks.bytes(piece.begin, piece.end);
  }
  void scatter();
  void gather();
  void finish();

  const RankView &view;
  const CompressedGradients &state;
  const Reduction &reduction;
  const CompressedBlocks &blocks;
  int32_t firstTag;
  MessageSet messages;
  std::unique_ptr<Collective> dense; ///< For warm-up.
  bool isDense = false;
  /// Room for a piece of each replica.
  std::vector<std::byte *> sending, receiving;
  std::vector<const std::byte *> pieces; ///< Of the own shard, by replica.
  int64_t pieceBlocks = 0, round = 0;
  bool gathers = false; ///< Sums come back; else pieces go to their owners.
};
} // namespace

CompressedAllReduce::CompressedAllReduce(const RankView &view,
                                         const CompressedGradients &state,
                                         const Reduction &reduction,
                                         const Bucket &bucket, Group &group,
                                         HiddenTime *times)
    : view(view), state(state), reduction(reduction), blocks(reduction.blocks),
      firstTag(bucket.firstTag),
      messages(group, 2 * view.program.replicas, times),
      dense(makeDenseAllReduce(view, bucket, group, times)) {
  int64_t replicas = view.program.replicas;
  pieceBlocks = bucket.op->room_bytes / (2 * replicas) / largestBlock;
  if (pieceBlocks <= 0 || !bucket.room)
    failResiduals("room for exchanges");
  for (int64_t r = 0; r < replicas; ++r) {
    sending.push_back(bucket.room + r * pieceBlocks * largestBlock);
    receiving.push_back(sending[0] +
                        (replicas + r) * pieceBlocks * largestBlock);
  }
  pieces.resize(replicas);
}

/// What the running round sends of a replica's shard.
CompressedAllReduce::Range CompressedAllReduce::pieceOf(int32_t replica) const {
  Range shard = state.shardOf(reduction, replica);
  int64_t begin = std::min(shard.end, shard.begin + round * pieceBlocks);
  return {begin, std::min(shard.end, begin + pieceBlocks)};
}

void CompressedAllReduce::begin() {
  isDense = !state.compresses();
  if (isDense)
    return dense->begin();
  round = 0;
  gathers = false;
  scatter();
}

/// Encodes a piece of each shard, and begins to exchange them.
void CompressedAllReduce::scatter() {
  int32_t me = view.replica;
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Range piece = pieceOf(r);
    blocks.encode(piece.begin, piece.end, state.gradients(), state.factor(),
                  state.workerRead(), state.workerWrite(), sending[r]);
    pieces[r] = r == me ? sending[r] : receiving[r];
    if (r == me)
      continue;
    int32_t peer = view.rankOfReplica(r);
    messages.receive(receiving[r], bytesOf(pieceOf(me)), peer, firstTag);
    messages.send(sending[r], bytesOf(piece), peer, firstTag);
  }
}

/// Adds up the own piece, and begins to exchange the sums.
void CompressedAllReduce::gather() {
  int32_t me = view.replica;
  Range own = pieceOf(me);
  int64_t at =
      reduction.owner +
      (own.begin - state.shardOf(reduction, me).begin) * compressionBlock;
  // The own piece is read while the sum is encoded: the sum goes where nobody
  // sends anything.
  std::byte *sum = receiving[me];
  blocks.combine(own.begin, own.end, pieces.data(), view.program.replicas,
                 state.ownerRead() + at, state.ownerWrite() + at, sum,
                 state.gradients());
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    int32_t peer = view.rankOfReplica(r);
    messages.receive(sending[r], bytesOf(pieceOf(r)), peer, firstTag + 1);
    messages.send(sum, bytesOf(own), peer, firstTag + 1);
  }
}

/// Decodes the others' sums.
void CompressedAllReduce::finish() {
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Range piece = pieceOf(r);
    if (r != view.replica)
      blocks.decode(piece.begin, piece.end, sending[r], state.gradients());
  }
}

bool CompressedAllReduce::advance() {
  if (isDense)
    return dense->advance();
  while (messages.done()) {
    if (!gathers) {
      gather();
    } else {
      finish();
      if (++round * pieceBlocks >= reduction.shardBlocks)
        return true;
      scatter();
    }
    gathers = !gathers;
  }
  return false;
}

std::unique_ptr<Collective>
CompressedGradients::makeAllReduce(const Bucket &bucket, HiddenTime *times) {
  auto its = std::find_if(
      reductions.begin(), reductions.end(),
      [&](const Reduction &reduction) { return reduction.op == bucket.op; });
  if (its == reductions.end())
    return nullptr;
  return std::make_unique<CompressedAllReduce>(view, *this, *its, bucket, group,
                                               times);
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

int64_t CompressedGradients::stagingOffset() const {
  return isUsed() ? view.tables.residuals.worker[1 - current] : -1;
}

/// Copies the shards of a replica, laid out as an owner's residuals.
void CompressedGradients::putShards(int32_t replica, const float *from,
                                    float *values) const {
  for (const Reduction &reduction : reductions) {
    Range shard = shardOf(reduction, replica);
    reduction.blocks.scatter(shard.begin, shard.end, from + reduction.owner,
                             values);
  }
}

void CompressedGradients::collectOwners() {
  if (!isUsed())
    return;
  int64_t bytes = view.tables.residuals.owner_bytes;
  if (view.replica > 0)
    return group.sendNow(owner[current], bytes, view.rankOfReplica(0),
                         TagTensor);
  putShards(0, owner[current], staging());
  for (int32_t r = 1; r < view.program.replicas; ++r) {
    group.receiveNow(owner[1 - current], bytes, view.rankOfReplica(r),
                     TagTensor);
    putShards(r, owner[1 - current], staging());
  }
}

void CompressedGradients::collectWorker(int32_t replica) {
  int64_t bytes = view.tables.residuals.bytes;
  if (!isUsed())
    return;
  if (view.replica == 0 && replica == 0)
    std::copy_n(worker[current], bytes / 4, staging());
  else if (view.replica == 0)
    group.receiveNow(staging(), bytes, view.rankOfReplica(replica), TagTensor);
  else if (view.replica == replica)
    group.sendNow(worker[current], bytes, view.rankOfReplica(0), TagTensor);
}

void CompressedGradients::adoptOwners() {
  for (const Reduction &reduction : reductions) {
    Range shard = shardOf(reduction, view.replica);
    reduction.blocks.gather(shard.begin, shard.end, staging(),
                            owner[current] + reduction.owner);
  }
}

void CompressedGradients::adoptWorker(int32_t saved, int32_t savedCount) {
  if (!isUsed())
    return;
  int64_t count = view.tables.residuals.bytes / 4;
  float *sum = worker[current], *values = staging();
  if (savedCount == view.program.replicas) {
    if (saved == view.replica)
      std::copy_n(values, count, sum);
    return;
  }
  float share = 1 / static_cast<float>(view.program.replicas);
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = saved == 0 ? values[i] : sum[i] + values[i];
    if (saved == savedCount - 1)
      sum[i] *= share;
  }
}
