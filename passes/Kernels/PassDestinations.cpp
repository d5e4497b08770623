//===- PassDestinations.cpp - Results become destination arguments --------===//
//
// In: layer functions on tensors. Out: functions without results whose
// arguments are memrefs, operands first, then one destination per result;
// bodies still compute on tensors, between bufferization.to_tensor and
// bufferization.materialize_in_destination, so that one-shot-bufferize lets
// the op that computes a result write it there.
//
//   func @f(%x: tensor<4xf32>) -> tensor<4xf32>
// becomes
//   func @f(%x: memref<4xf32>, %out: memref<4xf32>)
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_PASSDESTINATIONSPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;

static MemRefType bufferType(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  // Nobody reads or writes it, and with other shapes of no elements LLVM
  // descriptors cannot be made.
  if (tensor.getNumElements() == 0)
    return MemRefType::get({0}, tensor.getElementType());
  return MemRefType::get(tensor.getShape(), tensor.getElementType());
}

/// Stores `value` into `destination`. A reshape at the end is done on the
/// destination, so that what computes the value can write it.
static void storeResult(OpBuilder &builder, Location loc, Value value,
                        Value destination) {
  while (true) {
    if (auto collapse = value.getDefiningOp<tensor::CollapseShapeOp>()) {
      destination = memref::ExpandShapeOp::create(
          builder, loc, bufferType(collapse.getSrcType()), destination,
          collapse.getReassociationIndices());
      value = collapse.getSrc();
    } else if (auto expand = value.getDefiningOp<tensor::ExpandShapeOp>()) {
      destination = memref::CollapseShapeOp::create(
          builder, loc, bufferType(expand.getSrcType()), destination,
          expand.getReassociationIndices());
      value = expand.getSrc();
    } else {
      break;
    }
  }
  auto store = bufferization::MaterializeInDestinationOp::create(
      builder, loc, TypeRange(), value, destination);
  store.setRestrict(true);
  store.setWritable(true);
}

/// Gives each use of a fresh or filled tensor one of its own. CSE has merged
/// equal ones; but a result that is computed in its destination starts from a
/// tensor of its own there, and two must not start from the same.
static void splitFreshTensors(func::FuncOp function) {
  auto split = [](Operation *op) {
    for (OpOperand &use : llvm::make_early_inc_range(
             llvm::drop_begin(op->getResult(0).getUses()))) {
      OpBuilder builder(op);
      use.set(builder.clone(*op)->getResult(0));
    }
  };
  SmallVector<Operation *> fills, empties;
  function.walk([&](linalg::FillOp op) { fills.push_back(op); });
  llvm::for_each(fills, split);
  function.walk([&](tensor::EmptyOp op) { empties.push_back(op); });
  llvm::for_each(empties, split);
}

static void rewriteFunction(func::FuncOp function) {
  splitFreshTensors(function);
  Block &block = function.getBody().front();
  OpBuilder builder = OpBuilder::atBlockBegin(&block);
  for (BlockArgument argument : block.getArguments()) {
    auto tensor = cast<RankedTensorType>(argument.getType());
    argument.setType(bufferType(tensor));
    if (tensor.getNumElements() == 0) {
      auto value = tensor::EmptyOp::create(builder, argument.getLoc(), tensor,
                                           ValueRange());
      argument.replaceAllUsesWith(value);
      continue;
    }
    auto value = bufferization::ToTensorOp::create(
        builder, argument.getLoc(), tensor, argument, /*restrict=*/true);
    argument.replaceAllUsesExcept(value, value);
  }
  Operation *terminator = block.getTerminator();
  builder.setInsertionPoint(terminator);
  for (Value result : terminator->getOperands()) {
    Value destination =
        block.addArgument(bufferType(result.getType()), terminator->getLoc());
    if (cast<RankedTensorType>(result.getType()).getNumElements() > 0)
      storeResult(builder, terminator->getLoc(), result, destination);
  }
  func::ReturnOp::create(builder, terminator->getLoc());
  terminator->erase();
  // What they say is about the graph, not about buffers.
  function.removeArgAttrsAttr();
  function.removeResAttrsAttr();
  function.setType(
      builder.getFunctionType(block.getArgumentTypes(), TypeRange()));
}

namespace {
struct PassDestinationsPass
    : mgq::kernels::impl::PassDestinationsPassBase<PassDestinationsPass> {
  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function->hasAttr(mgq::nn::kLayerAttr) && !function.isExternal())
        rewriteFunction(function);
  }
};
} // namespace
