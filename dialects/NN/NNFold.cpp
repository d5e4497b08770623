//===- NNFold.cpp - Constant folding of nn ops ----------------------------===//

#include "dialects/NN/NN.h"

using namespace mlir;
using namespace mgq::nn;

bool mgq::nn::isFoldableSize(ShapedType) { return false; }

OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }
OpFoldResult UnaryOp::fold(FoldAdaptor) { return {}; }
OpFoldResult BinaryOp::fold(FoldAdaptor) { return {}; }
OpFoldResult CompareOp::fold(FoldAdaptor) { return {}; }
OpFoldResult SelectOp::fold(FoldAdaptor) { return {}; }
OpFoldResult CastOp::fold(FoldAdaptor) { return {}; }
OpFoldResult ReshapeOp::fold(FoldAdaptor) { return {}; }
OpFoldResult TransposeOp::fold(FoldAdaptor) { return {}; }
OpFoldResult BroadcastOp::fold(FoldAdaptor) { return {}; }
OpFoldResult SliceOp::fold(FoldAdaptor) { return {}; }
OpFoldResult ConcatOp::fold(FoldAdaptor) { return {}; }
OpFoldResult GatherOp::fold(FoldAdaptor) { return {}; }
OpFoldResult GatherNDOp::fold(FoldAdaptor) { return {}; }
OpFoldResult NonZeroOp::fold(FoldAdaptor) { return {}; }
OpFoldResult ShapeOp::fold(FoldAdaptor) { return {}; }
OpFoldResult ReduceOp::fold(FoldAdaptor) { return {}; }
OpFoldResult CumsumOp::fold(FoldAdaptor) { return {}; }
