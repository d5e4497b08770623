#ifndef MGQ_PASSES_KERNELS_PASSES_TD
#define MGQ_PASSES_KERNELS_PASSES_TD

include "mlir/Pass/PassBase.td"

def SinkCastsPass : Pass<"kern-sink-casts", "::mlir::ModuleOp"> {
  let summary = "Move casts to wider floats below ops that only move elements";
  let description = [{
    So rows are picked from a table as it is stored, bf16 or f16, and only they
    are widened.
  }];
  let dependentDialects = ["::mgq::nn::NNDialect"];
}

def ConvertNNToLinalgPass : Pass<"convert-nn-to-linalg", "::mlir::ModuleOp"> {
  let summary = "Lower nn ops of layer functions to linalg and kern on tensors";
  let description = [{
    Elementwise ops, moves and reductions become linalg.generic, so that they
    fuse; products become kern.matmul; everything else becomes kern.loops, code
    on buffers. f16 and bf16 values are computed in f32.
  }];
  let options = [
    Option<"fusedAttention", "fused-attention", "bool", /*default=*/"false",
           "Keep f32 attention whole, as kern.attention and kern.attention_grad">,
    Option<"tiledAttention", "tiled-attention", "bool", /*default=*/"false",
           "Keep attention of f32, f16 and bf16 whole, in the types that a GPU's library takes">
  ];
  let dependentDialects = [
    "::mgq::kern::KernDialect", "::mlir::arith::ArithDialect",
    "::mlir::func::FuncDialect", "::mlir::linalg::LinalgDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::math::MathDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect",
    "::mlir::tensor::TensorDialect"
  ];
}

def FuseElementwisePass : Pass<"kern-fuse-elementwise", "::mlir::ModuleOp"> {
  let summary = "Fuse elementwise linalg ops into their one user";
  let description = [{
    A value with several users is computed once, unless it only expands
    something smaller.
  }];
  let dependentDialects = ["::mlir::linalg::LinalgDialect", "::mlir::tensor::TensorDialect"];
}

def PassDestinationsPass : Pass<"kern-pass-destinations", "::mlir::ModuleOp"> {
  let summary = "Turn results of layer functions into memref arguments";
  let description = [{
    Operands become memrefs too; the body stays on tensors for
    one-shot-bufferize, which needs no function boundaries then.
  }];
  let dependentDialects = ["::mlir::bufferization::BufferizationDialect", "::mlir::memref::MemRefDialect"];
}

def LowerLoopsPass : Pass<"kern-lower-loops", "::mlir::ModuleOp"> {
  let summary = "Lower linalg, kern.matmul, kern.loops and copies on memrefs to loops";
  let description = [{
    scf.parallel outermost, scf.for inside, one contiguous dimension innermost.
  }];
  let options = [
    Option<"keepProducts", "keep-products", "bool", /*default=*/"false",
           "Leave products of floats in rows of contiguous elements to a library">
  ];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::math::MathDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect"
  ];
}

def OutlinePass : Pass<"kern-outline", "::mlir::ModuleOp"> {
  let summary = "Move each top-level loop nest of a layer into a function that threads run in chunks";
  let description = [{
    Buffers are noalias arguments there. The number of chunks depends on the
    work, which static shapes give, never on the number of threads.
  }];
  let dependentDialects = [
    "::mgq::kern::KernDialect", "::mlir::arith::ArithDialect", "::mlir::scf::SCFDialect"
  ];
}

