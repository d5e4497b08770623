#ifndef MGQ_PASSES_KERNELS_PASSES_TD
#define MGQ_PASSES_KERNELS_PASSES_TD

include "mlir/Pass/PassBase.td"

def ConvertNNToLinalgPass : Pass<"convert-nn-to-linalg", "::mlir::ModuleOp"> {
  let summary = "Lower nn ops of layer functions to linalg, arith and math on tensors";
}

#endif // MGQ_PASSES_KERNELS_PASSES_TD
