#ifndef MGQ_PASSES_KERNELS_PASSES_TD
#define MGQ_PASSES_KERNELS_PASSES_TD

include "mlir/Pass/PassBase.td"

def ConvertNNToLinalgPass : Pass<"convert-nn-to-linalg", "::mlir::ModuleOp"> {
  let summary = "Lower nn ops of layer functions to linalg, arith and math on tensors";
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
    kern-lower-matmul may read packed. Runs before kern-isolate-kernels.
  }];
}

def LowerMatmulPass : Pass<"kern-lower-matmul", "::mlir::ModuleOp"> {
  let summary = "Replace products and attention on f32 memrefs by calls of generated kernels";
  let description = [{
    The kernels are functions of the module (Gemm.h, FlashAttention.h). A
    `kern.matmul` of another type, or on memrefs whose matrices have no
    contiguous dimension, stays; attention of another type, or on memrefs whose
    rows are not contiguous, too.
  }];
  let options = [
    Option<"cpu", "cpu", "std::string", "\"x86-64-v3\"",
           "CPU whose vectors and registers the kernels are made for: x86-64-v3, x86-64-v4, x86-64-v4-bf16">
  ];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::func::FuncDialect", "::mlir::LLVM::LLVMDialect",
    "::mlir::math::MathDialect", "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect",
    "::mlir::vector::VectorDialect"
  ];
}

#endif // MGQ_PASSES_KERNELS_PASSES_TD
