#ifndef MGQ_PASSES_KERNELS_CUDA_PASSES_TD
#define MGQ_PASSES_KERNELS_CUDA_PASSES_TD

include "mlir/Pass/PassBase.td"

def CudaFuseEpiloguesPass : Pass<"cuda-fuse-epilogues", "::mlir::ModuleOp"> {
  let summary = "Let products do the elementwise op that follows them";
  let description = [{
    An elementwise op that adds products, a matrix and a bias along columns,
    scales products by constants, takes the tanh approximation of GELU of that
    and rounds it to the type of the factors becomes products with epilogues
    (kern.matmul), if cuBLASLt has them for these types. An op that does more is
    left alone: its kernel is needed anyway, and does the rest in passing.
  }];
  let dependentDialects = ["::mlir::tensor::TensorDialect"];
}

def CudaPrepareProductsPass : Pass<"cuda-prepare-products", "::mlir::ModuleOp"> {
  let summary = "Give products operands that cuBLASLt takes";
  let description = [{
    Products of integers and of matrices whose columns are not contiguous become
    loops. An operand that is narrower than the other is widened into a buffer of
    its own; a constant, of attention too, is copied into one.
  }];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::linalg::LinalgDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect"
  ];
}

def CudaOutlinePass : Pass<"cuda-outline", "::mlir::ModuleOp"> {
  let summary = "Move each loop nest of a layer into a kernel, and launch that";
  let description = [{
    The iterations of the outermost parallel loop are rows, each run by one
    thread, a warp or a block; inner loops are cut among those (Distribute.h).
    Kernels stand in `gpu.module @cuda`; equal ones are one. How many threads
    run depends on shapes only.
  }];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::gpu::GPUDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::NVVM::NVVMDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect"
  ];
}

def CudaTileAttentionPass : Pass<"cuda-tile-attention", "::mlir::ModuleOp"> {
  let summary = "Give attention kernels that compute it tile by tile";
  let description = [{
    `kern.attention` and `kern.attention_grad` on buffers become
    `kern.device_attention`, with kernels in `gpu.module @cuda`
    (AttentionKernels.h) and the scratch that they need.
  }];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::gpu::GPUDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::NVVM::NVVMDialect",
    "::mlir::math::MathDialect", "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect"
  ];
}

def CudaAddOptimizerPass : Pass<"cuda-add-optimizer", "::mlir::ModuleOp"> {
  let summary = "Add mgq_adamw, mgq_accumulate, mgq_cuda_sq_norm and mgq_cuda_scale, which the runtime calls";
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::gpu::GPUDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::NVVM::NVVMDialect",
    "::mlir::math::MathDialect", "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect"
  ];
}

def CudaAddCompressionPass : Pass<"cuda-add-compression", "::mlir::ModuleOp"> {
  let summary = "Add mgq_cuda_encode, mgq_cuda_combine and mgq_cuda_decode, which the runtime calls";
  let description = [{
    They are what `mgq_cuda_compression` (runtime/include/rt_cuda.h) has of one
    format: a warp encodes a block of 256 values, whose bytes are those of
    runtime/src/common/Compression.
  }];
  let options = [
    Option<"format", "format", "std::string", /*default=*/"\"\"",
           "bf16, sparse24 or sparse24-int8">
  ];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::gpu::GPUDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::NVVM::NVVMDialect",
    "::mlir::scf::SCFDialect"
  ];
}

def CudaCallRuntimePass : Pass<"cuda-call-runtime", "::mlir::ModuleOp"> {
  let summary = "Turn launches and products into calls of the runtime";
  let description = [{
    `kern.device_attention`, too. See runtime/include/rt_cuda.h. A kernel's number is its place in
    `gpu.module @cuda`.
  }];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::gpu::GPUDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::memref::MemRefDialect"
  ];
}

def CudaExpandMathPass : Pass<"cuda-expand-math", "::mlir::gpu::GPUModuleOp"> {
  let summary = "Replace math ops whose libdevice function is not exact, or has no host twin";
  let dependentDialects = ["::mlir::LLVM::LLVMDialect"];
}

def CudaAnnotateLoopsPass
    : Pass<"cuda-annotate-loops", "::mlir::gpu::GPUModuleOp"> {
  let summary = "Pass on what kernels say of the unrolling of their loops";
  let description = [{
    `llvm.loop_annotation` of an `scf.for` comes to the branch back to its start
    as a discardable attribute, which becomes the annotation of the branch.
  }];
  let dependentDialects = ["::mlir::LLVM::LLVMDialect"];
}

#endif // MGQ_PASSES_KERNELS_CUDA_PASSES_TD
