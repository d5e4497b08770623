//===- Pipeline.cpp - The order of passes to CUDA code --------------------===//

#include "passes/Kernels/Cuda/Pipeline.h"
#include "passes/Kernels/Cuda/Passes.h"
#include "passes/Kernels/Pipeline.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mgq::kernels;

/// Device code on memrefs to LLVM and NVVM ops.
static void addDevicePasses(OpPassManager &device) {
  device.addPass(createCudaExpandMathPass());
  device.addPass(createCanonicalizerPass());
  device.addPass(createLoopInvariantCodeMotionPass());
  device.addPass(createCSEPass());
  // Views become offsets before loops become branches.
  device.addPass(memref::createExpandStridedMetadataPass());
  device.addPass(createLowerAffinePass());
  device.addPass(createSCFToControlFlowPass());
  ConvertGpuOpsToNVVMOpsOptions toNVVM;
  toNVVM.indexBitwidth = 64;
  toNVVM.useBarePtrCallConv = true;
  device.addPass(createConvertGpuOpsToNVVMOps(toNVVM));
  device.addPass(createCudaAnnotateLoopsPass());
  device.addPass(createConvertMathToLLVMPass());
  device.addPass(createReconcileUnrealizedCastsPass());
  device.addPass(createCanonicalizerPass());
  device.addPass(createCSEPass());
}

void mgq::kernels::buildCudaKernelPipeline(OpPassManager &passes,
                                           const CudaOptions &options) {
  buildTensorPipeline(passes, AttentionForm::Tiled);
  passes.addPass(createCudaFuseEpiloguesPass());
  passes.addPass(createCSEPass());
  buildBufferPipeline(passes);
  passes.addPass(createCudaPrepareProductsPass());
  LowerLoopsPassOptions loops;
  loops.keepProducts = true;
  passes.addPass(createLowerLoopsPass(loops));
  passes.addPass(createCudaOutlinePass());
  // Its scratch is planned with the rest.
  passes.addPass(createCudaTileAttentionPass());
  passes.addPass(createPlanScratchPass());
  if (options.optimizer)
    passes.addPass(createCudaAddOptimizerPass());
  if (options.compression != "none")
    passes.addPass(createCudaAddCompressionPass({options.compression}));
  passes.addPass(createCSEPass());
  passes.addPass(createCudaCallRuntimePass());
  addDevicePasses(passes.nest<gpu::GPUModuleOp>());
  passes.addPass(memref::createExpandStridedMetadataPass());
  passes.addPass(createLowerAffinePass());
  // Host code is the same on any x86-64.
  ConvertKernToLLVMPassOptions toLLVM;
  toLLVM.cpu = "x86-64-v3";
  passes.addPass(createConvertKernToLLVMPass(toLLVM));
  passes.addPass(createCanonicalizerPass());
  passes.addPass(createReconcileUnrealizedCastsPass());
  passes.addPass(createCSEPass());
}

void mgq::kernels::registerCudaKernelPipeline() {
  PassPipelineRegistration<>(
      "kern-cuda-pipeline", "From layer functions of nn ops to CUDA code",
      [](OpPassManager &passes) { buildCudaKernelPipeline(passes, {}); });
}
