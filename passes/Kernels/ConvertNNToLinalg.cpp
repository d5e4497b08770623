//===- ConvertNNToLinalg.cpp - nn ops of layers to linalg and kern --------===//
//
// In: functions with `nn.layer`, one block of nn ops on static tensors. Out:
// the same functions of linalg.generic (elementwise, reductions), tensor
// reshapes, kern.matmul, kern.attention* (option) and kern.loops (the rest);
// unsigned element types are signless.
//
// The ops are visited once, in order; `Lowering` maps each nn value to what
// stands for it, and the nn ops are erased at the end.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Lowering.h"
#include "passes/Kernels/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CONVERTNNTOLINALGPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

template <typename... OpTys>
static LogicalResult lowerOneOf(Lowering &l, Operation *op) {
  return llvm::TypeSwitch<Operation *, LogicalResult>(op)
      .template Case<OpTys...>([&](auto typed) { return lower(l, typed); })
      .Default([](Operation *op) { return op->emitOpError("has no kernel"); });
}

static LogicalResult lowerOp(Lowering &l, Operation *op) {
  return lowerOneOf<
      nn::UnaryOp, nn::BinaryOp, nn::CompareOp, nn::SelectOp, nn::CastOp,
      nn::DropoutOp, nn::ConstantOp, nn::ReshapeOp, nn::TransposeOp,
      nn::BroadcastOp, nn::SliceOp, nn::PadOp, nn::ConcatOp, nn::GatherOp,
      nn::GatherGradOp, nn::GatherElementsOp, nn::ScatterElementsOp,
      nn::GatherNDOp, nn::ScatterNDOp, nn::MaskedScatterOp, nn::MaskedGatherOp,
      nn::ReduceOp, nn::ArgReduceOp, nn::CumsumOp, nn::PoolOp, nn::PoolGradOp,
      nn::SoftmaxOp, nn::LogSoftmaxOp, nn::LayerNormOp, nn::LayerNormGradOp,
      nn::RMSNormOp, nn::RMSNormGradOp, nn::RopeOp, nn::CrossEntropyOp,
      nn::CrossEntropyGradOp, nn::LabelWeightsOp, nn::MatmulOp, nn::ConvOp,
      nn::ConvGradInputOp, nn::ConvGradWeightOp, nn::AttentionOp,
      nn::AttentionGradOp>(l, op);
}

/// Gives unsigned arguments signless twins; the old ones stay until the end.
static void startArguments(Lowering &l, Block &block) {
  for (BlockArgument argument : llvm::to_vector(block.getArguments()))
    l.set(argument, argument);
  for (unsigned i = 0, e = block.getNumArguments(); i < e; ++i) {
    BlockArgument argument = block.getArgument(i);
    Type to = signless(argument.getType());
    if (to != argument.getType())
      l.set(argument, block.addArgument(to, argument.getLoc()));
  }
}

/// Puts the twins into the places of the arguments they stand for.
static void finishArguments(Lowering &l, Block &block, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    BlockArgument argument = block.getArgument(i);
    Value twin = l.get(argument);
    if (twin == argument)
      continue;
    argument.setType(twin.getType());
    twin.replaceAllUsesWith(argument);
  }
  while (block.getNumArguments() > count)
    block.eraseArgument(block.getNumArguments() - 1);
}

static LogicalResult lowerFunction(Lowering &l, func::FuncOp function) {
  Block &block = function.getBody().front();
  unsigned arguments = block.getNumArguments();
  startArguments(l, block);
  SmallVector<Operation *> ops;
  for (Operation &op : block.without_terminator())
    ops.push_back(&op);
  for (Operation *op : ops) {
    if (!isa<nn::NNDialect>(op->getDialect())) {
      for (Value result : op->getResults())
        l.set(result, result);
      continue;
    }
    for (Type type : op->getResultTypes())
      if (!cast<ShapedType>(type).hasStaticShape())
        return op->emitOpError("has a result of run-time shape, which has no "
                               "kernel");
    l.builder.setInsertionPoint(op);
    l.loc = op->getLoc();
    if (llvm::all_of(op->getResultTypes(), isEmpty)) {
      for (Value result : op->getResults())
        l.set(result, l.empty(shapeOf(result), elementOf(result)));
      continue;
    }
    if (failed(lowerOp(l, op)))
      return failure();
  }
  Operation *terminator = block.getTerminator();
  for (OpOperand &operand : terminator->getOpOperands())
    operand.set(l.get(operand.get()));
  for (Operation *op : llvm::reverse(ops))
    if (isa<nn::NNDialect>(op->getDialect()))
      op->erase();
  finishArguments(l, block, arguments);
  function.setType(FunctionType::get(function.getContext(),
                                     block.getArgumentTypes(),
                                     terminator->getOperandTypes()));
  return success();
}

/// Declares what run-time checks call.
static void declareIndexError(ModuleOp module) {
  if (module.lookupSymbol("mgq_index_error"))
    return;
  OpBuilder builder(module.getBodyRegion());
  Type i64 = builder.getI64Type();
  Type pointer = LLVM::LLVMPointerType::get(module.getContext());
  auto function =
      func::FuncOp::create(builder, module.getLoc(), "mgq_index_error",
                           builder.getFunctionType({pointer, i64, i64}, {}));
  function.setPrivate();
}

namespace {
struct ConvertNNToLinalgPass
    : mgq::kernels::impl::ConvertNNToLinalgPassBase<ConvertNNToLinalgPass> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    Lowering lowering(module, tiledAttention   ? AttentionForm::Tiled
                              : fusedAttention ? AttentionForm::Fused
                                               : AttentionForm::Products);
    declareIndexError(module);
    for (auto function : module.getOps<func::FuncOp>()) {
      if (!function->hasAttr(nn::kLayerAttr) || function.isExternal())
        continue;
      if (failed(lowerFunction(lowering, function)))
        return signalPassFailure();
    }
  }
};
} // namespace
