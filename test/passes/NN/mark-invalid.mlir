// RUN: mgq-opt %s --nn-mark="trainable=w" --split-input-file --verify-diagnostics

// expected-error @below {{the module has no function @model}}
module {
  nn.param @w : tensor<4xf32> = "m"[0 : 16]
}

// -----

// The nearest names come first.
// expected-error @below {{no parameter matches 'w'; nearest: v, v2, weight}}
module {
  nn.param @weight : tensor<4xf32> = "m"[0 : 16]
  nn.param @v2 : tensor<4xf32> = "m"[0 : 16]
  nn.param @v : tensor<4xf32> = "m"[0 : 16]
  nn.param @something.long : tensor<4xf32> = "m"[0 : 16]
  func.func @model() {
    return
  }
}

// -----

// expected-error @below {{'w' names 'w' of type 'tensor<4xi64>', not a float parameter}}
nn.param @w : tensor<4xi64> = "m"[0 : 32]
func.func @model() {
  return
}

// -----

// Values of trainable parameters are f32.
// expected-error @below {{not supported yet: training parameter w of type 'f64'; supported: f32, bf16, f16}}
nn.param @w : tensor<4xf64> = "m"[0 : 32]
func.func @model() {
  return
}

// -----

// An integer initializer is a constant; its location is its name.
func.func @model() {
  // expected-error @unknown {{'w' names 'w', a constant of type 'tensor<2xi64>', not a float parameter}}
  %0 = nn.constant dense<[1, 2]> : tensor<2xi64> loc("w")
  return
}

// -----

// expected-error @below {{parameter 'w' is to be trained (by 'w'), but nothing in the graph uses it}}
module attributes {nn.dead_params = ["w"]} {
  func.func @model() {
    return
  }
}

// -----

// A rounded value has no gradient.
// expected-error @below {{parameter 'w' is to be trained, but no gradient of the loss reaches it; take it out with --freeze=w}}
nn.param @w : tensor<f32> = "m"[0 : 4]
func.func @model() -> (tensor<f32> {nn.output = "loss"}) {
  %0 = nn.param_ref @w : tensor<f32>
  %1 = nn.unary round %0 : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

nn.param @w : tensor<f32> = "m"[0 : 4]
// expected-error @below {{the graph has no output; the first one must be the loss, a float scalar}}
func.func @model() {
  return
}

// -----

nn.param @w : tensor<2xf32> = "m"[0 : 8]
// expected-error @below {{the first output logits has type 'tensor<2xf32>'; it must be the loss, a float scalar}}
func.func @model() -> (tensor<2xf32> {nn.output = "logits"}) {
  %0 = nn.param_ref @w : tensor<2xf32>
  return %0 : tensor<2xf32>
}
