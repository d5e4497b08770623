//===- CheckStatic.cpp - Every shape is known
//-------------------------------===//
//
// Closes `simplify`: no type has a dynamic dimension, and the ops that only
// carry masked_scatter from the importer are gone. One error lists what is
// left.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Passes.h"

namespace mgq::nn {
#define GEN_PASS_DEF_CHECKSTATICPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq::nn;

/// What a user knows of `op` that makes a size depend on data.
static StringRef onnxName(Operation *op) {
  if (isa<NonZeroOp>(op))
    return "NonZero";
  if (isa<ShapeOp>(op))
    return "Shape";
  if (isa<DynamicSliceOp>(op))
    return "Slice";
  return op->getName().stripDialect();
}

/// Whether the size of a result of `op` depends on data.
static bool isDynamic(Operation *op) {
  return isa<NonZeroOp, ShapeOp, DynamicSliceOp>(op) ||
         llvm::any_of(op->getResultTypes(), [](Type type) {
           auto shaped = dyn_cast<ShapedType>(type);
           return shaped && !shaped.hasStaticShape();
         });
}

/// Name of the node that `op` came from, if it has one.
static std::string nodeName(Operation *op) {
  auto name = dyn_cast<NameLoc>(op->getLoc());
  return name ? (" '" + name.getName().getValue() + "'").str() : "";
}

/// Reports all ops whose sizes depend on data; the first is at fault.
static LogicalResult checkStatic(ModuleOp module) {
  SmallVector<Operation *> dynamic;
  module.walk([&](Operation *op) {
    if (isDynamic(op))
      dynamic.push_back(op);
  });
  if (dynamic.empty())
    return success();
  constexpr size_t kListed = 5;
  InFlightDiagnostic diag =
      emitError(dynamic.front()->getLoc(), "not supported yet: ")
      << onnxName(dynamic.front()) << nodeName(dynamic.front())
      << " makes a size depend on data; supported: NonZero of a mask whose "
         "elements ScatterND replaces (torch.masked_scatter)";
  for (Operation *op : ArrayRef(dynamic).drop_front().take_front(kListed))
    diag.attachNote(op->getLoc()) << "so does " << onnxName(op) << nodeName(op);
  if (dynamic.size() > kListed + 1)
    diag.attachNote(dynamic[kListed + 1]->getLoc())
        << "and " << dynamic.size() - kListed - 1 << " more";
  return diag;
}

namespace {
struct CheckStaticPass : mgq::nn::impl::CheckStaticPassBase<CheckStaticPass> {
  void runOnOperation() override {
    if (failed(checkStatic(getOperation())))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace
