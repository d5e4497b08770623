//===- CompressionTest.cpp - Gradients in fewer bytes ---------------------===//

#include "runtime/src/common/Compression.h"
#include "runtime/src/local/ThreadPool.h"
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>

using namespace mgq::rt;
using testing::ElementsAre;

static constexpr float infinite = std::numeric_limits<float>::infinity();
static constexpr mgq_compression formats[] = {MGQ_COMPRESSION_BF16,
                                              MGQ_COMPRESSION_SPARSE24,
                                              MGQ_COMPRESSION_SPARSE24_INT8};

/// Encodes, checks that exactly the promised bytes are written, decodes.
static std::vector<float> roundTrip(mgq_compression format,
                                    const std::vector<float> &values) {
  auto count = static_cast<int64_t>(values.size());
  int64_t bytes = encodedBytes(format, count);
  std::vector<std::byte> encoded(bytes + 8, std::byte{0xa5});
  encodeBlock(format, values.data(), count, encoded.data());
  for (int64_t i = bytes; i < bytes + 8; ++i)
    EXPECT_EQ(encoded[i], std::byte{0xa5});
  std::vector<float> decoded(count + 1, 77.0f);
  decodeBlock(format, encoded.data(), count, decoded.data());
  EXPECT_EQ(decoded[count], 77.0f);
  decoded.pop_back();
  return decoded;
}

static std::vector<float> sparse(const std::vector<float> &values) {
  return roundTrip(MGQ_COMPRESSION_SPARSE24, values);
}

static std::vector<float> noise(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float &value : values)
    value = normal(random);
  return values;
}

TEST(Compression, BytesOfABlock) {
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_BF16, 256), 512);
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_SPARSE24, 256), 256 + 32);
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_SPARSE24_INT8, 256), 4 + 128 + 32);
  // Groups share bytes of positions; a tail is bf16.
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_SPARSE24, 4), 4 + 1);
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_SPARSE24, 8), 8 + 1);
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_SPARSE24, 11), 8 + 1 + 6);
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_SPARSE24_INT8, 13), 4 + 6 + 2 + 2);
  EXPECT_EQ(encodedBytes(MGQ_COMPRESSION_SPARSE24_INT8, 3), 6);
}

TEST(Compression, LayoutOfAGroup) {
  std::vector<float> values = {0, -2, 0.5, 1, 3, 0, 0, 4};
  std::byte encoded[9];
  encodeBlock(MGQ_COMPRESSION_SPARSE24, values.data(), 8, encoded);
  uint16_t kept[4];
  memcpy(kept, encoded, 8);
  EXPECT_THAT(kept, ElementsAre(0xc000, 0x3f80, 0x4040, 0x4080));
  // Positions 1 and 3, then 0 and 3; the lower one in the low bits.
  EXPECT_EQ(encoded[8], std::byte{(0 | 3 << 2) << 4 | (1 | 3 << 2)});
}

