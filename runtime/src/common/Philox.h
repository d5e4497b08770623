//===- Philox.h - Counter-based random numbers ------------------*- C++ -*-===//
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): ten rounds of two 32x32 -> 64 bit products. A number depends on key
// and counter only, never on rank, thread or time.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_PHILOX_H
#define MGQ_RUNTIME_COMMON_PHILOX_H

#include <array>
#include <cstdint>
#include <vector>

namespace mgq::rt {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xD2511F53} * counter[0];
    uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// Fills `order` (its size is kept) with the permutation of an epoch: Fisher
/// and Yates, from the end, step i with the number of counter (i, epoch).
inline void shufflePermutation(std::vector<uint32_t> &order, uint64_t seed,
                               uint64_t epoch) {
  PhiloxKey key = {static_cast<uint32_t>(seed),
                   static_cast<uint32_t>(seed >> 32)};
  for (uint32_t i = 0; i < order.size(); ++i)
    order[i] = i;
  for (uint32_t i = order.size(); i-- > 1;) {
    PhiloxCounter bits = philox({i, 0, static_cast<uint32_t>(epoch),
                                 static_cast<uint32_t>(epoch >> 32)},
                                key);
    uint64_t number = uint64_t{bits[1]} << 32 | bits[0];
    auto j = static_cast<uint32_t>(
        static_cast<unsigned __int128>(number) * (uint64_t{i} + 1) >> 64);
    std::swap(order[i], order[j]);
  }
}

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_PHILOX_H
