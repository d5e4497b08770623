//===- CompressedSum.cpp - Compressed sums over replicas on GPUs ----------===//
//
// As on the host (CompressedRounds): kernels encode, add and decode, NCCL moves
// bytes. All is enqueued on the stream of the replicas' link.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Error.h"
#include "runtime/src/cuda/AllReduce.h"
#include "runtime/src/cuda/CudaDevice.h"
#include "runtime/src/cuda/Network.h"

using namespace mgq::rt;

// Blocks of the table that are handed to the GPU at once.
static constexpr int64_t tableBlocks = int64_t{1} << 15;

const mgq_cuda_compression &mgq::rt::compressionCode() {
  if (!mgq_cuda_module_table.compression)
    fail("the program's tables are damaged: it has no code for compressed "
         "gradients");
  return *mgq_cuda_module_table.compression;
}

namespace {
class CompressedSum : public DeviceSum {
public:
  CompressedSum(DeviceSums &all, CudaDevice &device, const RankView &view,
                const CompressedGradients &state,
                const CompressedGradients::Reduction &reduction,
                const Bucket &bucket);

  void exchange(Link &link) override;
  int64_t sentBytes() const override { return sent + dense->sentBytes(); }

private:
  /// What kernels are told of the blocks of a replica's piece.
  struct Piece {
    const mgq_cuda_block *table;
    int64_t count, first;
  };
  Piece pieceOf(int32_t replica) const;
  void writeTable();
  void encode();
  void scatter(Communicator &communicator, CUstream stream);
  void combine();
  void gather(Communicator &communicator, CUstream stream);
  void decode();

  const RankView &view;
  const CompressedGradients &state;
  const CompressedBlocks &blocks;
  CompressedRounds rounds;
  const mgq_cuda_compression &code;
  DeviceMemory table;               ///< A mgq_cuda_block for each block.
  std::unique_ptr<DeviceSum> dense; ///< For warm-up.
};
} // namespace

CompressedSum::CompressedSum(DeviceSums &all, CudaDevice &device,
                             const RankView &view,
                             const CompressedGradients &state,
                             const CompressedGradients::Reduction &reduction,
                             const Bucket &bucket)
    : DeviceSum(all, device), view(view), state(state),
      blocks(reduction.blocks), rounds(view, state, reduction, bucket),
      code(compressionCode()),
      table(blocks.count() * static_cast<int64_t>(sizeof(mgq_cuda_block))),
      dense(makeDenseSum(all, device, view, bucket)) {
  writeTable();
}

void CompressedSum::writeTable() {
  for (int64_t begin = 0; begin < blocks.count(); begin += tableBlocks) {
    int64_t count = std::min(tableBlocks, blocks.count() - begin);
    auto bytes = count * static_cast<int64_t>(sizeof(mgq_cuda_block));
    auto *entries = reinterpret_cast<mgq_cuda_block *>(
        device.beginWrite(table.as<mgq_cuda_block>() + begin, bytes));
    for (int64_t i = 0; i < count; ++i) {
      CompressedBlocks::Block block = blocks.block(begin + i);
      entries[i] = {block.offset, block.byte, static_cast<int32_t>(block.count),
                    static_cast<int32_t>(groupsOf(block.format, block.count))};
    }
    device.endWrite();
  }
}

CompressedSum::Piece CompressedSum::pieceOf(int32_t replica) const {
  CompressedRounds::Range piece = rounds.pieceOf(replica);
  return {table.as<mgq_cuda_block>() + piece.begin, piece.end - piece.begin,
          blocks.bytes(0, piece.begin)};
}

/// A piece of each shard.
void CompressedSum::encode() {
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Piece piece = pieceOf(r);
    code.encode(piece.table, piece.count, piece.first, state.gradients(),
                state.factor(), state.workerRead(), state.workerWrite(),
                r == view.replica ? rounds.receiving(r) : rounds.sending(r));
  }
}

void CompressedSum::scatter(Communicator &communicator, CUstream stream) {
  int32_t me = view.replica;
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    if (int64_t size = rounds.bytesOf(me))
      communicator.receive(rounds.receiving(r), size, ncclUint8, r, stream);
    if (int64_t size = rounds.bytesOf(r))
      communicator.send(rounds.sending(r), size, ncclUint8, r, stream);
    sent += rounds.bytesOf(r);
  }
}

/// The sum of the own piece.
void CompressedSum::combine() {
  Piece own = pieceOf(view.replica);
  int64_t at = rounds.ownerValue();
  code.combine(own.table, own.count, own.first, rounds.receiving(0),
               rounds.stride(), view.program.replicas, state.ownerRead() + at,
               state.ownerWrite() + at, rounds.sending(view.replica),
               state.gradients());
}

void CompressedSum::gather(Communicator &communicator, CUstream stream) {
  int32_t me = view.replica;
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    if (int64_t size = rounds.bytesOf(r))
      communicator.receive(rounds.sending(r), size, ncclUint8, r, stream);
    if (int64_t size = rounds.bytesOf(me))
      communicator.send(rounds.sending(me), size, ncclUint8, r, stream);
    sent += rounds.bytesOf(me);
  }
}

/// The others' sums.
void CompressedSum::decode() {
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    Piece piece = pieceOf(r);
    if (r != view.replica)
      code.decode(piece.table, piece.count, piece.first, rounds.sending(r),
                  state.gradients());
  }
}

void CompressedSum::exchange(Link &link) {
  if (!state.compresses())
    return dense->exchange(link);
  Communicator &communicator = link.communicator;
  auto onLink = [&](auto action) {
    CUstream before = device.enqueueOn(link.stream);
    action();
    device.enqueueOn(before);
    device.leaveCall("a compressed sum over replicas");
  };
  rounds.start();
  do {
    onLink([&] { encode(); });
    communicator.beginGroup();
    scatter(communicator, link.stream);
    communicator.endGroup();
    onLink([&] { combine(); });
    communicator.beginGroup();
    gather(communicator, link.stream);
    communicator.endGroup();
    onLink([&] { decode(); });
  } while (rounds.next());
}

std::unique_ptr<DeviceSum> mgq::rt::makeCompressedSum(
    DeviceSums &all, CudaDevice &device, const RankView &view,
    const CompressedGradients &state,
    const CompressedGradients::Reduction &reduction, const Bucket &bucket) {
  return std::make_unique<CompressedSum>(all, device, view, state, reduction,
                                         bucket);
}