TEST(Compression, KeepsTheTwoLargestOfFour) {
  EXPECT_THAT(sparse({1, 2, 3, 4}), ElementsAre(0, 0, 3, 4));
  EXPECT_THAT(sparse({-4, 1, -3, 2}), ElementsAre(-4, 0, -3, 0));
  EXPECT_THAT(sparse({0, 9, -9.5, 0}), ElementsAre(0, 9, -9.5, 0));
  // Every order of magnitudes.
  std::vector<float> order = {1, 2, 3, 4};
  do {
    std::vector<float> decoded = sparse(order);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(decoded[i], order[i] > 2 ? order[i] : 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Compression, TiesGoToTheLowerIndex) {
  EXPECT_THAT(sparse({5, -5, 5, 5}), ElementsAre(5, -5, 0, 0));
  EXPECT_THAT(sparse({1, 5, -5, 5}), ElementsAre(0, 5, -5, 0));
  EXPECT_THAT(sparse({1, 2, 9, -2}), ElementsAre(0, 2, 9, 0));
  EXPECT_THAT(sparse({2, 1, 1, 2}), ElementsAre(2, 0, 0, 2));
  // Zeros of both signs are equal; the sign stays.
  std::vector<float> zeros = sparse({-0.0f, 0, -0.0f, 0});
  EXPECT_TRUE(std::signbit(zeros[0]));
  EXPECT_FALSE(std::signbit(zeros[1]));
  EXPECT_FALSE(std::signbit(zeros[2]));
}

TEST(Compression, RoundsToNearestEven) {
  float step = std::ldexp(1.0f, -7); // Between neighbours of bf16 above 1.
  auto bf16 = [](float value) {
    return roundTrip(MGQ_COMPRESSION_BF16, {value})[0];
  };
  EXPECT_EQ(bf16(1 + step / 2), 1);
  EXPECT_EQ(bf16(1 + 3 * step / 2), 1 + 2 * step);
  EXPECT_EQ(bf16(1 + step / 2 + std::ldexp(1.0f, -23)), 1 + step);
  EXPECT_EQ(bf16(-1 - step / 2), -1);
  // Denormals stay, the largest number becomes infinite.
  EXPECT_EQ(bf16(std::ldexp(1.0f, -133)), std::ldexp(1.0f, -133));
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()), infinite);
}

TEST(Compression, WhatIsNotFiniteStaysSo) {
  for (float bad :
       {infinite, -infinite, std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::signaling_NaN()})
    for (mgq_compression format : formats)
      for (int at = 0; at < 7; ++at) {
        std::vector<float> values = {1, 2, 3, 4, 1e38f, 6, 7};
        values[at] = bad;
        std::vector<float> decoded = roundTrip(format, values);
        EXPECT_FALSE(std::isfinite(decoded[at])) << format << at;
      }
  // A group of nothing else.
  for (float value : sparse({NAN, NAN, NAN, NAN}))
    EXPECT_TRUE(std::isnan(value) || value == 0);
}

TEST(Compression, EightBitsAndAScale) {
  auto int8 = [](const std::vector<float> &values) {
    return roundTrip(MGQ_COMPRESSION_SPARSE24_INT8, values);
  };
  EXPECT_THAT(int8({127, 0, -64, 0, 0, 3.4f, 0, -2.5f}),
              ElementsAre(127, 0, -64, 0, 0, 3, 0, -2)); // 2.5: to even.
  EXPECT_THAT(int8({0, 0, 0, 0}), ElementsAre(0, 0, 0, 0));
  // Scales that are denormal, or rounded to zero.
  for (int exponent : {-140, -148, -149}) {
    float tiny = std::ldexp(1.0f, exponent);
    std::vector<float> decoded = int8({tiny, 0, 0, -tiny});
    EXPECT_EQ(decoded[0], -decoded[3]);
    EXPECT_LE(decoded[0], 2 * tiny);
    EXPECT_GE(decoded[0], 0);
  }
  std::vector<float> values = noise(256, 1), decoded = int8(values);
  float largest = 0;
  for (float value : values)
    largest = std::max(largest, std::fabs(value));
  for (int i = 0; i < 256; ++i) {
    if (decoded[i] != 0) {
      EXPECT_LE(std::fabs(decoded[i] - values[i]), largest / 127 * 0.5001f);
    }
  }
}

// Every size of a block.
TEST(Compression, TailsAreDense) {
  for (mgq_compression format : formats)
    for (int64_t count = 1; count <= 256; ++count) {
      std::vector<float> values = noise(count, 7);
      std::vector<float> decoded = roundTrip(format, values);
      int64_t whole = format == MGQ_COMPRESSION_BF16 ? 0 : count / 4 * 4;
      int64_t kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        kept += i < whole && decoded[i] != 0;
        if (i >= whole) {
          EXPECT_NEAR(decoded[i], values[i], std::fabs(values[i]) / 256);
        }
      }
      EXPECT_LE(kept, whole / 2);
    }
}

