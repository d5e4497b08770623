//===- Pipeline.cpp - The order of passes to CPU code ---------------------===//

#include "passes/Kernels/Pipeline.h"
#include "passes/Kernels/Passes.h"
#include "passes/Kernels/Target.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Bufferization/Transforms/Passes.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mgq::kernels;

void mgq::kernels::buildTensorPipeline(OpPassManager &passes,
                                       AttentionForm attention) {
  passes.addPass(createSinkCastsPass());
  ConvertNNToLinalgPassOptions convert;
  convert.fusedAttention = attention == AttentionForm::Fused;
  convert.tiledAttention = attention == AttentionForm::Tiled;
  passes.addPass(createConvertNNToLinalgPass(convert));
  // Equal subexpressions become one value before fusion counts users.
  passes.addPass(createCSEPass());
  passes.addPass(createFuseElementwisePass());
  passes.addPass(createCSEPass());
}

void mgq::kernels::buildBufferPipeline(OpPassManager &passes) {
  passes.addPass(createPassDestinationsPass());
  // Results are computed in place of their destinations, not copied there.
  passes.addPass(bufferization::createEmptyTensorEliminationPass());
  bufferization::OneShotBufferizePassOptions bufferize;
  passes.addPass(bufferization::createOneShotBufferizePass(bufferize));
  passes.addPass(createCanonicalizerPass());
  passes.addPass(createCSEPass());
}

/// The family of generated kernels; an unknown CPU is reported at the end.
static std::string familyOf(StringRef cpu) {
  auto target = resolveCpu(cpu);
  if (target)
    return target->family;
  llvm::consumeError(target.takeError());
  return "x86-64-v3";
}

void mgq::kernels::buildCpuKernelPipeline(OpPassManager &passes,
                                          const CpuOptions &options) {
  buildTensorPipeline(passes, options.fusedAttention ? AttentionForm::Fused
                                                     : AttentionForm::Products);
  buildBufferPipeline(passes);
  // Products of f32 are calls of generated kernels; loops take the others.
  LowerMatmulPassOptions matmul;
  matmul.cpu = familyOf(options.cpu);
  passes.addPass(createLowerMatmulPass(matmul));
  passes.addPass(createLowerLoopsPass());
  passes.addPass(createOutlinePass());
  passes.addPass(createPlanScratchPass());
  if (options.optimizer)
    passes.addPass(createAddOptimizerPass());
  // Invariant address arithmetic leaves the inner loops.
  passes.addPass(createCanonicalizerPass());
  passes.addPass(createLoopInvariantCodeMotionPass());
  passes.addPass(createCSEPass());
  passes.addPass(createExpandMathPass());
  // Views become offsets before loops become branches.
  passes.addPass(memref::createExpandStridedMetadataPass());
  passes.addPass(createLowerAffinePass());
  passes.addPass(createSCFToControlFlowPass());
  passes.addPass(createConvertVectorToLLVMPass());
  ConvertKernToLLVMPassOptions toLLVM;
  toLLVM.cpu = options.cpu;
  passes.addPass(createConvertKernToLLVMPass(toLLVM));
  passes.addPass(createCanonicalizerPass());
  passes.addPass(createReconcileUnrealizedCastsPass());
  // LLVM would convert a bf16 that is kept in a register.
  passes.addPass(createBF16AsBitsPass());
  passes.addPass(createCSEPass());
}

namespace {
struct PipelineOptions : PassPipelineOptions<PipelineOptions> {
  Option<std::string> cpu{*this, "cpu", llvm::cl::desc("CPU to make code for"),
                          llvm::cl::init("native")};
  Option<bool> fusedAttention{*this, "fused-attention",
                              llvm::cl::desc("Keep f32 attention whole"),
                              llvm::cl::init(false)};
};
} // namespace

void mgq::kernels::registerCpuKernelPipeline() {
  PassPipelineRegistration<PipelineOptions>(
      "kern-cpu-pipeline", "From layer functions of nn ops to CPU code",
      [](OpPassManager &passes, const PipelineOptions &options) {
        CpuOptions cpu;
        cpu.cpu = options.cpu;
        cpu.fusedAttention = options.fusedAttention;
        buildCpuKernelPipeline(passes, cpu);
      });
}
