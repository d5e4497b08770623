//===- Compression.h - Gradients in fewer bytes -----------------*- C++ -*-===//
//
// A *block* is up to 256 consecutive values of one parameter; blocks never
// cross parameters. Encoded, one after the other, little-endian:
//
//   bf16            each value as bf16, rounded to nearest even
//   sparse24        of each 4 values the two of largest magnitude, as bf16;
//                   then 4 bits a group, two groups a byte, the first in the
//                   low half: both positions, the lower one in the low bits
//   sparse24-int8   one f32 scale, the same two values as round(v / scale) in
//                   8 bits, then the positions
//
// Equal magnitudes: the lower index. What is left of a block that is no whole
// group, and every block of a parameter of fewer than 256 values, is bf16.
// The scale is the largest magnitude / 127. Values that are not finite make
// the decoded block not finite.
//
// Magnitude pruning with two residuals (error feedback on both sides of a
// reduction) follows Tang et al., "DoubleSqueeze", arXiv 1905.05957.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_COMPRESSION_H
#define MGQ_RUNTIME_COMMON_COMPRESSION_H

#include "runtime/include/rt.h"
#include "runtime/src/common/Device.h"
#include <cstddef>
#include <vector>

namespace mgq::rt {

/// Values of a whole block.
constexpr int64_t compressionBlock = 256;

/// Groups of four of a block of `count` values.
inline int64_t groupsOf(mgq_compression format, int64_t count) {
  return format == MGQ_COMPRESSION_BF16 ? 0 : count / 4;
}

/// Bytes of an encoded block of `count` values.
int64_t encodedBytes(mgq_compression format, int64_t count);

/// Encodes a block of `count` values, 1 to 256.
void encodeBlock(mgq_compression format, const float *values, int64_t count,
                 std::byte *to);
/// Decodes it; values that were not sent become 0.
void decodeBlock(mgq_compression format, const std::byte *from, int64_t count,
                 float *values);

/// The blocks of some parameters, in their order. All functions below are about
/// blocks [begin, end). Values and a worker's residuals lie where the
/// parameters do; an owner's residuals, of blocks from `begin` on, lie 256
/// values a block.
class CompressedBlocks {
public:
  /// A parameter: its first value among all values, and their number.
  struct Param {
    int64_t offset, count;
  };
  CompressedBlocks(mgq_compression format, const std::vector<Param> &params);

  /// A block: its values, and its first byte among all encoded ones.
  struct Block {
    mgq_compression format;
    int64_t offset, count, byte;
  };
  Block block(int64_t number) const {
    return blockOf(runs[runOf(number)], number);
  }

  int64_t count() const { return runs.empty() ? 0 : runs.back().endBlock; }
  /// Bytes of encoded blocks [begin, end).
  int64_t bytes(int64_t begin, int64_t end) const {
    return bytesBefore(end) - bytesBefore(begin);
  }

  /// A worker's part: x = values * factor + residual is encoded; what is lost
  /// of it becomes its new residual. Null residuals: none.
  void encode(int64_t begin, int64_t end, const float *values, float factor,
              const float *residual, float *newResidual, std::byte *to) const;

  /// An owner's part: adds the workers' `pieces`, in their order, then its
  /// residual; encodes the sum, keeps what is lost, and decodes the rest into
  /// `values`.
  void combine(int64_t begin, int64_t end, const std::byte *const *pieces,
               int64_t pieceCount, const float *residual, float *newResidual,
               std::byte *to, float *values) const;

  /// What all others apply.
  void decode(int64_t begin, int64_t end, const std::byte *from,
              float *values) const;

  /// Copies the values of blocks, on a device, between where parameters lie and
  /// the dense order of an owner's residuals.
  void gather(Device &device, int64_t begin, int64_t end, const float *values,
              float *dense) const;
  void scatter(Device &device, int64_t begin, int64_t end, const float *dense,
               float *values) const;

private:
  /// The blocks of a parameter.
  struct Run {
    mgq_compression format;
    int64_t offset, count, firstBlock, endBlock, firstByte, blockBytes;
  };

  size_t runOf(int64_t block) const;
  Block blockOf(const Run &run, int64_t block) const;
  int64_t bytesBefore(int64_t block) const;
  template <typename Visit>
  void forBlocks(int64_t begin, int64_t end, Visit visit) const;
  template <typename Visit>
  void forSpans(int64_t begin, int64_t end, Visit visit) const;

  std::vector<Run> runs;
  int64_t allBytes = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_COMPRESSION_H
