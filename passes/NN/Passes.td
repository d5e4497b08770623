#ifndef MGQ_PASSES_NN_PASSES_TD
#define MGQ_PASSES_NN_PASSES_TD

include "mlir/Pass/PassBase.td"

def SimplifyPass : Pass<"nn-simplify", "::mlir::ModuleOp"> {
  let summary = "Turn what exporters spell in many ops into one op each";
  let description = [{
    Linear layers, patch embeddings, norms, activations, rotary embeddings,
    attention, image tokens and cross-entropies become one op each; views merge,
    equal ops merge, what is dead goes, parameters included (their names stay in
    the module's `nn.dead_params`, for nn-mark's messages).
  }];
  let dependentDialects = ["::mgq::nn::NNDialect"];
}

def CheckStaticPass : Pass<"nn-check-static", "::mlir::ModuleOp"> {
  let summary = "Check that every shape is static and no op before simplify is left";
  let description = [{
    Closes the phase `simplify`: nothing after it knows dynamic sizes.
  }];
}

def MarkPass : Pass<"nn-mark", "::mlir::ModuleOp"> {
  let summary = "Mark parameters trainable or frozen; split the loss into sum and count";
  let description = [{
    Parameters whose names match `trainable` and not `freeze` train, the others
    are frozen; without `trainable` the model's metadata `mgq.trainable` says
    what trains. A trainable parameter that no gradient of the loss reaches is
    an error. A mean cross-entropy is split into `nn.loss = "sum"` and
    `nn.loss = "count"`, and `@count` computes the count from the inputs.
  }];
  let options = [
    ListOption<"trainable", "trainable", "std::string", "Globs of parameters to train.">,
    ListOption<"freeze", "freeze", "std::string", "Globs taken out of the set again.">
  ];
  let dependentDialects = ["::mgq::nn::NNDialect", "::mlir::func::FuncDialect"];
}

#endif // MGQ_PASSES_NN_PASSES_TD
