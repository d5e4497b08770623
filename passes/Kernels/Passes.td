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

#endif // MGQ_PASSES_KERNELS_PASSES_TD
