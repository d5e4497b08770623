//===- Types.h - Element types, shapes, conversions -------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_TYPES_H
#define MGQ_RUNTIME_COMMON_TYPES_H

#include "runtime/include/rt.h"
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mgq::rt {

using Shape = std::vector<int64_t>;

/// The name safetensors gives a type: "F32".
const char *typeName(mgq_type type);

/// The type of a safetensors name; empty for names this project does not have.
std::optional<mgq_type> typeFromName(std::string_view name);

/// Bytes of one element.
int64_t typeBytes(mgq_type type);

inline bool isFloat(mgq_type type) { return type <= MGQ_BF16; }

/// The shape of a table entry.
Shape shapeOf(const mgq_tensor &tensor);

/// "[2, 3]".
std::string shapeText(const Shape &shape);

/// Number of elements; empty if it does not fit into 63 bits or an extent is
/// negative.
std::optional<int64_t> elementCount(const Shape &shape);

/// Converts `count` elements of a float type to f32, rounding to nearest even.
/// `from` need not be aligned.
void convertToFloat(mgq_type type, const std::byte *from, float *to,
                    int64_t count);

/// Converts `count` f32 elements to a float type of 16 or 32 bits, rounding to
/// nearest even; a NaN stays one. `to` need not be aligned.
void convertFromFloat(mgq_type type, const float *from, std::byte *to,
                      int64_t count);

/// Element `index` of an integer or boolean array as i64; U64 values above
/// INT64_MAX become INT64_MAX.
int64_t integerAt(mgq_type type, const std::byte *data, int64_t index);

/// Copies f32 elements of a row-major tensor of `shape` into the layout
/// transposed by `permutation` (result extent i = shape[permutation[i]]).
void transpose(const float *from, float *to, const Shape &shape,
               const int64_t *permutation);
/// Only elements [begin, begin + count) of the result, to the front of `to`.
void transpose(const float *from, float *to, const Shape &shape,
               const int64_t *permutation, int64_t begin, int64_t count);

/// The inverse of transpose(): `shape` is the untransposed one, `from` holds
/// elements [begin, begin + count) of the transposed one.
void untranspose(const float *from, float *to, const Shape &shape,
                 const int64_t *permutation, int64_t begin, int64_t count);

/// `shape` transposed by `permutation`; null leaves it.
Shape transposedShape(const Shape &shape, const int64_t *permutation);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_TYPES_H
