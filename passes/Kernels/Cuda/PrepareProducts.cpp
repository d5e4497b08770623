//===- PrepareProducts.cpp - Operands as cuBLASLt takes them --------------===//
//
// In: kern.matmul on memrefs. Out: those that cuBLASLt can compute have
// operands of one type in buffers that are arguments or allocated:
//
//   kern.matmul ins(%x, %w : memref<4x8xf32>, memref<8x16xbf16>) ...
//
// becomes
//
//   %wide = memref.alloc() : memref<8x16xf32>
//   linalg.generic (extf) ins(%w) outs(%wide)
//   kern.matmul ins(%x, %wide) ...
//
// An addend and a bias have the result's type already (cuda-fuse-epilogues). A
// constant has no device address on the host side, so it is copied into a
// buffer; constants of attention are, too.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Passes.h"
#include "passes/Kernels/Cuda/Products.h"

#include "mlir/Interfaces/ViewLikeInterface.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDAPREPAREPRODUCTSPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;

/// Whether rows are contiguous and overlap neither each other nor what another
/// matrix of the batch has.
static bool hasLibraryLayout(Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)) ||
      llvm::any_of(strides, ShapedType::isDynamic))
    return false;
  ArrayRef<int64_t> shape = type.getShape();
  size_t rank = shape.size();
  bool contiguous = strides[rank - 1] == 1 || shape[rank - 1] == 1;
  bool apart = shape[rank - 2] == 1 || strides[rank - 2] >= shape[rank - 1];
  return contiguous && apart;
}

static Type elementOf(Value buffer) {
  return cast<MemRefType>(buffer.getType()).getElementType();
}

/// Whether a bias is contiguous and begins where cuBLASLt's epilogues may read
/// 16 bytes at once.
static bool hasBiasLayout(Value buffer) {
  SmallVector<int64_t> strides;
  int64_t offset;
  auto type = cast<MemRefType>(buffer.getType());
  return succeeded(type.getStridesAndOffset(strides, offset)) &&
         !ShapedType::isDynamic(offset) && strides.front() == 1 &&
         offset * type.getElementTypeBitWidth() % 128 == 0;
}

bool kernels::isLibraryProduct(kern::MatmulOp op) {
  for (Value operand : {op.getLhs(), op.getRhs(), op.getAddend(), op.getInit()})
    if (operand &&
        (!isa<FloatType>(elementOf(operand)) || !hasLibraryLayout(operand)))
      return false;
  if (op.getBias() && !hasBiasLayout(op.getBias()))
    return false;
  // A narrow result is of narrow factors.
  Type result = elementOf(op.getInit());
  return result.isF32() || result.isF64() ||
         (elementOf(op.getLhs()) == result && elementOf(op.getRhs()) == result);
}

static bool isConstant(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewLikeOpInterface>())
    buffer = view.getViewSource();
  return isa_and_nonnull<memref::GetGlobalOp>(buffer.getDefiningOp());
}

/// A buffer with the elements of `from`, as `element`.
static Value copyOf(OpBuilder &b, Location loc, Value from, Type element) {
  auto type = cast<MemRefType>(from.getType());
  Value to = memref::AllocOp::create(b, loc,
                                     MemRefType::get(type.getShape(), element));
  if (type.getElementType() == element) {
    memref::CopyOp::create(b, loc, from, to);
    return to;
  }
  AffineMap map = b.getMultiDimIdentityMap(type.getRank());
  SmallVector<utils::IteratorType> iterators(type.getRank(),
                                             utils::IteratorType::parallel);
  linalg::GenericOp::create(
      b, loc, TypeRange(), ValueRange(from), ValueRange(to),
      ArrayRef<AffineMap>{map, map}, iterators,
      [&](OpBuilder &nested, Location, ValueRange arguments) {
        Value wide = arith::ExtFOp::create(nested, loc, element, arguments[0]);
        linalg::YieldOp::create(nested, loc, wide);
      });
  return to;
}

static void prepare(kern::MatmulOp op) {
  OpBuilder b(op);
  Type left = elementOf(op.getLhs()), right = elementOf(op.getRhs());
  // Different narrow types meet in the type of the sums.
  Type common = left == right ? left : elementOf(op.getInit());
  for (OpOperand *operand : {&op.getLhsMutable(), &op.getRhsMutable()})
    if (elementOf(operand->get()) != common || isConstant(operand->get()))
      operand->set(copyOf(b, op.getLoc(), operand->get(), common));
  for (MutableOperandRange range : {op.getAddendMutable(), op.getBiasMutable()})
    for (OpOperand &operand : range)
      if (isConstant(operand.get()))
        operand.set(
            copyOf(b, op.getLoc(), operand.get(), elementOf(operand.get())));
}

/// Constants that attention reads.
static void prepareAttention(Operation *op) {
  OpBuilder b(op);
  for (OpOperand &operand : op->getOpOperands())
    if (isConstant(operand.get()))
      operand.set(
          copyOf(b, op->getLoc(), operand.get(),
                 cast<MemRefType>(operand.get().getType()).getElementType()));
}

namespace {
struct CudaPrepareProductsPass
    : kernels::impl::CudaPrepareProductsPassBase<CudaPrepareProductsPass> {
  void runOnOperation() override {
    getOperation().walk([](Operation *op) {
      auto product = dyn_cast<kern::MatmulOp>(op);
      if (product && kernels::isLibraryProduct(product))
        prepare(product);
      if (isa<kern::AttentionOp, kern::AttentionGradOp>(op))
        prepareAttention(op);
    });
  }
};
} // namespace