//===--- Parameters -------------------------------------------------------===//

namespace {
/// Parameters at offsets with gaps, as in an arena.
struct Layout {
  std::vector<CompressedBlocks::Param> params;
  int64_t size = 0;

  explicit Layout(const std::vector<int64_t> &counts) {
    for (int64_t count : counts) {
      params.push_back({size, count});
      size += (count + 15) / 16 * 16;
    }
  }
};
} // namespace

static const std::vector<int64_t> oddCounts = {1,   255, 256, 257, 3,
                                               512, 0,   769, 100, 1030};

// Whole and in pieces, the bytes are the same, and each parameter's blocks are
// those it would have alone.
TEST(CompressedBlocks, NeverCrossParameters) {
  ThreadPool pool(2);
  pool.makeCurrent();
  Layout layout(oddCounts);
  std::vector<float> values = noise(layout.size, 3);
  for (mgq_compression format : formats) {
    CompressedBlocks blocks(format, layout.params);
    EXPECT_EQ(blocks.count(), 1 + 1 + 1 + 2 + 1 + 2 + 4 + 1 + 5);
    std::vector<std::byte> all(blocks.bytes(0, blocks.count()));
    blocks.encode(0, blocks.count(), values.data(), 1, nullptr, nullptr,
                  all.data());
    std::vector<std::byte> expected;
    for (auto [offset, count] : layout.params)
      for (int64_t at = 0; at < count; at += 256) {
        int64_t size = std::min<int64_t>(256, count - at);
        mgq_compression its = count < 256 ? MGQ_COMPRESSION_BF16 : format;
        std::vector<std::byte> block(encodedBytes(its, size));
        encodeBlock(its, values.data() + offset + at, size, block.data());
        expected.insert(expected.end(), block.begin(), block.end());
      }
    EXPECT_EQ(all, expected);
    std::vector<std::byte> parts;
    for (int64_t begin = 0, end; begin < blocks.count(); begin = end) {
      end = std::min(blocks.count(), begin + 5);
      std::vector<std::byte> part(blocks.bytes(begin, end));
      blocks.encode(begin, end, values.data(), 1, nullptr, nullptr,
                    part.data());
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_EQ(parts, all);
    // Nothing between parameters is touched.
    std::vector<float> decoded(layout.size, 77.0f);
    blocks.decode(0, blocks.count(), all.data(), decoded.data());
    for (size_t i = 0; i < layout.params.size(); ++i) {
      auto [offset, count] = layout.params[i];
      int64_t next = i + 1 < layout.params.size() ? layout.params[i + 1].offset
                                                  : layout.size;
      for (int64_t at = offset + count; at < next; ++at)
        EXPECT_EQ(decoded[at], 77.0f);
    }
    // An owner's order and back.
    std::vector<float> dense(blocks.count() * 256), back(layout.size);
    blocks.gather(hostDevice(), 0, blocks.count(), values.data(), dense.data());
    blocks.scatter(hostDevice(), 0, blocks.count(), dense.data(), back.data());
    for (auto [offset, count] : layout.params)
      EXPECT_EQ(memcmp(&back[offset], &values[offset], count * 4), 0);
  }
}

// x = values * factor + residual is, to rounding of the difference alone, what
// is sent plus the new residual.
TEST(CompressedBlocks, NothingIsLost) {
  Layout layout(oddCounts);
  std::vector<float> values = noise(layout.size, 3),
                     residual = noise(layout.size, 4), newResidual(layout.size),
                     decoded(layout.size);
  for (mgq_compression format : formats) {
    CompressedBlocks blocks(format, layout.params);
    std::vector<std::byte> bytes(blocks.bytes(0, blocks.count()));
    blocks.encode(0, blocks.count(), values.data(), 0.25f, residual.data(),
                  newResidual.data(), bytes.data());
    blocks.decode(0, blocks.count(), bytes.data(), decoded.data());
    for (auto [offset, count] : layout.params)
      for (int64_t i = offset; i < offset + count; ++i)
        EXPECT_EQ(newResidual[i], values[i] * 0.25f + residual[i] - decoded[i]);
  }
}

//===--- Convergence ------------------------------------------------------===//

namespace {
/// Which residuals are used.
enum class Feedback { None, Worker, Owner, Both };

/// Workers that descend the mean of |x - 1 - shift|^2 / 2 with compressed
/// gradients; the shifts add up to 0, so that the optimum is 1. In each group
/// of four coordinates two have noise of mean zero and two have none. The
/// first worker's noise is larger: at the owner it hides what others send.
struct Descent {
  static constexpr int workers = 3;
  static constexpr float shifts[] = {1, -0.5, -0.5}, noises[] = {20, 5, 5};
  static constexpr int64_t count = 256;
  CompressedBlocks blocks;
  std::vector<float> x, gradient, worker[workers], owner;
  std::vector<std::byte> sent[workers], sum;
  std::mt19937 random{5};

  explicit Descent(mgq_compression format)
      : blocks(format, {{0, count}}), x(count), gradient(count), owner(count) {
    int64_t bytes = blocks.bytes(0, blocks.count());
    sum.resize(bytes);
    for (int w = 0; w < workers; ++w) {
      worker[w].resize(count);
      sent[w].resize(bytes);
    }
  }

  static bool isNoisy(int64_t i) { return i % 4 == 1 || i % 4 == 2; }

  void step(Feedback feedback, float rate) {
    bool ofWorker = feedback == Feedback::Worker || feedback == Feedback::Both;
    bool ofOwner = feedback == Feedback::Owner || feedback == Feedback::Both;
    const std::byte *pieces[workers];
    for (int w = 0; w < workers; ++w) {
      for (int64_t i = 0; i < count; ++i)
        gradient[i] =
            (x[i] - 1 - shifts[w] +
             (isNoisy(i) ? (random() & 64 ? noises[w] : -noises[w]) : 0)) /
            workers;
      float *residual = ofWorker ? worker[w].data() : nullptr;
      blocks.encode(0, blocks.count(), gradient.data(), 1, residual, residual,
                    sent[w].data());
      pieces[w] = sent[w].data();
    }
    float *residual = ofOwner ? owner.data() : nullptr;
    blocks.combine(0, blocks.count(), pieces, workers, residual, residual,
                   sum.data(), gradient.data());
    for (int64_t i = 0; i < count; ++i)
      x[i] -= rate * gradient[i];
  }

  /// Root mean square distance from the optimum of the quiet coordinates.
  float quietError() const {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
      if (!isNoisy(i))
        sum += std::pow(static_cast<double>(x[i]) - 1, 2);
    return static_cast<float>(std::sqrt(sum / (count / 2)));
  }

  float errorAfter(Feedback feedback, int steps) {
    for (int i = 0; i < steps; ++i)
      step(feedback, 0.2f / (1 + 0.01f * static_cast<float>(i)));
    return quietError();
  }
};
} // namespace

// Quiet coordinates lose against noise: without feedback they stay where they
// began, since no worker sends them. With the workers' residuals alone the
// owner drops what the quieter workers send, for good. Only both reach the
// optimum, and come closer with more steps.
TEST(CompressedBlocks, BothResidualsReachTheOptimum) {
  for (mgq_compression format :
       {MGQ_COMPRESSION_SPARSE24, MGQ_COMPRESSION_SPARSE24_INT8}) {
    auto error = [&](Feedback feedback, int steps) {
      return Descent(format).errorAfter(feedback, steps);
    };
    EXPECT_GT(error(Feedback::None, 3000), 0.99f);
    EXPECT_GT(error(Feedback::Worker, 3000), 0.5f);
    EXPECT_GT(error(Feedback::Owner, 3000), 0.5f);
    float both = error(Feedback::Both, 3000);
    EXPECT_LT(both, 0.02f);
    EXPECT_LT(error(Feedback::Both, 12000), both / 2);
  }
}
