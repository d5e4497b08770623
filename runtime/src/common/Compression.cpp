//===- Compression.cpp - Gradients in fewer bytes -------------------------===//
//
// Loops are written so that compilers vectorise them: a block is taken apart
// into arrays of first, second, third and fourth values of its groups, choices
// are arithmetic, and bytes are packed from arrays at the end.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Compression.h"
#include "runtime/src/local/ThreadPool.h"
#include <algorithm>
#include <cmath>
#include <cstring>

using namespace mgq::rt;

static constexpr int64_t groups = compressionBlock / 4;
// Blocks that one thread takes: 256 KiB of values.
static constexpr int64_t pieceBlocks = 256;

static int64_t positionBytes(int64_t groupCount) {
  return (groupCount + 1) / 2;
}

int64_t mgq::rt::encodedBytes(mgq_compression format, int64_t count) {
  int64_t whole = count / 4, tail = count % 4 * 2;
  switch (format) {
  case MGQ_COMPRESSION_SPARSE24:
    return whole * 4 + positionBytes(whole) + tail;
  case MGQ_COMPRESSION_SPARSE24_INT8:
    return (whole ? 4 : 0) + whole * 2 + positionBytes(whole) + tail;
  default:
    return count * 2;
  }
}

//===----------------------------------------------------------------------===//
// bf16
//===----------------------------------------------------------------------===//

static uint32_t bitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float floatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// The upper half of f32, rounded to nearest even; a NaN stays one.
static uint32_t bf16Of(uint32_t bits) {
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  uint32_t nan = bits >> 16 | 0x40;
  return static_cast<int32_t>(bits & 0x7fffffff) > 0x7f800000 ? nan : rounded;
}

static void toBf16(const float *values, int64_t count, std::byte *to) {
  uint16_t narrow[compressionBlock];
  for (int64_t i = 0; i < count; ++i)
    narrow[i] = static_cast<uint16_t>(bf16Of(bitsOf(values[i])));
  memcpy(to, narrow, count * 2);
}

static void fromBf16(const std::byte *from, int64_t count, float *values) {
  uint16_t narrow[compressionBlock];
  memcpy(narrow, from, count * 2);
  for (int64_t i = 0; i < count; ++i)
    values[i] = floatOf(static_cast<uint32_t>(narrow[i]) << 16);
}

//===----------------------------------------------------------------------===//
// Two of four
//===----------------------------------------------------------------------===//

namespace {
/// What is kept of a block's groups, as arrays of firsts and seconds.
struct Kept {
  uint32_t first[groups], second[groups]; ///< Bits of the values.
  uint32_t positions[groups];
};
} // namespace

/// Bits of `a` where the mask has ones, else of `b`.
static uint32_t select(uint32_t mask, uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}

/// Chooses by the bits of magnitudes, which order all values: those that are
/// not finite are the largest. A value is kept if it wins against two others.
static void choose(const float *values, int64_t count, Kept &kept) {
  uint32_t v[4][groups];
  for (int64_t g = 0; g < count; ++g)
    for (int i = 0; i < 4; ++i)
      v[i][g] = bitsOf(values[4 * g + i]);
  for (int64_t g = 0; g < count; ++g) {
    constexpr uint32_t magnitude = 0x7fffffff;
    uint32_t v0 = v[0][g], v1 = v[1][g], v2 = v[2][g], v3 = v[3][g];
    auto m0 = static_cast<int32_t>(v0 & magnitude),
         m1 = static_cast<int32_t>(v1 & magnitude),
         m2 = static_cast<int32_t>(v2 & magnitude),
         m3 = static_cast<int32_t>(v3 & magnitude);
    // -1: the first of the pair loses.
    int32_t l01 = -(m0 < m1), l02 = -(m0 < m2), l03 = -(m0 < m3),
            l12 = -(m1 < m2), l13 = -(m1 < m3), l23 = -(m2 < m3);
    // Masks: kept are 0 with at most one defeat, ..., 3 with at least two wins.
    auto k0 = static_cast<uint32_t>(-(l01 + l02 + l03 > -2)),
         k1 = static_cast<uint32_t>(-(l12 + l13 - l01 > -1)),
         k2 = static_cast<uint32_t>(-(l23 - l02 - l12 > 0)),
         k3 = static_cast<uint32_t>(-(-l03 - l13 - l23 > 1));
    kept.first[g] = select(k0, v0, select(k1, v1, v2));
    kept.second[g] = select(k3, v3, select(k2, v2, v1));
    kept.positions[g] =
        select(k0, 0, select(k1, 1, 2)) | select(k3, 12, select(k2, 8, 4));
  }
}

