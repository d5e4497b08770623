//===- TileAttention.cpp - Attention gets its kernels ---------------------===//
//
// In: kern.attention and kern.attention_grad on buffers, between the launches
// of a layer function. Out: kern.device_attention, which names kernels of
// gpu.module @cuda, and has scratch for the statistics of rows:
//
//   kern.attention_grad ins(%q, %k, %v, %o, %do) outs(%dq, %dk, %dv)
//
// becomes
//
//   %sums = memref.alloc() : memref<2x8x512xf32>
//   %stats = memref.alloc() : memref<2x2x8x512xf32>
//   kern.device_attention [@cuda::@attention_statistics_0, ...] on [128, ...]
//     (%q, %k, %v, %o backward %stats, %sums, %do, %dq, %dk, %dv)
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/AttentionKernels.h"
#include "passes/Kernels/Cuda/Passes.h"
#include "runtime/include/rt_cuda.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDATILEATTENTIONPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

static bool hasStaticLayout(Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  return type.hasStaticShape() &&
         succeeded(type.getStridesAndOffset(strides, offset)) &&
         !ShapedType::isDynamic(offset) &&
         llvm::none_of(strides, ShapedType::isDynamic);
}

static Type elementOfBuffer(Value buffer) {
  return cast<MemRefType>(buffer.getType()).getElementType();
}

/// Whether cuDNN takes such an attention: all tensors have one narrow type.
static bool mayUseLibrary(ArrayRef<Value> tensors, double softcap) {
  Type type = elementOfBuffer(tensors[MGQ_ATTENTION_Q]);
  return (type.isF16() || type.isBF16()) && softcap == 0 &&
         llvm::all_of(tensors, [&](Value tensor) {
           return !tensor || elementOfBuffer(tensor) == type;
         });
}

namespace {
/// Replaces the ops of a module.
class Tiler {
public:
  explicit Tiler(ModuleOp module) : kernels(module) {}

  LogicalResult replace(kern::AttentionOp op);
  LogicalResult replace(kern::AttentionGradOp op);

private:
  template <typename OpTy>
  LogicalResult replace(OpTy op, ArrayRef<Value> tensors, bool isLibrarys,
                        ArrayRef<AttentionKernel> found);
  AttentionKernels kernels;
};
} // namespace

template <typename OpTy>
static AttentionTerms termsOf(OpTy op) {
  return {op.getScale().convertToDouble(), op.getSoftcap().convertToDouble(),
          op.getCausal(), op.getCausalFromEnd()};
}

static LogicalResult checkLayouts(Operation *op) {
  for (Value operand : op->getOperands())
    if (!hasStaticLayout(operand))
      return op->emitOpError("has an operand of type ")
             << operand.getType() << ", expected a static layout";
  return success();
}

template <typename OpTy>
LogicalResult Tiler::replace(OpTy op, ArrayRef<Value> tensors, bool isLibrarys,
                             ArrayRef<AttentionKernel> found) {
  OpBuilder b(op);
  SmallVector<Attribute> names;
  SmallVector<int64_t> blocks;
  for (const AttentionKernel &kernel : found) {
    gpu::GPUFuncOp function = kernel.function;
    names.push_back(
        SymbolRefAttr::get(b.getStringAttr(kCudaModule),
                           {FlatSymbolRefAttr::get(function.getNameAttr())}));
    blocks.push_back(kernel.blocks);
  }
  SmallVector<Value> backward;
  for (Value tensor : tensors.drop_front(MGQ_ATTENTION_RESULT + 1))
    if (tensor)
      backward.push_back(tensor);
  kern::DeviceAttentionOp::create(
      b, op.getLoc(), tensors[MGQ_ATTENTION_Q], tensors[MGQ_ATTENTION_K],
      tensors[MGQ_ATTENTION_V], tensors[MGQ_ATTENTION_BIAS],
      tensors[MGQ_ATTENTION_RESULT], backward, b.getArrayAttr(names),
      b.getDenseI64ArrayAttr(blocks), op.getScaleAttr(), op.getCausalAttr(),
      op.getCausalFromEndAttr(), isLibrarys ? b.getUnitAttr() : UnitAttr());
  op->erase();
  return success();
}

LogicalResult Tiler::replace(kern::AttentionOp op) {
  if (failed(checkLayouts(op)))
    return failure();
  Value tensors[] = {op.getQ(), op.getK(), op.getV(), op.getMask(),
                     op.getInit()};
  AttentionTerms terms = termsOf(op);
  return replace(op, tensors, mayUseLibrary(tensors, terms.softcap),
                 kernels.forward(tensors, terms));
}

LogicalResult Tiler::replace(kern::AttentionGradOp op) {
  if (failed(checkLayouts(op)))
    return failure();
  SmallVector<Value> tensors(MGQ_ATTENTION_TENSORS);
  tensors[MGQ_ATTENTION_Q] = op.getQ();
  tensors[MGQ_ATTENTION_K] = op.getK();
  tensors[MGQ_ATTENTION_V] = op.getV();
  tensors[MGQ_ATTENTION_BIAS] = op.getMask();
  tensors[MGQ_ATTENTION_RESULT] = op.getResult();
  tensors[MGQ_ATTENTION_GRAD] = op.getGrad();
  for (auto [i, init] : llvm::enumerate(op.getInits()))
    tensors[MGQ_ATTENTION_GRAD_Q + i] = init;
  AttentionTerms terms = termsOf(op);
  bool isLibrarys = mayUseLibrary(tensors, terms.softcap);
  OpBuilder b(op);
  auto shape = cast<MemRefType>(op.getResult().getType()).getShape();
  auto allocate = [&](ArrayRef<int64_t> shape, Type element) -> Value {
    return memref::AllocOp::create(b, op.getLoc(),
                                   MemRefType::get(shape, element));
  };
  tensors[MGQ_ATTENTION_SUMS] = allocate(shape.drop_back(), b.getF32Type());
  SmallVector<int64_t> twice{2};
  llvm::append_range(twice, shape.drop_back());
  tensors[MGQ_ATTENTION_STATS] = allocate(twice, b.getF32Type());
  if (isLibrarys)
    tensors[MGQ_ATTENTION_SPARE] =
        allocate(shape, elementOfBuffer(op.getResult()));
  return replace(op, tensors, isLibrarys, kernels.backward(tensors, terms));
}

namespace {
struct CudaTileAttentionPass
    : mgq::kernels::impl::CudaTileAttentionPassBase<CudaTileAttentionPass> {
  void runOnOperation() override {
    SmallVector<Operation *> ops;
    getOperation().walk([&](Operation *op) {
      if (isa<kern::AttentionOp, kern::AttentionGradOp>(op))
        ops.push_back(op);
    });
    if (ops.empty())
      return;
    Tiler tiler(getOperation());
    for (Operation *op : ops) {
      auto forward = dyn_cast<kern::AttentionOp>(op);
      if (failed(forward ? tiler.replace(forward)
                         : tiler.replace(cast<kern::AttentionGradOp>(op))))
        return signalPassFailure();
    }
  }
};
} // namespace
