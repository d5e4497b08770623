#ifndef MGQ_PASSES_NN_PASSES_TD
#define MGQ_PASSES_NN_PASSES_TD

include "mlir/Pass/PassBase.td"

def MarkPass : Pass<"nn-mark", "::mlir::ModuleOp"> {
  let summary = "Mark parameters trainable or frozen; split the loss into sum and count";
  let options = [
    ListOption<"trainable", "trainable", "std::string", "Globs of parameters to train.">,
    ListOption<"freeze", "freeze", "std::string", "Globs taken out of the set again.">
  ];
  let dependentDialects = ["::mgq::nn::NNDialect"];
}

#endif // MGQ_PASSES_NN_PASSES_TD
