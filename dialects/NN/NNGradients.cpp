//===- NNGradients.cpp - Vector-Jacobian products of nn ops ---------------===//

#include "dialects/NN/NN.h"

using namespace mlir;
using namespace mgq::nn;

LogicalResult UnaryOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult BinaryOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult SelectOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult CastOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult MatmulOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult ConvOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult ConvGradInputOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult ReshapeOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult TransposeOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult BroadcastOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult SliceOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult PadOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult ConcatOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult GatherOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult GatherElementsOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult ScatterElementsOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult GatherNDOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult ScatterNDOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult MaskedScatterOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult MaskedGatherOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult ReduceOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult CumsumOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult PoolOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult SoftmaxOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult LogSoftmaxOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult LayerNormOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult RMSNormOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult AttentionOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult RopeOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
LogicalResult CrossEntropyOp::buildGradient(OpBuilder &, ValueRange, const llvm::BitVector &, MutableArrayRef<Value>) { return failure(); }
