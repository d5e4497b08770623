//===- ExpandMath.cpp - Math that libdevice has no exact form of ----------===//
//
// In: kernels. Out: math.sqrt is LLVM's intrinsic, which is rounded correctly;
// libdevice's is an approximation unless its flags say otherwise.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Passes.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDAEXPANDMATHPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;

namespace {
struct CudaExpandMathPass
    : mgq::kernels::impl::CudaExpandMathPassBase<CudaExpandMathPass> {
  void runOnOperation() override {
    SmallVector<math::SqrtOp> roots;
    getOperation().walk([&](math::SqrtOp op) { roots.push_back(op); });
    for (math::SqrtOp op : roots) {
      OpBuilder b(op);
      Type type = op.getType();
      // convert-gpu-to-nvvm would make the op llvm.intr.sqrt libdevice's.
      auto name =
          b.getStringAttr(type.isF64() ? "llvm.sqrt.f64" : "llvm.sqrt.f32");
      auto root = LLVM::CallIntrinsicOp::create(b, op.getLoc(), type, name,
                                                op.getOperand());
      op.replaceAllUsesWith(root.getResults());
      op.erase();
    }
  }
};
} // namespace
