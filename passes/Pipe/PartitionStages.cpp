//===- PartitionStages.cpp - Calls get stages -----------------------------===//
//
// In: @train, @model and @count call layer functions. Out: each call carries
// `pipe.stage`.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_PARTITIONSTAGESPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

namespace {
struct PartitionStagesPass
    : mgq::pipe::impl::PartitionStagesPassBase<PartitionStagesPass> {
  using PartitionStagesPassBase::PartitionStagesPassBase;

  void runOnOperation() override {
    if (stages != 1) {
      getOperation().emitError("not supported yet: ")
          << stages.getValue() << " stages; supported: 1";
      return signalPassFailure();
    }
    auto stage = IntegerAttr::get(IntegerType::get(&getContext(), 64), 0);
    for (func::FuncOp function : getOperation().getOps<func::FuncOp>())
      if (!function.isDeclaration() && !function->hasAttr(nn::kLayerAttr))
        function.walk(
            [&](func::CallOp call) { call->setAttr(kStageAttr, stage); });
  }
};
} // namespace
