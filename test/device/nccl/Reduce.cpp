//===- Reduce.cpp - Arithmetic of reductions ------------------------------===//

#include "test/device/nccl/Reduce.h"
#include <algorithm>
#include <cstdint>
#include <cstring>

using namespace mgq::device;

namespace {
/// A type as it is stored, and as it is computed with.
template <typename T>
struct Plain {
  using Wide = T;
  T bits;
  Wide widen() const { return bits; }
  void set(Wide value) { bits = value; }
};

struct Half {
  using Wide = float;
  _Float16 bits;
  float widen() const { return float(bits); }
  void set(float value) { bits = _Float16(value); }
};

struct BFloat {
  using Wide = float;
  uint16_t bits;
  float widen() const {
    uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
  void set(float value) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    bool isNaN = (word & 0x7fffffff) > 0x7f800000;
    bits = isNaN ? 0x7fff : uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
};
} // namespace

template <typename T>
static T apply(T a, T b, ncclRedOp_t reduction) {
  switch (reduction) {
  case ncclProd:
    return a * b;
  case ncclMax:
    return std::max(a, b);
  case ncclMin:
    return std::min(a, b);
  default:
    return a + b;
  }
}

template <typename T>
static void reduceAs(void *to, const std::vector<const void *> &parts,
                     size_t count, ncclRedOp_t reduction) {
  using Wide = typename T::Wide;
  auto *result = static_cast<T *>(to);
  for (size_t i = 0; i < count; ++i) {
    Wide value = static_cast<const T *>(parts[0])[i].widen();
    for (size_t part = 1; part < parts.size(); ++part)
      value = apply<Wide>(value, static_cast<const T *>(parts[part])[i].widen(),
                          reduction);
    if (reduction == ncclAvg)
      value = Wide(value / Wide(parts.size()));
    result[i].set(value);
  }
}

bool mgq::device::canReduce(ncclDataType_t type, ncclRedOp_t reduction) {
  bool isKnown = reduction == ncclSum || reduction == ncclProd ||
                 reduction == ncclMax || reduction == ncclMin ||
                 reduction == ncclAvg;
  return isKnown && unsigned(type) <= unsigned(ncclBfloat16);
}

void mgq::device::reduce(void *to, const std::vector<const void *> &parts,
                         size_t count, ncclDataType_t type,
                         ncclRedOp_t reduction) {
  switch (type) {
  case ncclInt8:
    return reduceAs<Plain<int8_t>>(to, parts, count, reduction);
  case ncclUint8:
    return reduceAs<Plain<uint8_t>>(to, parts, count, reduction);
  case ncclInt32:
    return reduceAs<Plain<int32_t>>(to, parts, count, reduction);
  case ncclUint32:
    return reduceAs<Plain<uint32_t>>(to, parts, count, reduction);
  case ncclInt64:
    return reduceAs<Plain<int64_t>>(to, parts, count, reduction);
  case ncclUint64:
    return reduceAs<Plain<uint64_t>>(to, parts, count, reduction);
  case ncclFloat16:
    return reduceAs<Half>(to, parts, count, reduction);
  case ncclFloat32:
    return reduceAs<Plain<float>>(to, parts, count, reduction);
  case ncclFloat64:
    return reduceAs<Plain<double>>(to, parts, count, reduction);
  case ncclBfloat16:
    return reduceAs<BFloat>(to, parts, count, reduction);
  default:
    return;
  }
}
