//===- Collectives.cpp - Leaves in which threads of a block meet ----------===//
//
// CollectiveLeaves.inc lists them. The last argument of each is the number of
// the call in its module.
//
//===----------------------------------------------------------------------===//

#include "test/device/cuda/Block.h"
#include <algorithm>
#include <cstring>
#include <cuda.h>

using namespace mgq::device;

#define LEAF extern "C" __attribute__((visibility("default")))

static Block &block() { return *runningBlock; }

//===----------------------------------------------------------------------===//
// Barriers
//===----------------------------------------------------------------------===//

static void barrierOf(uint32_t number, uint32_t site) {
  if (number != 0)
    block().stop(CUDA_ERROR_NOT_SUPPORTED, "not supported yet: barrier " +
                                               std::to_string(number) +
                                               "; supported: 0");
  block().barrier(site);
}
LEAF void twin_nvvm_barrier0(uint32_t site) { barrierOf(0, site); }
LEAF void twin_nvvm_barrier_cta_sync_aligned_all(uint32_t number,
                                                 uint32_t site) {
  barrierOf(number, site);
}
LEAF void twin_nvvm_barrier_cta_sync_all(uint32_t number, uint32_t site) {
  barrierOf(number, site);
}
LEAF void twin_nvvm_barrier_sync(uint32_t number, uint32_t site) {
  barrierOf(number, site);
}
LEAF void twin_nvvm_bar_warp_sync(uint32_t mask, uint32_t site) {
  block().warp(mask, "warp barrier", site,
               [&](Fiber *) { block().passWarpBarrier(mask); });
}

//===----------------------------------------------------------------------===//
// Shuffles, votes, reductions
//===----------------------------------------------------------------------===//

namespace {
enum class Shuffle { Xor, Down, Up, Index };

/// The lane that `lane` reads from. PTX's clamp word holds the segment mask in
/// bits 8 to 12 and the last lane in bits 0 to 4. False: out of the segment.
bool sourceLane(Shuffle kind, int lane, uint32_t offset, uint32_t clampWord,
                int &source) {
  int by = offset & 31, clamp = clampWord & 31, segment = clampWord >> 8 & 31;
  int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  switch (kind) {
  case Shuffle::Xor:
    source = lane ^ by;
    return source <= last;
  case Shuffle::Down:
    source = lane + by;
    return source <= last;
  case Shuffle::Up:
    source = lane - by;
    return source >= last;
  case Shuffle::Index:
    source = first | (by & ~segment);
    return source <= last;
  }
  return false;
}

struct Shuffled {
  uint32_t value;
  bool inside;
};

Shuffled shuffle(Shuffle kind, uint32_t mask, uint32_t value, uint32_t offset,
                 uint32_t clamp, uint32_t site) {
  Fiber &me = block().fiber();
  me.given = value;
  me.words[0] = offset;
  me.words[1] = clamp;
  block().warp(mask, "shuffle", site, [&](Fiber *fibers) {
    for (int lane = 0; lane < 32; ++lane) {
      if (!(mask >> lane & 1))
        continue;
      Fiber &to = fibers[lane];
      int source = lane;
      to.predicate = sourceLane(kind, lane, to.words[0], to.words[1], source);
      if (!to.predicate)
        source = lane;
      if (!(mask >> source & 1))
        block().stop(CUDA_ERROR_ILLEGAL_INSTRUCTION,
                     "shuffle: lane " + std::to_string(lane) +
                         " reads from lane " + std::to_string(source) +
                         ", which is not in the mask; met by thread " +
                         block().where());
      to.taken = fibers[source].given;
    }
  });
  return {uint32_t(me.taken), me.predicate};
}

uint32_t bitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
float floatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

/// { value, i1 } of the IR.
struct FloatAndFlag {
  float value;
  uint8_t flag;
};
struct WordAndFlag {
  uint32_t value;
  uint8_t flag;
};

/// A value of every lane in `mask` becomes one for all.
template <typename Combine>
uint32_t reduce(uint32_t mask, uint32_t value, const char *what, uint32_t site,
                uint32_t start, Combine combine) {
  Fiber &me = block().fiber();
  me.given = value;
  block().warp(mask, what, site, [&](Fiber *fibers) {
    uint32_t result = start;
    for (int lane = 0; lane < 32; ++lane)
      if (mask >> lane & 1)
        result = combine(result, uint32_t(fibers[lane].given), lane);
    for (int lane = 0; lane < 32; ++lane)
      fibers[lane].taken = result;
  });
  return uint32_t(me.taken);
}
} // namespace

