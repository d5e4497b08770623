//===- NNCosts.cpp - Work of nn ops ---------------------------------------===//
//
// What the planner needs to know of an op: floating-point operations (a
// multiply-add is 2, a function such as exp is kFunction) and bytes moved.
// Bytes are those of operands and results, but for ops that touch a part of an
// operand only. A shape that is not known yet counts as nothing.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/NNBuild.h"

using namespace mlir;
using namespace mgq::nn;

/// FLOP of a transcendental function, about what its polynomial takes.
static constexpr int64_t kFunction = 10;

static int64_t elements(Value value) {
  auto type = tensorType(value);
  return type.hasStaticShape() ? type.getNumElements() : 0;
}

static int64_t bytes(Value value) {
  int64_t bits = tensorType(value).getElementTypeBitWidth();
  return elements(value) * std::max<int64_t>(bits, 8) / 8;
}

/// Bytes of all operands and results.
static int64_t allBytes(Operation *op) {
  int64_t sum = 0;
  for (Value operand : op->getOperands())
    sum += bytes(operand);
  for (Value result : op->getResults())
    sum += bytes(result);
  return sum;
}

/// Whether a kind is more than one or two machine instructions.
static bool isFunction(UnaryKind kind) {
  switch (kind) {
  case UnaryKind::Abs:
  case UnaryKind::Neg:
  case UnaryKind::Sign:
  case UnaryKind::Ceil:
  case UnaryKind::Floor:
  case UnaryKind::Round:
  case UnaryKind::Sqrt:
  case UnaryKind::Rsqrt:
  case UnaryKind::Reciprocal:
  case UnaryKind::Relu:
  case UnaryKind::Not:
  case UnaryKind::IsNan:
  case UnaryKind::IsInf:
    return false;
  default:
    return true;
  }
}

//===----------------------------------------------------------------------===//
// Floating-point operations
//===----------------------------------------------------------------------===//

int64_t UnaryOp::getFlops() {
  if (!isFloat(getInput()))
    return 0;
  return elements(getResult()) * (isFunction(getKind()) ? kFunction : 1);
}

int64_t BinaryOp::getFlops() {
  if (!isFloat(getLhs()))
    return 0;
  return elements(getResult()) *
         (getKind() == BinaryKind::Pow ? 2 * kFunction : 1);
}

int64_t MatmulOp::getFlops() {
  ArrayRef<int64_t> shape = tensorType(getLhs()).getShape();
  int64_t depth = getTransposeA() ? shape[shape.size() - 2] : shape.back();
  return 2 * elements(getResult()) * depth;
}

/// FLOP of a convolution by its output and weight [out, in / groups, window].
static int64_t convFlops(Value output, Value weight) {
  int64_t out = tensorType(weight).getDimSize(0);
  return out == 0 ? 0 : 2 * elements(output) * (elements(weight) / out);
}

int64_t ConvOp::getFlops() { return convFlops(getResult(), getWeight()); }
int64_t ConvGradInputOp::getFlops() {
  return convFlops(getGrad(), getWeight());
}
int64_t ConvGradWeightOp::getFlops() {
  return convFlops(getGrad(), getResult());
}

/// Elements of a pool's window.
template <typename Op>
static int64_t windowSize(Op op) {
  int64_t size = 1;
  for (int64_t dim : op.getWindow())
    size *= dim;
  return size;
}

int64_t PoolOp::getFlops() { return elements(getResult()) * windowSize(*this); }
int64_t PoolGradOp::getFlops() {
  return elements(getGrad()) * windowSize(*this);
}

int64_t GatherGradOp::getFlops() { return elements(getGrad()); }

int64_t ScatterElementsOp::getFlops() {
  return getKind() == ScatterKind::Replace ? 0 : elements(getUpdates());
}

int64_t ScatterNDOp::getFlops() {
  return getKind() == ScatterKind::Replace ? 0 : elements(getUpdates());
}

int64_t ReduceOp::getFlops() { return elements(getInput()); }
int64_t ArgReduceOp::getFlops() { return elements(getInput()); }
int64_t CumsumOp::getFlops() { return elements(getInput()); }

// Maximum, subtraction, sum, division; for the logarithm no division.
int64_t SoftmaxOp::getFlops() { return elements(getInput()) * (kFunction + 4); }
int64_t LogSoftmaxOp::getFlops() {
  return elements(getInput()) * (kFunction + 4);
}

// Two sums, then centering, scaling and the affine part.
int64_t LayerNormOp::getFlops() { return elements(getInput()) * 8; }
int64_t RMSNormOp::getFlops() { return elements(getInput()) * 5; }
int64_t LayerNormGradOp::getFlops() { return elements(getInput()) * 13; }
int64_t RMSNormGradOp::getFlops() { return elements(getInput()) * 9; }

/// Query-key pairs of an attention that are computed.
template <typename Op>
static int64_t attentionPairs(Op op) {
  ArrayRef<int64_t> q = tensorType(op.getQ()).getShape();
  int64_t queries = q[2], keys = tensorType(op.getK()).getDimSize(2);
  int64_t pairs = queries * keys;
  if (op.getCausal()) {
    int64_t shift = op.getCausalFromEnd() ? keys - queries : 0;
    pairs = 0;
    for (int64_t i = 0; i < queries; ++i)
      pairs += std::min(std::max<int64_t>(i + 1 + shift, 0), keys);
  }
  return q[0] * q[1] * pairs;
}