static void packPositions(Kept &kept, int64_t count, std::byte *to) {
  uint8_t packed[groups / 2];
  if (count % 2)
    kept.positions[count] = 0;
  for (int64_t i = 0; i < positionBytes(count); ++i)
    packed[i] = static_cast<uint8_t>(kept.positions[2 * i] |
                                     kept.positions[2 * i + 1] << 4);
  memcpy(to, packed, positionBytes(count));
}

static void unpackPositions(const std::byte *from, int64_t count, Kept &kept) {
  uint8_t packed[groups / 2];
  memcpy(packed, from, positionBytes(count));
  for (int64_t i = 0; i < positionBytes(count); ++i) {
    kept.positions[2 * i] = packed[i] & 15;
    kept.positions[2 * i + 1] = packed[i] >> 4;
  }
}

static void spread(const Kept &kept, int64_t count, float *values) {
  for (int64_t g = 0; g < count; ++g)
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t position = kept.positions[g];
      uint32_t isFirst = -uint32_t((position & 3) == i),
               isSecond = -uint32_t((position >> 2) == i);
      values[4 * g + i] =
          floatOf((kept.first[g] & isFirst) | (kept.second[g] & isSecond));
    }
}

//===----------------------------------------------------------------------===//
// 8 bits
//===----------------------------------------------------------------------===//

/// Rounds to nearest even for |value| < 2^22.
static float roundEven(float value) {
  constexpr float magic = 12582912.0f; // 1.5 * 2^23
  return value + magic - magic;
}

/// The largest magnitude, of groups' firsts and seconds, / 127.
static float scaleOf(const Kept &kept, int64_t count) {
  int32_t largest = 0;
  for (int64_t g = 0; g < count; ++g)
    largest =
        std::max({largest, static_cast<int32_t>(kept.first[g] & 0x7fffffff),
                  static_cast<int32_t>(kept.second[g] & 0x7fffffff)});
  return floatOf(static_cast<uint32_t>(largest)) / 127;
}

static int32_t int8Of(uint32_t bits, float scale) {
  float value = roundEven(floatOf(bits) / scale);
  return static_cast<int32_t>(std::min(127.0f, std::max(-127.0f, value)));
}

/// The scale, then pairs.
static void toInt8(const Kept &kept, int64_t count, std::byte *to) {
  float scale = scaleOf(kept, count);
  memcpy(to, &scale, sizeof scale);
  uint16_t pairs[groups];
  // Such a scale alone makes all that it is a factor of not finite, or zero.
  if (!std::isfinite(scale) || scale == 0)
    std::fill_n(pairs, count, scale == 0 ? 0 : 0x0101);
  else
    for (int64_t g = 0; g < count; ++g)
      pairs[g] =
          static_cast<uint16_t>((int8Of(kept.first[g], scale) & 255) |
                                uint32_t(int8Of(kept.second[g], scale)) << 8);
  memcpy(to + sizeof scale, pairs, count * 2);
}

static void fromInt8(const std::byte *from, int64_t count, Kept &kept) {
  float scale;
  uint16_t pairs[groups];
  memcpy(&scale, from, sizeof scale);
  memcpy(pairs, from + sizeof scale, count * 2);
  for (int64_t g = 0; g < count; ++g) {
    auto low = static_cast<int8_t>(pairs[g] & 255),
         high = static_cast<int8_t>(pairs[g] >> 8);
    kept.first[g] = bitsOf(static_cast<float>(low) * scale);
    kept.second[g] = bitsOf(static_cast<float>(high) * scale);
  }
}

