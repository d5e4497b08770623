//===- Types.cpp - Element types, shapes, conversions ---------------------===//

#include "runtime/src/common/Types.h"
#include <climits>
#include <cstring>

using namespace mgq::rt;

namespace {
struct TypeRow {
  const char *name;
  int64_t bytes;
};
} // namespace

// In the order of mgq_type.
static constexpr TypeRow typeTable[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
    {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U64", 8},  {"U32", 4},
    {"U16", 2}, {"U8", 1},  {"BOOL", 1}};

const char *mgq::rt::typeName(mgq_type type) { return typeTable[type].name; }

int64_t mgq::rt::typeBytes(mgq_type type) { return typeTable[type].bytes; }

std::optional<mgq_type> mgq::rt::typeFromName(std::string_view name) {
  for (int i = MGQ_F64; i <= MGQ_BOOL; ++i)
    if (name == typeTable[i].name)
      return static_cast<mgq_type>(i);
  return std::nullopt;
}

Shape mgq::rt::shapeOf(const mgq_tensor &tensor) {
  return tensor.rank ? Shape(tensor.shape, tensor.shape + tensor.rank)
                     : Shape();
}

std::string mgq::rt::shapeText(const Shape &shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::optional<int64_t> mgq::rt::elementCount(const Shape &shape) {
  int64_t count = 1;
  for (int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count))
      return std::nullopt;
  return count;
}

static float halfToFloat(uint16_t half) {
  uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u,
           mantissa = half & 1023u, bits;
  if (exponent == 31)
    bits = sign | 0x7f800000u | mantissa << 13;
  else if (exponent)
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  else { // Subnormal: exact in f32.
    float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

void mgq::rt::convertToFloat(mgq_type type, const std::byte *from, float *to,
                             int64_t count) {
  switch (type) {
  case MGQ_F32:
    if (count)
      memcpy(to, from, count * sizeof(float));
    return;
  case MGQ_F64:
    for (int64_t i = 0; i < count; ++i) {
      double value;
      memcpy(&value, from + 8 * i, 8);
      to[i] = static_cast<float>(value);
    }
    return;
  case MGQ_F16:
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits;
      memcpy(&bits, from + 2 * i, 2);
      to[i] = halfToFloat(bits);
    }
    return;
  case MGQ_BF16:
    for (int64_t i = 0; i < count; ++i) {
      uint16_t high;
      memcpy(&high, from + 2 * i, 2);
      uint32_t bits = static_cast<uint32_t>(high) << 16;
      memcpy(to + i, &bits, 4);
    }
    return;
  default:
    __builtin_unreachable(); // Callers check isFloat().
  }
}

/// Keeps `bits` of a number without its last `drop` bits, rounded to nearest
/// even.
static uint32_t roundBits(uint32_t bits, uint32_t drop) {
  uint32_t half = 1u << (drop - 1);
  return (bits + half - 1 + (bits >> drop & 1u)) >> drop;
}

static uint16_t floatToBrain(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>(roundBits(bits, 16));
}

static uint16_t floatToHalf(uint32_t bits) {
  uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu, half;
  if (magnitude > 0x7f800000u)
    half = 0x7e00u;
  else if (magnitude >= 0x477ff000u) // 65520, halfway to what there is not
    half = 0x7c00u;
  else if (magnitude >= 0x38800000u) // normal numbers
    half = roundBits(magnitude - (112u << 23), 13);
  else if (magnitude < 0x33000000u) // below half of the least subnormal
    half = 0;
  else { // Subnormal: a multiple of 2^-24.
    uint32_t exponent = magnitude >> 23;
    half = roundBits((magnitude & 0x7fffffu) | 0x800000u, 126 - exponent);
  }
  return static_cast<uint16_t>(sign | half);
}

void mgq::rt::convertFromFloat(mgq_type type, const float *from, std::byte *to,
                               int64_t count) {
  if (type == MGQ_F32) {
    if (count)
      memcpy(to, from, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, from + i, 4);
    uint16_t narrow = type == MGQ_F16 ? floatToHalf(bits) : floatToBrain(bits);
    memcpy(to + 2 * i, &narrow, 2);
  }
}

template <typename T>
static T valueAt(const std::byte *data, int64_t index) {
  T value;
  memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t mgq::rt::integerAt(mgq_type type, const std::byte *data,
                           int64_t index) {
  switch (type) {
  case MGQ_I64:
    return valueAt<int64_t>(data, index);
  case MGQ_I32:
    return valueAt<int32_t>(data, index);
  case MGQ_I16:
    return valueAt<int16_t>(data, index);
  case MGQ_I8:
    return valueAt<int8_t>(data, index);
  case MGQ_U64: {
    uint64_t value = valueAt<uint64_t>(data, index);
    return value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value);
  }
  case MGQ_U32:
    return valueAt<uint32_t>(data, index);
  case MGQ_U16:
    return valueAt<uint16_t>(data, index);
  default:
    return valueAt<uint8_t>(data, index);
  }
}

Shape mgq::rt::transposedShape(const Shape &shape, const int64_t *permutation) {
  if (!permutation)
    return shape;
  Shape result(shape.size());
  for (size_t i = 0; i < shape.size(); ++i)
    result[i] = shape[permutation[i]];
  return result;
}

/// Calls visit(target, source) for elements [begin, begin + count) of the
/// target, in its order.
template <typename Visit>
static void forTransposed(const Shape &shape, const int64_t *permutation,
                          int64_t begin, int64_t count, Visit visit) {
  size_t rank = shape.size();
  Shape strides(rank, 1), extents(rank), steps(rank), index(rank, 0);
  for (size_t i = rank; i-- > 1;)
    strides[i - 1] = strides[i] * shape[i];
  for (size_t i = 0; i < rank; ++i) {
    extents[i] = shape[permutation[i]];
    steps[i] = strides[permutation[i]];
  }
  int64_t source = 0, rest = begin;
  for (size_t i = rank; i-- > 0 && count;) {
    index[i] = rest % extents[i];
    rest /= extents[i];
    source += index[i] * steps[i];
  }
  for (int64_t target = begin; target < begin + count; ++target) {
    visit(target, source);
    for (size_t i = rank; i-- > 0;) {
      source += steps[i];
      if (++index[i] < extents[i])
        break;
      source -= steps[i] * extents[i];
      index[i] = 0;
    }
  }
}

void mgq::rt::transpose(const float *from, float *to, const Shape &shape,
                        const int64_t *permutation) {
  transpose(from, to, shape, permutation, 0, elementCount(shape).value_or(0));
}

void mgq::rt::transpose(const float *from, float *to, const Shape &shape,
                        const int64_t *permutation, int64_t begin,
                        int64_t count) {
  forTransposed(shape, permutation, begin, count,
                [&](int64_t target, int64_t source) {
                  to[target - begin] = from[source];
                });
}

void mgq::rt::untranspose(const float *from, float *to, const Shape &shape,
                          const int64_t *permutation, int64_t begin,
                          int64_t count) {
  forTransposed(shape, permutation, begin, count,
                [&](int64_t target, int64_t source) {
                  to[source] = from[target - begin];
                });
}