// Per pair: q k^T, softmax, p v.
int64_t AttentionOp::getFlops() {
  int64_t d = tensorType(getQ()).getDimSize(3);
  int64_t dv = tensorType(getV()).getDimSize(3);
  return attentionPairs(*this) * (2 * (d + dv) + kFunction + 4);
}

// Per pair: q k^T again, dO v^T, and the three gradients.
int64_t AttentionGradOp::getFlops() {
  int64_t d = tensorType(getQ()).getDimSize(3);
  int64_t dv = tensorType(getV()).getDimSize(3);
  return attentionPairs(*this) * (2 * (3 * d + 2 * dv) + kFunction + 4);
}

int64_t RopeOp::getFlops() { return elements(getResult()) * 3; }
int64_t CrossEntropyOp::getFlops() {
  return elements(getLogits()) * (kFunction + 3);
}
int64_t CrossEntropyGradOp::getFlops() {
  return elements(getLogits()) * (kFunction + 5);
}

// Movement, comparisons and integers compute nothing that counts.
int64_t CompareOp::getFlops() { return 0; }
int64_t SelectOp::getFlops() { return 0; }
// Ten rounds of random bits serve four elements.
int64_t DropoutOp::getFlops() { return elements(getResult()) * kFunction; }
int64_t CastOp::getFlops() { return 0; }
int64_t ReshapeOp::getFlops() { return 0; }
int64_t TransposeOp::getFlops() { return 0; }
int64_t BroadcastOp::getFlops() { return 0; }
int64_t SliceOp::getFlops() { return 0; }
int64_t PadOp::getFlops() { return 0; }
int64_t ConcatOp::getFlops() { return 0; }
int64_t GatherOp::getFlops() { return 0; }
int64_t GatherElementsOp::getFlops() { return 0; }
int64_t GatherNDOp::getFlops() { return 0; }
int64_t NonZeroOp::getFlops() { return 0; }
int64_t ShapeOp::getFlops() { return 0; }
int64_t DynamicSliceOp::getFlops() { return 0; }
int64_t MaskedScatterOp::getFlops() { return 0; }
int64_t MaskedGatherOp::getFlops() { return 0; }
int64_t LabelWeightsOp::getFlops() { return 0; }

//===----------------------------------------------------------------------===//
// Bytes
//===----------------------------------------------------------------------===//

// A view.
int64_t ReshapeOp::getBytes() { return 0; }
int64_t ShapeOp::getBytes() { return bytes(getResult()); }
// They read as much as they write.
int64_t SliceOp::getBytes() { return 2 * bytes(getResult()); }
int64_t DynamicSliceOp::getBytes() { return 2 * bytes(getResult()); }
int64_t GatherOp::getBytes() {
  return 2 * bytes(getResult()) + bytes(getIndices());
}
int64_t GatherElementsOp::getBytes() {
  return 2 * bytes(getResult()) + bytes(getIndices());
}
int64_t GatherNDOp::getBytes() {
  return 2 * bytes(getResult()) + bytes(getIndices());
}

int64_t UnaryOp::getBytes() { return allBytes(*this); }
int64_t BinaryOp::getBytes() { return allBytes(*this); }
int64_t CompareOp::getBytes() { return allBytes(*this); }
int64_t SelectOp::getBytes() { return allBytes(*this); }
int64_t DropoutOp::getBytes() { return allBytes(*this); }
int64_t CastOp::getBytes() { return allBytes(*this); }
int64_t MatmulOp::getBytes() { return allBytes(*this); }
int64_t ConvOp::getBytes() { return allBytes(*this); }
int64_t ConvGradInputOp::getBytes() { return allBytes(*this); }
int64_t ConvGradWeightOp::getBytes() { return allBytes(*this); }
int64_t TransposeOp::getBytes() { return allBytes(*this); }
int64_t BroadcastOp::getBytes() { return allBytes(*this); }
int64_t PadOp::getBytes() { return allBytes(*this); }
int64_t ConcatOp::getBytes() { return allBytes(*this); }
int64_t GatherGradOp::getBytes() { return allBytes(*this); }
int64_t ScatterElementsOp::getBytes() { return allBytes(*this); }
int64_t ScatterNDOp::getBytes() { return allBytes(*this); }
int64_t NonZeroOp::getBytes() { return allBytes(*this); }
int64_t MaskedScatterOp::getBytes() { return allBytes(*this); }
int64_t MaskedGatherOp::getBytes() { return allBytes(*this); }
int64_t ReduceOp::getBytes() { return allBytes(*this); }
int64_t ArgReduceOp::getBytes() { return allBytes(*this); }
int64_t CumsumOp::getBytes() { return allBytes(*this); }
int64_t PoolOp::getBytes() { return allBytes(*this); }
int64_t PoolGradOp::getBytes() { return allBytes(*this); }
int64_t SoftmaxOp::getBytes() { return allBytes(*this); }
int64_t LogSoftmaxOp::getBytes() { return allBytes(*this); }
int64_t LayerNormOp::getBytes() { return allBytes(*this); }
int64_t LayerNormGradOp::getBytes() { return allBytes(*this); }
int64_t RMSNormOp::getBytes() { return allBytes(*this); }
int64_t RMSNormGradOp::getBytes() { return allBytes(*this); }
int64_t AttentionOp::getBytes() { return allBytes(*this); }
int64_t AttentionGradOp::getBytes() { return allBytes(*this); }
int64_t RopeOp::getBytes() { return allBytes(*this); }
int64_t CrossEntropyOp::getBytes() { return allBytes(*this); }
int64_t CrossEntropyGradOp::getBytes() { return allBytes(*this); }
int64_t LabelWeightsOp::getBytes() { return allBytes(*this); }
