//===- BoundInputs.cpp - Which integers an input may hold -----------------===//
//
// In: @model. Out: an integer input whose elements index a table or are labels
// carries `nn.limit` (values lie in [0, limit)) and, for labels, `nn.ignore`
// (a value that is also fine). The runtime checks them as it reads the data, so
// that a bad token id is reported by record and not by node.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Passes.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mgq::nn {
#define GEN_PASS_DEF_BOUNDINPUTSPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq::nn;

namespace {
struct Bounds {
  int64_t limit = 0; // 0: none
  std::optional<int64_t> ignore;
  /// Two label uses that ignore different values, or a table and a label use:
  /// no one set of values is right.
  bool conflict = false;

  void add(int64_t size, std::optional<int64_t> ignored) {
    if (limit != 0 && ignore != ignored)
      conflict = true;
    limit = limit == 0 ? size : std::min(limit, size);
    ignore = ignored;
  }
};
} // namespace

/// Collects the uses of `value` whose elements are elements of the input.
static void collect(Value value, Bounds &bounds) {
  for (OpOperand &use : value.getUses()) {
    llvm::TypeSwitch<Operation *>(use.getOwner())
        .Case<ReshapeOp, TransposeOp, SliceOp, BroadcastOp, PadOp>(
            [&](Operation *op) {
              if (use.getOperandNumber() == 0)
                collect(op->getResult(0), bounds);
            })
        .Case<CastOp>([&](CastOp op) {
          if (isa<IntegerType>(op.getResult().getType().getElementType()) &&
              !op.getResult().getType().getElementType().isInteger(1))
            collect(op.getResult(), bounds);
        })
        .Case<GatherOp>([&](GatherOp op) {
          if (use.get() == op.getIndices())
            bounds.add(op.getInput().getType().getDimSize(op.getAxis()),
                       std::nullopt);
        })
        .Case<CrossEntropyOp>([&](CrossEntropyOp op) {
          bounds.add(op.getLogits().getType().getDimSize(1),
                     op.getIgnoreIndex());
        });
  }
}

namespace {
struct BoundInputsPass : mgq::nn::impl::BoundInputsPassBase<BoundInputsPass> {
  void runOnOperation() override {
    auto model = getOperation().lookupSymbol<func::FuncOp>("model");
    if (!model)
      return;
    Builder builder(&getContext());
    for (BlockArgument arg : model.getArguments()) {
      if (!isa<IntegerType>(getElementTypeOrSelf(arg.getType())))
        continue;
      Bounds bounds;
      collect(arg, bounds);
      if (bounds.limit == 0 || bounds.conflict)
        continue;
      unsigned i = arg.getArgNumber();
      model.setArgAttr(i, "nn.limit", builder.getI64IntegerAttr(bounds.limit));
      if (bounds.ignore)
        model.setArgAttr(i, "nn.ignore",
                         builder.getI64IntegerAttr(*bounds.ignore));
    }
  }
};
} // namespace
