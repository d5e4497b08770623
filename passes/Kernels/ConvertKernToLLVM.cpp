//===- ConvertKernToLLVM.cpp - Layer functions get the kernel ABI ---------===//
//
// In: layer functions and their loop nests on memrefs, branches instead of
// loops. Out: LLVM dialect. A nest takes bare pointers. A launch of one chunk
// is a call; one of more packs the operands into a struct on the stack and
// hands it to mgq_parallel_for with a small function that unpacks it and calls
// the nest for chunk i. A layer function becomes
//
//   llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr)
//
// where `args` is an array of pointers (runtime/include/rt.h, mgq_kernel), with
// `nn.args` (memref types in that order) and `nn.scratch_bytes`. All functions
// with a body name the CPU, its features and vector width.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"
#include "passes/Kernels/Target.h"

#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVM.h"
#include "mlir/Conversion/LLVMCommon/ConversionTarget.h"
#include "mlir/Conversion/LLVMCommon/Pattern.h"
#include "mlir/Conversion/LLVMCommon/TypeConverter.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/MemRefToLLVM/MemRefToLLVM.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CONVERTKERNTOLLVMPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

static constexpr StringLiteral kParallelFor = "mgq_parallel_for";
static constexpr StringLiteral kArgsAttr = "nn.args";

static Value constantI64(OpBuilder &builder, Location loc, int64_t value) {
  return LLVM::ConstantOp::create(builder, loc,
                                  builder.getI64IntegerAttr(value));
}

/// void mgq_parallel_for(body, context, count)
static void declareParallelFor(ModuleOp module) {
  if (module.lookupSymbol(kParallelFor))
    return;
  OpBuilder builder(module.getBodyRegion());
  Type pointer = LLVM::LLVMPointerType::get(module.getContext());
  auto type =
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(module.getContext()),
                                  {pointer, pointer, builder.getI64Type()});
  LLVM::LLVMFuncOp::create(builder, module.getLoc(), kParallelFor, type);
}

/// void name(context, i): unpacks the struct and calls the nest for chunk i.
static void buildChunkFunction(OpBuilder &builder, kern::LaunchOp op,
                               StringRef name, LLVM::LLVMStructType packed) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointAfter(op->getParentOfType<FunctionOpInterface>());
  Location loc = op.getLoc();
  Type pointer = LLVM::LLVMPointerType::get(builder.getContext());
  Type i64 = builder.getI64Type();
  auto voidType = LLVM::LLVMVoidType::get(builder.getContext());
  auto function = LLVM::LLVMFuncOp::create(
      builder, loc, name, LLVM::LLVMFunctionType::get(voidType, {pointer, i64}),
      LLVM::Linkage::Internal);
  Block *entry = function.addEntryBlock(builder);
  builder.setInsertionPointToStart(entry);
  SmallVector<Value> operands;
  for (auto [i, type] : llvm::enumerate(packed.getBody())) {
    Value address = LLVM::GEPOp::create(builder, loc, pointer, packed,
                                        entry->getArgument(0),
                                        ArrayRef<LLVM::GEPArg>{0, int32_t(i)});
    operands.push_back(LLVM::LoadOp::create(builder, loc, type, address));
  }
  Value chunk = constantI64(builder, loc, op.getChunk());
  Value size = constantI64(builder, loc, op.getSize());
  Value begin = LLVM::MulOp::create(builder, loc, entry->getArgument(1), chunk);
  Value end = LLVM::SMinOp::create(
      builder, loc, LLVM::AddOp::create(builder, loc, begin, chunk), size);
  operands.append({begin, end});
  LLVM::CallOp::create(builder, loc, TypeRange(), op.getCallee(), operands);
  LLVM::ReturnOp::create(builder, loc, ValueRange());
}

namespace {
struct LaunchLowering : ConvertOpToLLVMPattern<kern::LaunchOp> {
  using ConvertOpToLLVMPattern::ConvertOpToLLVMPattern;

  LogicalResult
  matchAndRewrite(kern::LaunchOp op, OpAdaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    SmallVector<Value> operands(getTypeConverter()->promoteOperands(
        loc, op.getInputs(), adaptor.getInputs(), rewriter,
        /*useBarePtrCallConv=*/true));
    int64_t chunks = (op.getSize() + op.getChunk() - 1) / op.getChunk();
    if (chunks <= 1) {
      operands.append({constantI64(rewriter, loc, 0),
                       constantI64(rewriter, loc, op.getSize())});
      LLVM::CallOp::create(rewriter, loc, TypeRange(), op.getCallee(),
                           operands);
      rewriter.eraseOp(op);
      return success();
    }
    auto packed = LLVM::LLVMStructType::getLiteral(
        rewriter.getContext(),
        llvm::to_vector(ValueRange(operands).getTypes()));
    std::string name = (op.getCallee() + ".chunk").str();
    buildChunkFunction(rewriter, op, name, packed);
    Type pointer = LLVM::LLVMPointerType::get(rewriter.getContext());
    Value context = LLVM::AllocaOp::create(rewriter, loc, pointer, packed,
                                           constantI64(rewriter, loc, 1));
    for (auto [i, value] : llvm::enumerate(operands)) {
      Value address =
          LLVM::GEPOp::create(rewriter, loc, pointer, packed, context,
                              ArrayRef<LLVM::GEPArg>{0, int32_t(i)});
      LLVM::StoreOp::create(rewriter, loc, value, address);
    }
    Value body = LLVM::AddressOfOp::create(rewriter, loc, pointer, name);
    LLVM::CallOp::create(
        rewriter, loc, TypeRange(), kParallelFor,
        ValueRange{body, context, constantI64(rewriter, loc, chunks)});
    rewriter.eraseOp(op);
    return success();
  }
};
} // namespace

