//===- BlockCode.h - Code for blocks of compressed gradients --------------===//
//
// A warp has a block (runtime/src/common/Compression.h has its layout), a lane
// eight of its values: two groups of four, whose positions are one byte. What a
// lane holds of the encoded block (LaneCode) is made of values by pack(), and
// values of it by unpack(); an encoder does both, to know what is lost.
//
// Blocks may begin at any byte, since parameters may have any number of
// elements. A lane whose part is whole and aligned goes over words, the others
// over bytes.
//
// Arithmetic is that of runtime/src/common/Compression.cpp, operation by
// operation, so that bytes are the same; bits of NaNs may differ.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_CUDA_BLOCKCODE_H
#define MGQ_PASSES_KERNELS_CUDA_BLOCKCODE_H

#include "passes/Kernels/Cuda/RuntimeKernelWriter.h"
#include <array>

namespace mgq::kernels {

/// What blocks are encoded as.
enum class BlockFormat { BF16, Sparse24, Sparse24Int8 };

/// A lane's values, f32.
using LaneValues = std::array<Value, 8>;

/// A lane's part of an encoded block; i32 but for the scale. Null where the
/// format has none.
struct LaneCode {
  /// Of each group what is sent: two bf16, or two times 8 bits; the lower index
  /// in the low bits.
  std::array<Value, 2> kept;
  Value positions; ///< A byte, of both groups.
  Value scale;     ///< f32, of the block.
  /// Two bf16 each, of the values that are in no group.
  std::array<Value, 4> dense;
};

/// Writes the code of one lane, at the builder's position.
class BlockCode {
public:
  /// `entry`: the address of a mgq_cuda_block; `first` (i64): see rt_cuda.h.
  BlockCode(mlir::OpBuilder &b, Location loc, BlockFormat format, Value lane,
            Value entry, Value first);

  /// The number of the block's first value, i64.
  Value firstValue() const { return value; }

  /// The lane's values of a block whose f32 are at `block`; 0 behind its end.
  LaneValues loadValues(Value block);
  void storeValues(const LaneValues &values, Value block);

  LaneCode pack(const LaneValues &values);
  LaneValues unpack(const LaneCode &code);
  /// All encoded blocks lie from `bytes` on, a multiple of 16.
  LaneCode load(Value bytes);
  void store(const LaneCode &code, Value bytes);

private:
  /// What is sent of a group: bits of f32, and 4 bits.
  struct Kept {
    Value first, second, positions;
  };
  using Results = SmallVector<Value>;
  using Branch = llvm::function_ref<Results()>;

  // Tools.
  Value i32(int64_t bits) {
    return s.constant(word, static_cast<int32_t>(bits));
  }
  Value shiftLeft(Value a, int64_t bits);
  Value shiftRight(Value a, int64_t bits);
  Value bitcast(Value a, Type type);
  Value less(Value a, Value b);
  Value equal(Value a, Value b);
  Results branch(Value condition, mlir::TypeRange types, Branch yes, Branch no);
  Value valueIf(Value condition, Type type, llvm::function_ref<Value()> yes);
  void doIf(Value condition, llvm::function_ref<void()> yes);
  Value moved(Value base, Value offset, int64_t more = 0);
  Results loadVector(Value address, Type element, int64_t count);
  void storeVector(ArrayRef<Value> values, Value address);
  Value loadBytes(Value address, int64_t count);
  void storeBytes(Value bits, Value address, int64_t count);

  // Encoding.
  Value bf16Of(Value bits);
  Value pairOf(Value low, Value high);
  Kept choose(ArrayRef<Value> bits);
  Value scaleOf(ArrayRef<Kept> kept);
  Value int8Of(Value bits, Value scale);
  Value int8Pair(const Kept &kept, Value scale);
  std::pair<Value, Value> keptValues(const LaneCode &code, int group);

  // The block's layout. Addresses are those of the lane's part; i1 whether it
  // has that part.
  bool isSparse() const { return format != BlockFormat::BF16; }
  bool hasScale() const { return format == BlockFormat::Sparse24Int8; }
  int64_t keptBytes() const { return hasScale() ? 2 : 4; }
  Value hasGroup(int group) {
    return less(s.add(firstGroup, i32(group)), groups);
  }
  Value hasDense(int index);
  Value hasGroups() { return less(i32(0), groups); }
  Value isWhole();
  Value blockAt(Value bytes);
  Value keptAt(Value bytes);
  Value positionsAt(Value bytes);
  Value denseAt(Value bytes);
  LaneCode loadWords(Value bytes);
  LaneCode loadParts(Value bytes);
  void storeWords(const LaneCode &code, Value bytes);
  void storeParts(const LaneCode &code, Value bytes);
  SmallVector<Value> partsOf(const LaneCode &code) const;
  LaneCode codeOf(ArrayRef<Value> parts) const;

  mlir::OpBuilder &b;
  ScalarBuilder s;
  BlockFormat format;
  Type word, single;   ///< i32, f32.
  Value lane, index;   ///< i32: in the warp; of its first value.
  Value firstGroup;    ///< i32: of the lane.
  Value value, offset; ///< i64: of the block; its first byte.
  Value count, groups; ///< i32: of the block.
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_CUDA_BLOCKCODE_H
