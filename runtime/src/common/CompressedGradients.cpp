//===- CompressedGradients.cpp - Sums over replicas, compressed -----------===//

#include "runtime/src/common/CompressedGradients.h"
#include "runtime/src/common/Accelerator.h"
#include <algorithm>

using namespace mgq::rt;

// Of a message from an accelerator's memory.
static constexpr int64_t messageBytes = int64_t{4} << 20;

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
    : view(view), device(arena.device()), group(group) {
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

const CompressedGradients::Reduction *
CompressedGradients::find(const mgq_op &op) const {
  auto its = std::find_if(
      reductions.begin(), reductions.end(),
      [&](const Reduction &reduction) { return reduction.op == &op; });
  return its == reductions.end() ? nullptr : &*its;
}

//===----------------------------------------------------------------------===//
// The collective
//===----------------------------------------------------------------------===//

CompressedRounds::CompressedRounds(
    const RankView &view, const CompressedGradients &state,
    const CompressedGradients::Reduction &reduction, const Bucket &bucket)
    : view(view), state(state), reduction(reduction), room(bucket.room),
      replicas(view.program.replicas),
      pieceBlocks(bucket.op->room_bytes / (2 * replicas) / largestBlock) {
  if (pieceBlocks <= 0 || !room)
    failResiduals("room for exchanges");
}

CompressedRounds::Range CompressedRounds::pieceOf(int32_t replica) const {
  Range shard = state.shardOf(reduction, replica);
  int64_t begin = std::min(shard.end, shard.begin + round * pieceBlocks);
  return {begin, std::min(shard.end, begin + pieceBlocks)};
}

int64_t CompressedRounds::ownerValue() const {
  int64_t before = pieceOf(view.replica).begin -
                   state.shardOf(reduction, view.replica).begin;
  return reduction.owner + before * compressionBlock;
}

namespace {
/// On the host.
class CompressedAllReduce : public Collective {
public:
  using Range = CompressedRounds::Range;

  CompressedAllReduce(const RankView &view, const CompressedGradients &state,
                      const CompressedGradients::Reduction &reduction,
                      const Bucket &bucket, Group &group, HiddenTime *times);

  void begin() override;
  bool advance() override;
  const std::vector<int64_t> &requests() const override {
    return isDense ? dense->requests() : messages.requests();
  }
  int64_t sentBytes() const override {
    return messages.sentBytes() + dense->sentBytes();
  }

private:
  void scatter();
  void gather();
  void finish();

  const RankView &view;
  const CompressedGradients &state;
  const CompressedBlocks &blocks;
  CompressedRounds rounds;
  int32_t firstTag;
  MessageSet messages;
  std::unique_ptr<Collective> dense; ///< For warm-up.
  bool isDense = false;
  std::vector<const std::byte *> pieces; ///< Of the own shard, by replica.
  bool gathers = false; ///< Sums come back; else pieces go to their owners.
};
} // namespace

CompressedAllReduce::CompressedAllReduce(
    const RankView &view, const CompressedGradients &state,
    const CompressedGradients::Reduction &reduction, const Bucket &bucket,
    Group &group, HiddenTime *times)
    : view(view), state(state), blocks(reduction.blocks),
      rounds(view, state, reduction, bucket), firstTag(bucket.firstTag),
      messages(group, 2 * view.program.replicas, times),
      dense(makeDenseAllReduce(view, bucket, group, times)) {
  for (int32_t r = 0; r < view.program.replicas; ++r)
    pieces.push_back(rounds.receiving(r));
}

void CompressedAllReduce::begin() {
  isDense = !state.compresses();
  if (isDense)
    return dense->begin();
  rounds.start();
  gathers = false;
  scatter();
}

/// Encodes a piece of each shard, and begins to exchange them.
void CompressedAllReduce::scatter() {
  int32_t me = view.replica;
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Range piece = rounds.pieceOf(r);
    blocks.encode(piece.begin, piece.end, state.gradients(), state.factor(),
                  state.workerRead(), state.workerWrite(),
                  r == me ? rounds.receiving(me) : rounds.sending(r));
    if (r == me)
      continue;
    int32_t peer = view.rankOfReplica(r);
    messages.receive(rounds.receiving(r), rounds.bytesOf(me), peer, firstTag);
    messages.send(rounds.sending(r), rounds.bytesOf(r), peer, firstTag);
  }
}

