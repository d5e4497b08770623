//===- PlanScratch.cpp - One scratch buffer per layer function ------------===//
//
// In: layer functions whose top level is straight-line code with memref.alloc
// of static size. Out: the function has one more argument, a memref of bytes;
// each buffer is a view of it at a fixed offset; `nn.scratch_bytes` is its
// size.
//
// A buffer lives from its allocation to the last op that uses it or a view of
// it. Largest buffers are placed first, each at the lowest offset where it
// meets no buffer that lives at the same time. Offsets are multiples of 64.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

#include "mlir/Interfaces/ViewLikeInterface.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_PLANSCRATCHPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;

static constexpr int64_t kAlignment = 64;

namespace {
/// A buffer and when it lives, in positions of top-level ops.
struct Buffer {
  memref::AllocOp alloc;
  int64_t bytes;
  int64_t first, last;
  int64_t offset = 0;
};
} // namespace

static int64_t alignUp(int64_t value) {
  return (value + kAlignment - 1) / kAlignment * kAlignment;
}

static int64_t bytesOf(MemRefType type) {
  int64_t bits = std::max(8u, type.getElementTypeBitWidth());
  if (type.getElementType().isIndex())
    bits = 64;
  return alignUp(type.getNumElements() * bits / 8);
}

/// Position of the last top-level op that touches `value` or a view of it.
static int64_t lastUse(Value value, Block &block,
                       const llvm::DenseMap<Operation *, int64_t> &position) {
  int64_t last = position.lookup(value.getDefiningOp());
  for (Operation *user : value.getUsers()) {
    Operation *top = block.findAncestorOpInBlock(*user);
    last = std::max(last, position.lookup(top));
    if (isa<ViewLikeOpInterface>(user))
      for (Value view : user->getResults())
        last = std::max(last, lastUse(view, block, position));
  }
  return last;
}

static void place(MutableArrayRef<Buffer> buffers) {
  SmallVector<Buffer *> order;
  for (Buffer &buffer : buffers)
    order.push_back(&buffer);
  llvm::sort(order, [](Buffer *a, Buffer *b) {
    return std::pair(-a->bytes, a->first) < std::pair(-b->bytes, b->first);
  });
  SmallVector<Buffer *> placed;
  for (Buffer *buffer : order) {
    // Neighbours in time by offset: the first gap that is wide enough.
    llvm::sort(placed, [](Buffer *a, Buffer *b) {
      return std::pair(a->offset, a->first) < std::pair(b->offset, b->first);
    });
    int64_t offset = 0;
    for (Buffer *other : placed) {
      bool together =
          buffer->first <= other->last && other->first <= buffer->last;
      if (!together)
        continue;
      if (offset + buffer->bytes <= other->offset)
        break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    buffer->offset = offset;
    placed.push_back(buffer);
  }
}

static LogicalResult planFunction(func::FuncOp function) {
  Block &block = function.getBody().front();
  llvm::DenseMap<Operation *, int64_t> position;
  for (auto [i, op] : llvm::enumerate(block))
    position[&op] = i;
  SmallVector<Buffer> buffers;
  for (auto alloc : block.getOps<memref::AllocOp>()) {
    MemRefType type = alloc.getType();
    if (!type.hasStaticShape() || !type.getLayout().isIdentity())
      return alloc.emitOpError("has no static size");
    buffers.push_back({alloc, bytesOf(type), position[alloc],
                       lastUse(alloc, block, position)});
  }
  place(buffers);

  int64_t total = 0;
  for (Buffer &buffer : buffers)
    total = std::max(total, buffer.offset + buffer.bytes);
  OpBuilder builder(function.getContext());
  auto scratchType = MemRefType::get({total}, builder.getI8Type());
  Value scratch = block.addArgument(scratchType, function.getLoc());
  for (Buffer &buffer : buffers) {
    builder.setInsertionPoint(buffer.alloc);
    Value offset = arith::ConstantIndexOp::create(
        builder, buffer.alloc.getLoc(), buffer.offset);
    Value view = memref::ViewOp::create(builder, buffer.alloc.getLoc(),
                                        buffer.alloc.getType(), scratch, offset,
                                        ValueRange());
    for (Operation *user : llvm::to_vector(buffer.alloc->getUsers()))
      if (isa<memref::DeallocOp>(user))
        user->erase();
    buffer.alloc.replaceAllUsesWith(view);
    buffer.alloc.erase();
  }
  function->setAttr("nn.scratch_bytes", builder.getI64IntegerAttr(total));
  function.setType(
      builder.getFunctionType(block.getArgumentTypes(), TypeRange()));
  return success();
}

namespace {
struct PlanScratchPass
    : mgq::kernels::impl::PlanScratchPassBase<PlanScratchPass> {
  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function->hasAttr(nn::kLayerAttr) && !function.isExternal() &&
          failed(planFunction(function)))
        return signalPassFailure();
  }
};
} // namespace
