//===- CompressedReducer.cpp - Sums over replicas, compressed -------------===//

#include "runtime/src/common/CompressedReducer.h"
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

CompressedReducer::CompressedReducer(const RankView &view, Arena &arena,
                                     Group &group)
    : view(view), arena(arena), group(group) {
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
  gradients = floatsAt(residuals.gradients, residuals.bytes);
  for (int i = 0; i < 2; ++i) {
    worker[i] = floatsAt(residuals.worker[i], residuals.bytes);
    owner[i] = floatsAt(residuals.owner[i], residuals.owner_bytes);
  }
  placeBuffers();
}

/// Collects the parameters that an all_reduce sums, by their place.
void CompressedReducer::add(const mgq_op &op, int64_t &ownerValues) {
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

/// The exchange room holds a piece for each replica, twice.
void CompressedReducer::placeBuffers() {
  int64_t replicas = view.program.replicas;
  std::byte *room = arena.at(view.tables.exchange_offset);
  pieceBlocks = view.tables.exchange_bytes / (2 * replicas) / largestBlock;
  if (view.tables.exchange_offset < 0 || pieceBlocks == 0 ||
      view.tables.exchange_offset + view.tables.exchange_bytes > arena.size())
    failResiduals("room for exchanges");
  for (int64_t r = 0; r < replicas; ++r) {
    sending.push_back(room + r * pieceBlocks * largestBlock);
    receiving.push_back(sending[0] +
                        (replicas + r) * pieceBlocks * largestBlock);
  }
  pieces.resize(replicas);
  requests.reserve(2 * replicas);
}

CompressedReducer::Range CompressedReducer::shardOf(const Reduction &reduction,
                                                    int32_t replica) const {
  int64_t count = reduction.blocks.count(), size = reduction.shardBlocks;
  return {std::min(count, size * replica),
          std::min(count, size * (replica + 1))};
}

CompressedReducer::Range CompressedReducer::pieceOf(const Reduction &reduction,
                                                    int32_t replica,
                                                    int64_t round) const {
  Range shard = shardOf(reduction, replica);
  int64_t begin = std::min(shard.end, shard.begin + round * pieceBlocks);
  return {begin, std::min(shard.end, begin + pieceBlocks)};
}

void CompressedReducer::waitAll() {
  for (int64_t request : requests)
    group.wait(request);
  requests.clear();
}

/// Encodes a piece of each shard, and begins to exchange them.
int64_t CompressedReducer::scatter(const Reduction &reduction, int64_t round,
                                   float factor) {
  int64_t sent = 0;
  const CompressedBlocks &blocks = reduction.blocks;
  Range own = pieceOf(reduction, view.replica, round);
  int64_t ownBytes = blocks.bytes(own.begin, own.end);
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Range piece = pieceOf(reduction, r, round);
    int64_t bytes = blocks.bytes(piece.begin, piece.end);
    blocks.encode(piece.begin, piece.end, gradients, factor, worker[current],
                  worker[1 - current], sending[r]);
    pieces[r] = r == view.replica ? sending[r] : receiving[r];
    if (r == view.replica)
      continue;
    int32_t peer = view.rankOfReplica(r);
    if (ownBytes)
      requests.push_back(
          group.receive(receiving[r], ownBytes, peer, TagReduce));
    if (bytes)
      requests.push_back(group.send(sending[r], bytes, peer, TagReduce));
    sent += bytes;
  }
  return sent;
}

/// Adds up the own piece, and begins to exchange the sums.
int64_t CompressedReducer::gather(const Reduction &reduction, int64_t round) {
  int64_t sent = 0;
  const CompressedBlocks &blocks = reduction.blocks;
  Range own = pieceOf(reduction, view.replica, round);
  int64_t ownBytes = blocks.bytes(own.begin, own.end);
  int64_t at =
      reduction.owner +
      (own.begin - shardOf(reduction, view.replica).begin) * compressionBlock;
  // The own encoded piece is read for the last time as the sum is encoded: the
  // sum has a place of its own, that of what nobody sends here.
  std::byte *sum = receiving[view.replica];
  blocks.combine(own.begin, own.end, pieces.data(), view.program.replicas,
                 owner[current] + at, owner[1 - current] + at, sum, gradients);
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == view.replica)
      continue;
    int32_t peer = view.rankOfReplica(r);
    Range piece = pieceOf(reduction, r, round);
    int64_t bytes = blocks.bytes(piece.begin, piece.end);
    if (bytes)
      requests.push_back(group.receive(sending[r], bytes, peer, TagReduced));
    if (ownBytes)
      requests.push_back(group.send(sum, ownBytes, peer, TagReduced));
    sent += ownBytes;
  }
  return sent;
}

/// Decodes the others' sums.
void CompressedReducer::finish(const Reduction &reduction, int64_t round) {
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Range piece = pieceOf(reduction, r, round);
    if (r != view.replica)
      reduction.blocks.decode(piece.begin, piece.end, sending[r], gradients);
  }
}

int64_t CompressedReducer::allReduce(const mgq_op &op, float factor) {
  auto its = std::find_if(
      reductions.begin(), reductions.end(),
      [&](const Reduction &reduction) { return reduction.op == &op; });
  int64_t sent = 0;
  for (int64_t round = 0; round * pieceBlocks < its->shardBlocks; ++round) {
    sent += scatter(*its, round, factor);
    waitAll();
    sent += gather(*its, round);
    waitAll();
    finish(*its, round);
  }
  changed = true;
  return sent;
}

void CompressedReducer::commit() {
  if (changed)
    current = 1 - current;
  changed = false;
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

int64_t CompressedReducer::stagingOffset() const {
  return isUsed() ? view.tables.residuals.worker[1 - current] : -1;
}

/// Copies the shards of a replica, laid out as an owner's residuals.
void CompressedReducer::putShards(int32_t replica, const float *from,
                                  float *values) const {
  for (const Reduction &reduction : reductions) {
    Range shard = shardOf(reduction, replica);
    reduction.blocks.scatter(shard.begin, shard.end, from + reduction.owner,
                             values);
  }
}

void CompressedReducer::collectOwners() {
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

void CompressedReducer::collectWorker(int32_t replica) {
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

void CompressedReducer::adoptOwners() {
  for (const Reduction &reduction : reductions) {
    Range shard = shardOf(reduction, view.replica);
    reduction.blocks.gather(shard.begin, shard.end, staging(),
                            owner[current] + reduction.owner);
  }
}

void CompressedReducer::adoptWorker(int32_t saved, int32_t savedCount) {
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