#define SHUFFLE(name, kind)                                                    \
  LEAF uint32_t twin_nvvm_shfl_sync_##name##_i32(                              \
      uint32_t mask, uint32_t value, uint32_t offset, uint32_t clamp,          \
      uint32_t site) {                                                         \
    return shuffle(kind, mask, value, offset, clamp, site).value;              \
  }                                                                            \
  LEAF float twin_nvvm_shfl_sync_##name##_f32(uint32_t mask, float value,      \
                                              uint32_t offset, uint32_t clamp, \
                                              uint32_t site) {                 \
    return floatOf(                                                            \
        shuffle(kind, mask, bitsOf(value), offset, clamp, site).value);        \
  }                                                                            \
  LEAF void twin_nvvm_shfl_sync_##name##_i32p(WordAndFlag *out, uint32_t mask, \
                                              uint32_t value, uint32_t offset, \
                                              uint32_t clamp, uint32_t site) { \
    Shuffled result = shuffle(kind, mask, value, offset, clamp, site);         \
    *out = {result.value, result.inside};                                      \
  }                                                                            \
  LEAF void twin_nvvm_shfl_sync_##name##_f32p(                                 \
      FloatAndFlag *out, uint32_t mask, float value, uint32_t offset,          \
      uint32_t clamp, uint32_t site) {                                         \
    Shuffled result = shuffle(kind, mask, bitsOf(value), offset, clamp, site); \
    *out = {floatOf(result.value), result.inside};                             \
  }
SHUFFLE(bfly, Shuffle::Xor)
SHUFFLE(down, Shuffle::Down)
SHUFFLE(up, Shuffle::Up)
SHUFFLE(idx, Shuffle::Index)

LEAF uint32_t twin_nvvm_vote_ballot_sync(uint32_t mask, uint32_t flag,
                                         uint32_t site) {
  return reduce(
      mask, flag & 1, "vote", site, 0,
      [](uint32_t all, uint32_t mine, int lane) { return all | mine << lane; });
}
LEAF uint32_t twin_nvvm_vote_all_sync(uint32_t mask, uint32_t flag,
                                      uint32_t site) {
  return reduce(mask, flag & 1, "vote", site, 1,
                [](uint32_t a, uint32_t b, int) { return a & b; });
}
LEAF uint32_t twin_nvvm_vote_any_sync(uint32_t mask, uint32_t flag,
                                      uint32_t site) {
  return reduce(mask, flag & 1, "vote", site, 0,
                [](uint32_t a, uint32_t b, int) { return a | b; });
}

#define REDUX(name, start, value)                                              \
  LEAF uint32_t twin_nvvm_redux_sync_##name(uint32_t mine, uint32_t mask,      \
                                            uint32_t site) {                   \
    return reduce(                                                             \
        mask, mine, "reduction", site, start,                                  \
        [](uint32_t a, uint32_t b, int) { return uint32_t(value); });          \
  }
REDUX(add, 0, a + b)
REDUX(min, 0x7fffffff, std::min(int32_t(a), int32_t(b)))
REDUX(max, 0x80000000, std::max(int32_t(a), int32_t(b)))
REDUX(umin, ~0u, std::min(a, b))
REDUX(umax, 0, std::max(a, b))
REDUX(and, ~0u, a &b)
REDUX(or, 0, a | b)
REDUX(xor, 0, a ^ b)

//===----------------------------------------------------------------------===//
// Copies to shared memory
//===----------------------------------------------------------------------===//

static void access(const void *address, int64_t bytes,
                   mgq_twin_access_kind kind, int64_t align) {
  block().access(reinterpret_cast<uintptr_t>(address), bytes, kind, align);
}

/// The bytes arrive at the wait and no earlier, so a missing one shows.
static void beginCopy(void *to, const void *from, int64_t bytes) {
  Fiber &me = block().fiber();
  access(from, bytes, MGQ_TWIN_READ, bytes);
  me.copies.push_back({to, from, bytes, me.copyGroup});
}
LEAF void twin_nvvm_cp_async_ca_shared_global_4(void *to, const void *from,
                                                uint32_t) {
  beginCopy(to, from, 4);
}
LEAF void twin_nvvm_cp_async_ca_shared_global_8(void *to, const void *from,
                                                uint32_t) {
  beginCopy(to, from, 8);
}
LEAF void twin_nvvm_cp_async_ca_shared_global_16(void *to, const void *from,
                                                 uint32_t) {
  beginCopy(to, from, 16);
}
LEAF void twin_nvvm_cp_async_cg_shared_global_16(void *to, const void *from,
                                                 uint32_t) {
  beginCopy(to, from, 16);
}
LEAF void twin_nvvm_cp_async_commit_group(uint32_t) {
  ++block().fiber().copyGroup;
}

