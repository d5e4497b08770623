// RUN: mgq-opt %s --pipe-schedule --pipe-plan-memory --split-input-file --verify-diagnostics

// There is nothing to plan without @train and @model.
// expected-error @below {{has no @train or no @model to plan}}
module {
}

// -----

// A call needs the code of its layer function.
module {
  func.func private @f(tensor<f32>) -> tensor<f32> attributes {nn.layer}
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    // expected-error @below {{calls @f, which has no code in @kernels}}
    %0 = call @f(%x) {nn.phase = "forward"} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Only calls stand outside of layer functions.
module {
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    // expected-error @below {{is not in a layer function; expected only calls in @model}}
    %0 = nn.unary exp %x : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    return %x : tensor<f32>
  }
}

// -----

// Trainable parameters are f32 so far.
module {
  // expected-error @below {{not supported yet: training parameter w of type 'bf16'; supported: f32}}
  nn.param @w trainable : tensor<4xbf16> = "m"[0 : 8]
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    return %x : tensor<f32>
  }
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    return %x : tensor<f32>
  }
}

// -----

// An argument of a program is an input or the seed.
module {
  // expected-error @below {{argument 0 is neither an input nor the seed}}
  func.func @model(%x: tensor<f32>) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    return %x : tensor<f32>
  }
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    return %x : tensor<f32>
  }
}

// -----

// The loss is one f32.
module {
  func.func @model(%x: tensor<f64> {nn.input = "x"}) -> (tensor<f64> {nn.loss = "mean", nn.output = "loss"}) {
    return %x : tensor<f64>
  }
  // expected-error @below {{not supported yet: a loss of type 'tensor<f64>'; supported: one f32}}
  func.func @train(%x: tensor<f64> {nn.input = "x"}, %s: tensor<f64> {nn.seed}) -> (tensor<f64> {nn.loss = "mean"}) {
    return %x : tensor<f64>
  }
}

// -----

// An output that is an input has no call that could write its place.
module {
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    return %x : tensor<f32>
  }
  // expected-error @below {{not supported yet: output nn.loss that is also an input, a parameter or another output}}
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    return %x : tensor<f32>
  }
}

// -----

// A gradient comes from the backward pass.
module {
  nn.param @w trainable : tensor<f32> = "m"[0 : 4]
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<f32>) -> tensor<f32> attributes {nn.layer}
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  // expected-error @below {{gradient of @w is not the result of a backward call}}
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}, tensor<f32> {nn.gradient = @w}) {
    %0 = call @f(%x) {nn.phase = "forward"} : (tensor<f32>) -> tensor<f32>
    %1 = call @f(%x) {nn.phase = "forward"} : (tensor<f32>) -> tensor<f32>
    return %0, %1 : tensor<f32>, tensor<f32>
  }
}
