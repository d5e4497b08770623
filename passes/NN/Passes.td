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

def OutlinePass : Pass<"nn-outline", "::mlir::ModuleOp"> {
  let summary = "Cut @model into calls of layer functions";
  let description = [{
    The graph is cut where the fewest values are live; segments of equal
    structure call one function with other parameters. What depends on inputs
    alone and several segments use is computed by functions of its own. `@model`
    and `@count` then hold parameters, calls (their location names the instance)
    and return.
  }];
  let dependentDialects = ["::mgq::nn::NNDialect", "::mlir::func::FuncDialect"];
}

def DifferentiatePass : Pass<"nn-differentiate", "::mlir::ModuleOp"> {
  let summary = "Build @train: calls of forward and backward functions";
  let description = [{
    `@model` calls layer functions. Per layer function and activity (which
    operands need a gradient, which results get one) there is one
    `@layer.forward`, the layer itself where nothing is saved, and one
    `@layer.backward`; more activities of a layer get the suffixes `.1`, `.2`.
    Values that backward takes from forward are extra results of the call,
    unless they are operands or results of it already. What nothing trainable
    lies below stays a call of the layer. Calls carry `nn.instance`, the name of
    the layer's instance; those of `@model` that `@train` repeats carry it, too.
    With `split-weights`, gradients of
    parameters that take products are results of a second function,
    `@layer.backward_weight`, called in phase "weight".
  }];
  let options = [
    Option<"recompute", "recompute", "::mgq::nn::Recompute", /*default=*/"::mgq::nn::Recompute::None",
           "What backward computes again rather than takes from forward.",
           [{::llvm::cl::values(
             clEnumValN(::mgq::nn::Recompute::None, "none", "views only"),
             clEnumValN(::mgq::nn::Recompute::Cheap, "cheap", "also norms, activations, elementwise ops"),
             clEnumValN(::mgq::nn::Recompute::Full, "full", "everything but the layer's operands"))}]>,
    Option<"splitWeights", "split-weights", "::mgq::nn::SplitWeights", /*default=*/"::mgq::nn::SplitWeights::Never",
           "Whether gradients of weights are calls of their own.",
           [{::llvm::cl::values(
             clEnumValN(::mgq::nn::SplitWeights::Never, "never", "one backward call per layer"),
             clEnumValN(::mgq::nn::SplitWeights::Always, "always", "a backward and a weight call per layer"),
             clEnumValN(::mgq::nn::SplitWeights::Auto, "auto", "where weight gradients are much of the work"))}]>
  ];
  let dependentDialects = ["::mgq::nn::NNDialect", "::mlir::func::FuncDialect"];
}

def CheckDifferentiatedPass : Pass<"nn-check-differentiated", "::mlir::ModuleOp"> {
  let summary = "Check what holds after nn-differentiate";
  let description = [{
    `@train` holds parameters, calls with a phase and an instance, forward calls
    first, and a return; every trainable parameter has a gradient, of its type,
    and every gradient is a result of its own of a backward or weight call; every
    such call lies above a trainable parameter. A weight call stands right after
    the backward call of its instance, if there is one, and no call waits for
    it. A layer function is called with as many operands and results as it has.
  }];
}

def InsertCastsPass : Pass<"nn-insert-casts", "::mlir::ModuleOp"> {
  let summary = "Let products take bf16 where the precision policy says so";
  let description = [{
    After nn-differentiate. Operands of such products are rounded by nn.cast,
    once per value, and the products keep their f32 results. What a forward call
    leaves for gradient calls becomes bf16 where no f32 product, norm, softmax
    or loss reads it; with `precision=bf16` what layers pass to each other, too.
    Frozen weights that only such products read are bf16 in memory: their
    nn.param_ref is. A layer function whose calls differ in this is copied.

    Progressive precision (`fp32-steps`, `bf16-ramp`) keeps both versions of a
    function: `nn.late` on the f32 one, which is called, names the other. Both
    read the same weights; values between calls have the f32 one's types.
  }];
  let options = [
    Option<"precision", "precision", "std::string", /*default=*/"\"f32\"", "f32, bf16 or layered.">,
    ListOption<"precisionOf", "precision-of", "std::string", "GLOB=f32|bf16, of parameters or layers.">,
    Option<"tables", "tables", "bool", /*default=*/"false",
           "Frozen tables whose rows are looked up are bf16 too: for targets that cannot read them in their files.">,
    Option<"fp32Steps", "fp32-steps", "int64_t", /*default=*/"0", "Steps in f32 before layers change.">,
    Option<"bf16Ramp", "bf16-ramp", "int64_t", /*default=*/"0", "Steps in which they change, first to last.">
  ];
  let dependentDialects = ["::mgq::nn::NNDialect"];
}

def BoundInputsPass : Pass<"nn-bound-inputs", "::mlir::ModuleOp"> {
  let summary = "Record which values the integer inputs of @model may hold";
  let description = [{
    An input whose elements index a table or are labels gets `nn.limit`, and
    `nn.ignore` where the loss ignores a value; the runtime checks the data
    against them as it is read.
  }];
}

#endif // MGQ_PASSES_NN_PASSES_TD
