//===- Conversions.cpp - Conversions that x86 code calls ------------------===//
//
// LLVM's code for x86 calls these for arithmetic on bf16 and for f64 to f16 and
// bf16; compilers' libraries of this age do not have all. Each rounds once, to
// nearest, ties to even; a NaN becomes 0x7fff as on a GPU.
//
//===----------------------------------------------------------------------===//

#include <cmath>
#include <cstdint>
#include <cstring>

#define CONVERSION extern "C" __attribute__((visibility("default")))

/// A bf16 is returned in the low half of a register for floats. The type itself
/// cannot be used: code for it calls these functions.
using BFloatResult = float;

static BFloatResult resultOf(uint32_t half) {
  BFloatResult value;
  std::memcpy(&value, &half, 4);
  return value;
}

/// The float next to `value` whose last bit is odd, unless it is exact: what is
/// rounded again then is right.
static float roundToOdd(double value) {
  auto near = float(value);
  uint32_t bits;
  std::memcpy(&bits, &near, 4);
  if (std::isnan(value) || double(near) == value || (bits & 1))
    return near;
  return std::nextafterf(near, value > double(near) ? INFINITY : -INFINITY);
}

static BFloatResult roundToBFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return resultOf(0x7fff);
  return resultOf((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

CONVERSION BFloatResult __truncsfbf2(float value) {
  return roundToBFloat(value);
}

CONVERSION BFloatResult __truncdfbf2(double value) {
  return roundToBFloat(roundToOdd(value));
}

CONVERSION _Float16 __truncdfhf2(double value) {
  return _Float16(roundToOdd(value));
}
