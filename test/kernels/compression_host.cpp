//===- compression_host.cpp - Compressed blocks on the host ---------------===//
//
// For tests: what kernels of compressed gradients must give, as C functions,
// and the table of blocks that they are told.
//
//===----------------------------------------------------------------------===//

#include "runtime/include/rt_cuda.h"
#include "runtime/src/common/Compression.h"

using namespace mgq::rt;

extern "C" {

/// Parameters at these offsets, of these counts.
void *host_blocks(int32_t format, const int64_t *offsets, const int64_t *counts,
                  int64_t params) {
  std::vector<CompressedBlocks::Param> list;
  for (int64_t i = 0; i < params; ++i)
    list.push_back({offsets[i], counts[i]});
  return new CompressedBlocks(static_cast<mgq_compression>(format), list);
}

void host_free(const CompressedBlocks *blocks) { delete blocks; }

int64_t host_count(const CompressedBlocks *blocks) { return blocks->count(); }

int64_t host_bytes(const CompressedBlocks *blocks, int64_t begin, int64_t end) {
  return blocks->bytes(begin, end);
}

void host_table(const CompressedBlocks *blocks, mgq_cuda_block *table) {
  for (int64_t i = 0; i < blocks->count(); ++i) {
    CompressedBlocks::Block block = blocks->block(i);
    table[i] = {block.offset, block.byte, static_cast<int32_t>(block.count),
                static_cast<int32_t>(groupsOf(block.format, block.count))};
  }
}

void host_encode(const CompressedBlocks *blocks, int64_t begin, int64_t end,
                 const float *values, float factor, const float *residual,
                 float *newResidual, std::byte *to) {
  blocks->encode(begin, end, values, factor, residual, newResidual, to);
}

void host_combine(const CompressedBlocks *blocks, int64_t begin, int64_t end,
                  const std::byte *pieces, int64_t stride, int64_t pieceCount,
                  const float *residual, float *newResidual, std::byte *to,
                  float *values) {
  std::vector<const std::byte *> list;
  for (int64_t i = 0; i < pieceCount; ++i)
    list.push_back(pieces + i * stride);
  blocks->combine(begin, end, list.data(), pieceCount, residual, newResidual,
                  to, values);
}

void host_decode(const CompressedBlocks *blocks, int64_t begin, int64_t end,
                 const std::byte *from, float *values) {
  blocks->decode(begin, end, from, values);
}
}