def PlanScratchPass : Pass<"kern-plan-scratch", "::mlir::ModuleOp"> {
  let summary = "Place a layer's temporary buffers in one scratch argument";
  let description = [{
    Buffers that do not live at the same time share memory. The size is
    `nn.scratch_bytes` on the function.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::memref::MemRefDialect"];
}

def AddOptimizerPass : Pass<"kern-add-optimizer", "::mlir::ModuleOp"> {
  let summary = "Add mgq_adamw, mgq_sq_norm and mgq_accumulate, which the runtime calls";
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::LLVM::LLVMDialect",
    "::mlir::math::MathDialect", "::mlir::scf::SCFDialect"
  ];
}

def ExpandMathPass : Pass<"kern-expand-math", "::mlir::ModuleOp"> {
  let summary = "Expand math functions to polynomials or calls of libm, bf16 conversions to bit operations";
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::func::FuncDialect",
    "::mlir::math::MathDialect", "::mlir::vector::VectorDialect"
  ];
}

def BF16AsBitsPass : Pass<"kern-bf16-as-bits", "::mlir::ModuleOp"> {
  let summary = "Make scalars of bf16 i16 in LLVM dialect functions that only move them";
  let dependentDialects = ["::mlir::LLVM::LLVMDialect"];
}

def ConvertKernToLLVMPass : Pass<"convert-kern-to-llvm", "::mlir::ModuleOp"> {
  let summary = "Convert layer functions and their nests to LLVM dialect functions of the kernel ABI";
  let options = [
    Option<"cpu", "cpu", "std::string", "\"native\"",
           "CPU the code is for: native, x86-64-v3, x86-64-v4, x86-64-v4-bf16">
  ];
  let dependentDialects = ["::mlir::LLVM::LLVMDialect"];
}

def IsolateKernelsPass : Pass<"kern-isolate-kernels", "::mlir::ModuleOp"> {
  let summary = "Move the layer functions that are called into a nested module @kernels";
  let description = [{
    A target lowers @kernels; a declaration outside keeps the calls of @model,
    @train and @count valid and carries `nn.flops`, the floating-point
    operations of one run. Layer functions that nothing calls are erased.
  }];
}

def MarkPackablePass : Pass<"kern-mark-packable", "::mlir::ModuleOp"> {
  let summary = "Note which arguments of layer functions are frozen matrices in every call";
  let description = [{
    Sets `nn.packable` on layer functions, indices of arguments that
    kern-lower-matmul may read packed; and, where frozen parameters are read as
    bf16 that are stored wider, `nn.stored`: their stored types. Runs before
    kern-isolate-kernels.
  }];
}

def LowerMatmulPass : Pass<"kern-lower-matmul", "::mlir::ModuleOp"> {
  let summary = "Replace products and attention that compute in f32 by calls of generated kernels";
  let description = [{
    The kernels are functions of the module (Gemm.h, FlashAttention.h); those of
    products read f32, bf16 and f16. A `kern.matmul` of another type, or on memrefs whose matrices have no
    contiguous dimension, stays; attention of another type, or on memrefs whose
    rows are not contiguous, too.
  }];
  let options = [
    Option<"cpu", "cpu", "std::string", "\"x86-64-v3\"",
           "CPU whose vectors and registers the kernels are made for: x86-64-v3, x86-64-v4, x86-64-v4-bf16">
  ];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::func::FuncDialect", "::mlir::linalg::LinalgDialect",
    "::mlir::LLVM::LLVMDialect",
    "::mlir::math::MathDialect", "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect",
    "::mlir::vector::VectorDialect"
  ];
}

def ShareKernelsPass : Pass<"kern-share-kernels", "::mlir::ModuleOp"> {
  let summary = "Give the kernels of several programs distinct symbols, and each equal one once";
  let description = [{
    The module holds modules with @kernels of their own, for code that is linked
    together. Functions of the module `first` keep their symbols. One of another
    module that is equal, with all that it calls, becomes a declaration of that;
    others get the name of their module as a suffix. What no kernel needs any
    more is erased.
  }];
  let options = [
    Option<"first", "first", "std::string", "\"\"",
           "Name of the module whose functions keep their symbols (default: the first)">
  ];
  let dependentDialects = ["::mlir::LLVM::LLVMDialect"];
}

#endif // MGQ_PASSES_KERNELS_PASSES_TD
