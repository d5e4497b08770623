#ifndef MGQ_NN_DIALECT_TD
#define MGQ_NN_DIALECT_TD

include "mlir/IR/OpBase.td"

def NN_Dialect : Dialect {
  let name = "nn";
  let cppNamespace = "::mgq::nn";
  let summary = "training graphs of neural networks";
  let description = [{
    `nn` holds a training graph between the ONNX importer and code generation:
    pure ops on ranked tensors, few enough that each has a gradient, a cost and
    a lowering. Weights are `nn.param` symbols that refer to bytes in a file.

    Element types: `f64`, `f32`, `f16`, `bf16`; `i1` is a boolean; `iN` without
    sign is a signed integer, `uiN` an unsigned one. Shapes are static, but for
    the values between `nn.non_zero` and its use, which `simplify` removes.
  }];
  let useDefaultAttributePrinterParser = 1;
  let hasConstantMaterializer = 1;
}

class NN_Op<string mnemonic, list<Trait> traits = []> :
    Op<NN_Dialect, mnemonic, traits>;

#endif // MGQ_NN_DIALECT_TD