//===----------------------------------------------------------------------===//
// Pairs of bf16
//===----------------------------------------------------------------------===//

static void toBf16(const Kept &kept, int64_t count, std::byte *to) {
  uint32_t pairs[groups];
  for (int64_t g = 0; g < count; ++g)
    pairs[g] = bf16Of(kept.first[g]) | bf16Of(kept.second[g]) << 16;
  memcpy(to, pairs, count * 4);
}

static void fromBf16(const std::byte *from, int64_t count, Kept &kept) {
  uint32_t pairs[groups];
  memcpy(pairs, from, count * 4);
  for (int64_t g = 0; g < count; ++g) {
    kept.first[g] = pairs[g] << 16;
    kept.second[g] = pairs[g] & 0xffff0000;
  }
}

//===----------------------------------------------------------------------===//
// Blocks
//===----------------------------------------------------------------------===//

void mgq::rt::encodeBlock(mgq_compression format, const float *values,
                          int64_t count, std::byte *to) {
  int64_t whole = groupsOf(format, count);
  if (whole) {
    Kept kept;
    choose(values, whole, kept);
    if (format == MGQ_COMPRESSION_SPARSE24) {
      toBf16(kept, whole, to);
      to += 4 * whole;
    } else {
      toInt8(kept, whole, to);
      to += 4 + 2 * whole;
    }
    packPositions(kept, whole, to);
    to += positionBytes(whole);
  }
  toBf16(values + 4 * whole, count - 4 * whole, to);
}

void mgq::rt::decodeBlock(mgq_compression format, const std::byte *from,
                          int64_t count, float *values) {
  int64_t whole = groupsOf(format, count);
  if (whole) {
    Kept kept;
    if (format == MGQ_COMPRESSION_SPARSE24) {
      fromBf16(from, whole, kept);
      from += 4 * whole;
    } else {
      fromInt8(from, whole, kept);
      from += 4 + 2 * whole;
    }
    unpackPositions(from, whole, kept);
    from += positionBytes(whole);
    spread(kept, whole, values);
  }
  fromBf16(from, count - 4 * whole, values + 4 * whole);
}

//===----------------------------------------------------------------------===//
// Blocks of parameters
//===----------------------------------------------------------------------===//

CompressedBlocks::CompressedBlocks(mgq_compression format,
                                   const std::vector<Param> &params) {
  int64_t block = 0;
  for (const Param &param : params) {
    if (!param.count)
      continue;
    Run run;
    run.format = param.count < compressionBlock ? MGQ_COMPRESSION_BF16 : format;
    run.offset = param.offset;
    run.count = param.count;
    run.firstBlock = block;
    block += (param.count + compressionBlock - 1) / compressionBlock;
    run.endBlock = block;
    run.firstByte = allBytes;
    run.blockBytes = encodedBytes(run.format, compressionBlock);
    allBytes +=
        (block - run.firstBlock - 1) * run.blockBytes +
        encodedBytes(run.format, (param.count - 1) % compressionBlock + 1);
    runs.push_back(run);
  }
}

size_t CompressedBlocks::runOf(int64_t block) const {
  auto after = std::upper_bound(
      runs.begin(), runs.end(), block,
      [](int64_t number, const Run &run) { return number < run.endBlock; });
  return after - runs.begin();
}

CompressedBlocks::Block CompressedBlocks::blockOf(const Run &run,
                                                  int64_t block) const {
  int64_t first = (block - run.firstBlock) * compressionBlock;
  return {run.format, run.offset + first,
          std::min(compressionBlock, run.count - first),
          run.firstByte + (block - run.firstBlock) * run.blockBytes};
}

int64_t CompressedBlocks::bytesBefore(int64_t block) const {
  size_t run = runOf(block);
  return run < runs.size() ? blockOf(runs[run], block).byte : allBytes;
}

