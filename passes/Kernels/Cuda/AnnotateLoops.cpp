//===- AnnotateLoops.cpp - How loops of kernels are to be unrolled --------===//
//
// In: kernels of LLVM ops, whose branches back to the start of a loop have what
// scf.for said of it as an attribute (llvm.loop_annotation) that translation to
// LLVM IR does not read. Out: it stands where translation reads it.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Passes.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDAANNOTATELOOPSPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;

namespace {
struct CudaAnnotateLoopsPass
    : mgq::kernels::impl::CudaAnnotateLoopsPassBase<CudaAnnotateLoopsPass> {
  void runOnOperation() override {
    getOperation().walk([&](Operation *op) {
      auto annotation = op->getAttrOfType<LLVM::LoopAnnotationAttr>(
          mgq::kernels::kLoopAnnotationAttr);
      if (!annotation)
        return;
      if (auto branch = dyn_cast<LLVM::BrOp>(op))
        branch.setLoopAnnotationAttr(annotation);
      else if (auto branch = dyn_cast<LLVM::CondBrOp>(op))
        branch.setLoopAnnotationAttr(annotation);
      else
        return;
      op->removeDiscardableAttr(mgq::kernels::kLoopAnnotationAttr);
    });
  }
};
} // namespace