/// Notes the memref types of a layer function's arguments; scratch is last.
static void recordArguments(func::FuncOp function) {
  SmallVector<Attribute> types;
  for (Type type : function.getArgumentTypes().drop_back())
    types.push_back(TypeAttr::get(type));
  function->setAttr(kArgsAttr, ArrayAttr::get(function.getContext(), types));
}

/// @f(pointers..., scratch) becomes @f(args, scratch).
static void packArguments(LLVM::LLVMFuncOp function) {
  Block &entry = function.getBody().front();
  OpBuilder builder = OpBuilder::atBlockBegin(&entry);
  Location loc = function.getLoc();
  Type pointer = LLVM::LLVMPointerType::get(function.getContext());
  unsigned count = entry.getNumArguments();
  Value packed = entry.insertArgument(0u, pointer, loc);
  for (unsigned i = 0; i + 1 < count; ++i) {
    Value address = LLVM::GEPOp::create(builder, loc, pointer, pointer, packed,
                                        ArrayRef<LLVM::GEPArg>{int32_t(i)});
    Value value = LLVM::LoadOp::create(builder, loc, pointer, address);
    entry.getArgument(i + 1).replaceAllUsesWith(value);
  }
  entry.eraseArguments(1, count - 1);
  function.setFunctionType(LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(function.getContext()), {pointer, pointer}));
  function.removeArgAttrsAttr();
  function.setVisibility(SymbolTable::Visibility::Public);
}

static void setTarget(LLVM::LLVMFuncOp function, const CpuTarget &target) {
  MLIRContext *context = function.getContext();
  function.setTargetCpu(target.cpu);
  if (!target.features.empty())
    function.setTargetFeaturesAttr(
        LLVM::TargetFeaturesAttr::get(context, target.features));
  function.setPreferVectorWidth(std::to_string(target.vectorBits));
}

namespace {
struct ConvertKernToLLVMPass
    : mgq::kernels::impl::ConvertKernToLLVMPassBase<ConvertKernToLLVMPass> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto target = resolveCpu(cpu);
    if (!target) {
      module.emitError(llvm::toString(target.takeError()));
      return signalPassFailure();
    }
    for (auto function : module.getOps<func::FuncOp>())
      if (function->hasAttr(nn::kLayerAttr) && !function.isExternal())
        recordArguments(function);
    declareParallelFor(module);
    if (failed(convert(module)))
      return signalPassFailure();
    for (auto function : module.getOps<LLVM::LLVMFuncOp>()) {
      if (function.isExternal())
        continue;
      if (function->hasAttr(nn::kLayerAttr)) {
        packArguments(function);
      } else if (function.isPrivate()) {
        // Nests are called once; inlined they would share one frame.
        function.setLinkage(LLVM::Linkage::Internal);
      }
      if (!function.getTargetCpu())
        setTarget(function, *target);
    }
    module->setAttr(kCpuAttr, StringAttr::get(&getContext(), cpu));
  }

  LogicalResult convert(ModuleOp module) {
    MLIRContext *context = &getContext();
    LowerToLLVMOptions options(context);
    options.useBarePtrCallConv = true;
    LLVMTypeConverter converter(context, options);
    RewritePatternSet patterns(context);
    patterns.add<LaunchLowering>(converter);
    arith::populateArithToLLVMConversionPatterns(converter, patterns);
    populateMathToLLVMConversionPatterns(converter, patterns,
                                         /*approximateLog1p=*/false);
    populateFinalizeMemRefToLLVMConversionPatterns(converter, patterns);
    cf::populateControlFlowToLLVMConversionPatterns(converter, patterns);
    populateFuncToLLVMConversionPatterns(converter, patterns);
    LLVMConversionTarget conversion(*context);
    conversion.addLegalOp<ModuleOp>();
    // Functions on tensors call kernels; all others must become code.
    conversion.addDynamicallyLegalOp<func::FuncOp>([](func::FuncOp function) {
      FunctionType type = function.getFunctionType();
      auto isTensor = [](Type part) { return isa<TensorType>(part); };
      return llvm::any_of(type.getInputs(), isTensor) ||
             llvm::any_of(type.getResults(), isTensor);
    });
    return applyPartialConversion(module, conversion, std::move(patterns));
  }
};
} // namespace
