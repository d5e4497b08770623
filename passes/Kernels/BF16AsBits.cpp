//===- BF16AsBits.cpp - Scalars of bf16 become integers -------------------===//
//
// In: LLVM dialect after `kern-expand-math`, where scalars of bf16 are only
// moved or taken apart as bits. Out: they are i16. LLVM keeps a bf16 that lives
// across blocks as f32 and converts it back by a call of __truncsfbf2, which
// libgcc 12 lacks, on CPUs without AVX512-BF16; integers it leaves alone.
//
// Vectors of bf16 (generated products) stay.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_BF16ASBITSPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;

/// Whether an op means the same on the bits.
static bool movesBits(Operation *op) {
  return isa<LLVM::LoadOp, LLVM::StoreOp, LLVM::BitcastOp, LLVM::SelectOp,
             LLVM::BrOp, LLVM::CondBrOp, LLVM::CallOp, LLVM::ConstantOp,
             LLVM::ReturnOp, LLVM::UndefOp, LLVM::PoisonOp>(op);
}

static bool isBF16(Type type) { return type.isBF16(); }

/// The first op that computes with a scalar of bf16.
static Operation *findArithmetic(ModuleOp module) {
  Operation *found = nullptr;
  module.walk([&](Operation *op) {
    bool touches = llvm::any_of(op->getOperandTypes(), isBF16) ||
                   llvm::any_of(op->getResultTypes(), isBF16);
    if (!touches || movesBits(op))
      return WalkResult::advance();
    found = op;
    return WalkResult::interrupt();
  });
  return found;
}

static void rewriteConstant(LLVM::ConstantOp op) {
  auto value = dyn_cast<FloatAttr>(op.getValue());
  if (!value || !value.getType().isBF16())
    return;
  Type i16 = IntegerType::get(op.getContext(), 16);
  op.setValueAttr(IntegerAttr::get(i16, value.getValue().bitcastToAPInt()));
}

static void rewriteFunction(LLVM::LLVMFuncOp function) {
  Type i16 = IntegerType::get(function.getContext(), 16);
  auto bits = [&](Type type) { return isBF16(type) ? i16 : type; };
  LLVM::LLVMFunctionType type = function.getFunctionType();
  function.setFunctionType(LLVM::LLVMFunctionType::get(
      bits(type.getReturnType()), llvm::map_to_vector(type.getParams(), bits),
      type.isVarArg()));
  for (Block &block : function.getBody())
    for (BlockArgument argument : block.getArguments())
      argument.setType(bits(argument.getType()));
  function.walk([&](Operation *op) {
    for (Value result : op->getResults())
      result.setType(bits(result.getType()));
    if (auto constant = dyn_cast<LLVM::ConstantOp>(op))
      rewriteConstant(constant);
  });
  function.walk([](LLVM::BitcastOp op) {
    if (op.getArg().getType() != op.getType())
      return;
    op.replaceAllUsesWith(op.getArg());
    op.erase();
  });
}

namespace {
struct BF16AsBitsPass : mgq::kernels::impl::BF16AsBitsPassBase<BF16AsBitsPass> {
  void runOnOperation() override {
    if (Operation *op = findArithmetic(getOperation())) {
      op->emitOpError("computes with bf16 after kern-expand-math");
      return signalPassFailure();
    }
    for (auto function : getOperation().getOps<LLVM::LLVMFuncOp>())
      rewriteFunction(function);
  }
};
} // namespace