static void endCopies(int32_t before) {
  std::vector<PendingCopy> &copies = block().fiber().copies;
  size_t kept = 0;
  for (const PendingCopy &copy : copies) {
    if (copy.group >= before) {
      copies[kept++] = copy;
      continue;
    }
    access(copy.to, copy.bytes, MGQ_TWIN_WRITE, copy.bytes);
    std::memcpy(copy.to, copy.from, size_t(copy.bytes));
  }
  copies.resize(kept);
}
LEAF void twin_nvvm_cp_async_wait_group(int32_t pending, uint32_t) {
  endCopies(block().fiber().copyGroup - pending);
}
LEAF void twin_nvvm_cp_async_wait_all(uint32_t) {
  endCopies(block().fiber().copyGroup + 1);
}

//===----------------------------------------------------------------------===//
// Matrices
//===----------------------------------------------------------------------===//

/// Lane l gives the address of row l % 8 of matrix l / 8, and takes, of each
/// matrix, elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; transposed, those
/// of that column.
static void loadMatrices(uint32_t *out, const void *row, int count,
                         bool transposed, uint32_t site) {
  Fiber &me = block().fiber();
  me.given = reinterpret_cast<uint64_t>(row);
  if (block().lane() < 8 * count)
    access(row, 16, MGQ_TWIN_READ, 16);
  block().warp(~0u, "ldmatrix", site, [&](Fiber *fibers) {
    auto element = [&](int matrix, int r, int c) {
      uint16_t half;
      auto *start =
          reinterpret_cast<const char *>(fibers[8 * matrix + r].given);
      std::memcpy(&half, start + 2 * c, 2);
      return uint32_t(half);
    };
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < count; ++i) {
        int r = lane / 4, c = lane % 4 * 2;
        uint32_t low = transposed ? element(i, c, r) : element(i, r, c);
        uint32_t high =
            transposed ? element(i, c + 1, r) : element(i, r, c + 1);
        fibers[lane].words[i] = low | high << 16;
      }
  });
  std::memcpy(out, me.words, size_t(count) * 4);
}

LEAF uint32_t twin_nvvm_ldmatrix_sync_aligned_m8n8_x1_b16_p3(const void *row,
                                                             uint32_t site) {
  uint32_t word;
  loadMatrices(&word, row, 1, false, site);
  return word;
}
LEAF uint32_t twin_nvvm_ldmatrix_sync_aligned_m8n8_x1_trans_b16_p3(
    const void *row, uint32_t site) {
  uint32_t word;
  loadMatrices(&word, row, 1, true, site);
  return word;
}
#define LDMATRIX(name, count, transposed)                                      \
  LEAF void twin_nvvm_ldmatrix_sync_aligned_m8n8_##name##_b16_p3(              \
      uint32_t *out, const void *row, uint32_t site) {                         \
    loadMatrices(out, row, count, transposed, site);                           \
  }
LDMATRIX(x2, 2, false)
LDMATRIX(x4, 4, false)
LDMATRIX(x2_trans, 2, true)
LDMATRIX(x4_trans, 4, true)

static float fromBF16(uint32_t half) { return floatOf(half << 16); }
static float fromF16(uint32_t half) {
  _Float16 value;
  auto bits = uint16_t(half);
  std::memcpy(&value, &bits, 2);
  return float(value);
}

/// D = A B + C of a warp, A 16 x 16, B 16 x 8, in the fragment layout of PTX's
/// mma.m16n8k16: sums are exact to double precision and rounded once, where a
/// GPU truncates as it aligns products.
template <typename Widen>
static void multiplyMatrices(float *out, const uint32_t *fragments,
                             const float *sums, Widen widen, uint32_t site) {
  Fiber &me = block().fiber();
  std::memcpy(me.words, fragments, 6 * 4);
  std::memcpy(me.sums, sums, 4 * 4);
  block().warp(~0u, "mma", site, [&](Fiber *fibers) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const uint32_t *words = fibers[lane].words;
      int group = lane / 4, pair = lane % 4 * 2;
      for (int half = 0; half < 2; ++half) {
        auto at = [&](int i) { return widen(words[i] >> 16 * half & 0xffff); };
        int column = pair + half;
        a[group][column] = at(0);
        a[group + 8][column] = at(1);
        a[group][column + 8] = at(2);
        a[group + 8][column + 8] = at(3);
        b[column][group] = at(4);
        b[column + 8][group] = at(5);
      }
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = fibers[lane].sums[i];
        for (int k = 0; k < 16; ++k)
          sum += double(a[row][k]) * b[k][column];
        fibers[lane].sums[i] = float(sum);
      }
  });
  std::memcpy(out, me.sums, 4 * 4);
}

#define MMA(name, widen)                                                       \
  LEAF void twin_nvvm_mma_m16n8k16_row_col_##name(                             \
      float *out, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,          \
      uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3,        \
      uint32_t site) {                                                         \
    uint32_t fragments[] = {a0, a1, a2, a3, b0, b1};                           \
    float sums[] = {c0, c1, c2, c3};                                           \
    multiplyMatrices(out, fragments, sums, widen, site);                       \
  }
MMA(bf16, fromBF16)
MMA(f32_f32, fromF16)