/// Adds up the own piece, and begins to exchange the sums.
void CompressedAllReduce::gather() {
  int32_t me = view.replica;
  Range own = rounds.pieceOf(me);
  int64_t at = rounds.ownerValue();
  blocks.combine(own.begin, own.end, pieces.data(), view.program.replicas,
                 state.ownerRead() + at, state.ownerWrite() + at,
                 rounds.sending(me), state.gradients());
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    int32_t peer = view.rankOfReplica(r);
    messages.receive(rounds.sending(r), rounds.bytesOf(r), peer, firstTag + 1);
    messages.send(rounds.sending(me), rounds.bytesOf(me), peer, firstTag + 1);
  }
}

/// Decodes the others' sums.
void CompressedAllReduce::finish() {
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Range piece = rounds.pieceOf(r);
    if (r != view.replica)
      blocks.decode(piece.begin, piece.end, rounds.sending(r),
                    state.gradients());
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
      if (!rounds.next())
        return true;
      scatter();
    }
    gathers = !gathers;
  }
  return false;
}

std::unique_ptr<Collective>
CompressedGradients::makeAllReduce(const Bucket &bucket, HiddenTime *times) {
  const Reduction *its = find(*bucket.op);
  if (!its)
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
    reduction.blocks.scatter(device, shard.begin, shard.end,
                             from + reduction.owner, values);
  }
}

/// Bytes of a message. An accelerator's go through memory of the host.
int64_t CompressedGradients::pieceBytes(int64_t all) const {
  return device.accelerator() ? std::min(all, messageBytes) : all;
}

/// Sends values of the arena to replica 0.
void CompressedGradients::sendToFirst(const float *from, int64_t bytes) {
  auto *next = reinterpret_cast<const std::byte *>(from);
  std::vector<std::byte> copy;
  for (int64_t at = 0, size; at < bytes; at += size) {
    size = std::min(pieceBytes(bytes), bytes - at);
    const std::byte *piece = next + at;
    if (device.accelerator()) {
      copy.resize(size);
      device.readNow(copy.data(), piece, size);
      piece = copy.data();
    }
    group.sendNow(piece, size, view.rankOfReplica(0), TagTensor);
  }
}

/// Takes them from another one.
void CompressedGradients::receiveFrom(int32_t replica, float *to,
                                      int64_t bytes) {
  auto *next = reinterpret_cast<std::byte *>(to);
  for (int64_t at = 0, size; at < bytes; at += size) {
    size = std::min(pieceBytes(bytes), bytes - at);
    group.receiveNow(device.beginWrite(next + at, size), size,
                     view.rankOfReplica(replica), TagTensor);
    device.endWrite();
  }
}

void CompressedGradients::collectOwners() {
  if (!isUsed())
    return;
  int64_t bytes = view.tables.residuals.owner_bytes;
  if (view.replica > 0)
    return sendToFirst(owner[current], bytes);
  putShards(0, owner[current], staging());
  for (int32_t r = 1; r < view.program.replicas; ++r) {
    receiveFrom(r, owner[1 - current], bytes);
    putShards(r, owner[1 - current], staging());
  }
}

void CompressedGradients::collectWorker(int32_t replica) {
  int64_t bytes = view.tables.residuals.bytes;
  if (!isUsed())
    return;
  if (view.replica == 0 && replica == 0)
    device.copy(staging(), worker[current], bytes);
  else if (view.replica == 0)
    receiveFrom(replica, staging(), bytes);
  else if (view.replica == replica)
    sendToFirst(worker[current], bytes);
}

void CompressedGradients::adoptOwners() {
  for (const Reduction &reduction : reductions) {
    Range shard = shardOf(reduction, view.replica);
    reduction.blocks.gather(device, shard.begin, shard.end, staging(),
                            owner[current] + reduction.owner);
  }
}

void CompressedGradients::accumulate(float *sum, const float *values,
                                     int64_t count) const {
  if (device.accelerator())
    return view.program.accumulate(sum, values, count);
  for (int64_t i = 0; i < count; ++i)
    sum[i] += values[i];
}

void CompressedGradients::scaleBy(float *values, float factor,
                                  int64_t count) const {
  if (Accelerator *accelerator = device.accelerator())
    return accelerator->scale(values, factor, count);
  for (int64_t i = 0; i < count; ++i)
    values[i] *= factor;
}

void CompressedGradients::adoptWorker(int32_t saved, int32_t savedCount) {
  int64_t bytes = view.tables.residuals.bytes;
  float *sum = worker[current];
  if (!isUsed())
    return;
  if (savedCount == view.program.replicas) {
    if (saved == view.replica)
      device.copy(sum, staging(), bytes);
    return;
  }
  if (saved == 0)
    device.copy(sum, staging(), bytes);
  else
    accumulate(sum, staging(), bytes / 4);
  if (saved == savedCount - 1)
    scaleBy(sum, 1 / static_cast<float>(view.program.replicas), bytes / 4);
}