/// Calls visit(block, its number from `begin`, its first byte from there), on
/// several threads.
template <typename Visit>
void CompressedBlocks::forBlocks(int64_t begin, int64_t end,
                                 Visit visit) const {
  int64_t firstByte = bytesBefore(begin);
  parallelFor((end - begin + pieceBlocks - 1) / pieceBlocks, [&](int64_t i) {
    int64_t number = begin + i * pieceBlocks;
    int64_t stop = std::min(end, number + pieceBlocks);
    size_t run = runOf(number);
    for (; number < stop; ++number) {
      if (number == runs[run].endBlock)
        ++run;
      Block block = blockOf(runs[run], number);
      visit(block, number - begin, block.byte - firstByte);
    }
  });
}

/// newResidual = x - what is decoded of it.
static void keepLost(const float *x, const float *decoded, int64_t count,
                     float *newResidual) {
  if (newResidual)
    for (int64_t i = 0; i < count; ++i)
      newResidual[i] = x[i] - decoded[i];
}

void CompressedBlocks::encode(int64_t begin, int64_t end, const float *values,
                              float factor, const float *residual,
                              float *newResidual, std::byte *to) const {
  forBlocks(begin, end, [&](const Block &block, int64_t, int64_t byte) {
    float x[compressionBlock], decoded[compressionBlock];
    for (int64_t i = 0; i < block.count; ++i)
      x[i] = values[block.offset + i] * factor;
    if (residual)
      for (int64_t i = 0; i < block.count; ++i)
        x[i] += residual[block.offset + i];
    encodeBlock(block.format, x, block.count, to + byte);
    decodeBlock(block.format, to + byte, block.count, decoded);
    keepLost(x, decoded, block.count,
             newResidual ? newResidual + block.offset : nullptr);
  });
}

void CompressedBlocks::combine(int64_t begin, int64_t end,
                               const std::byte *const *pieces,
                               int64_t pieceCount, const float *residual,
                               float *newResidual, std::byte *to,
                               float *values) const {
  forBlocks(begin, end, [&](const Block &block, int64_t number, int64_t byte) {
    float sum[compressionBlock], part[compressionBlock];
    decodeBlock(block.format, pieces[0] + byte, block.count, sum);
    for (int64_t piece = 1; piece < pieceCount; ++piece) {
      decodeBlock(block.format, pieces[piece] + byte, block.count, part);
      for (int64_t i = 0; i < block.count; ++i)
        sum[i] += part[i];
    }
    int64_t at = number * compressionBlock;
    if (residual)
      for (int64_t i = 0; i < block.count; ++i)
        sum[i] += residual[at + i];
    encodeBlock(block.format, sum, block.count, to + byte);
    float *decoded = values + block.offset;
    decodeBlock(block.format, to + byte, block.count, decoded);
    keepLost(sum, decoded, block.count,
             newResidual ? newResidual + at : nullptr);
  });
}

void CompressedBlocks::decode(int64_t begin, int64_t end, const std::byte *from,
                              float *values) const {
  forBlocks(begin, end, [&](const Block &block, int64_t, int64_t byte) {
    decodeBlock(block.format, from + byte, block.count, values + block.offset);
  });
}

/// Calls visit(first value, their number, the first one's place in the dense
/// order) for the blocks of each parameter.
template <typename Visit>
void CompressedBlocks::forSpans(int64_t begin, int64_t end, Visit visit) const {
  for (int64_t number = begin; number < end;) {
    const Run &run = runs[runOf(number)];
    int64_t stop = std::min(end, run.endBlock);
    Block first = blockOf(run, number), last = blockOf(run, stop - 1);
    visit(first.offset, last.offset + last.count - first.offset,
          (number - begin) * compressionBlock);
    number = stop;
  }
}

void CompressedBlocks::gather(Device &device, int64_t begin, int64_t end,
                              const float *values, float *dense) const {
  forSpans(begin, end, [&](int64_t offset, int64_t count, int64_t at) {
    device.copy(dense + at, values + offset, count * 4);
  });
}

void CompressedBlocks::scatter(Device &device, int64_t begin, int64_t end,
                               const float *dense, float *values) const {
  forSpans(begin, end, [&](int64_t offset, int64_t count, int64_t at) {
    device.copy(values + offset, dense + at, count * 4);
  });
}
