// RUN: mgq-opt %s --pipe-plan-memory --split-input-file --verify-diagnostics

// There is nothing to plan without a plan.
// expected-error @below {{has no pipe.plan}}
module {
}

// -----

// There is nothing to plan without @train and @model.
// expected-error @below {{has no @train or no @model to plan}}
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
}

// -----

// A call needs the code of its layer function.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
  func.func private @f(tensor<f32>) -> tensor<f32> attributes {nn.layer}
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    // expected-error @below {{calls @f, which has no code in @kernels}}
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Only calls stand outside of layer functions.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
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

// An argument of a program is an input or the seed.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
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
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<f64>) -> tensor<f64> attributes {nn.layer}
  // expected-error @below {{not supported yet: a loss of type 'tensor<f64>'; supported: one f32}}
  func.func @model(%x: tensor<f64> {nn.input = "x"}) -> (tensor<f64> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f64>) -> tensor<f64>
    return %0 : tensor<f64>
  }
  func.func @train(%x: tensor<f64> {nn.input = "x"}, %s: tensor<f64> {nn.seed}) -> (tensor<f64> {nn.loss = "mean"}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f64>) -> tensor<f64>
    return %0 : tensor<f64>
  }
}

// -----

// The loss comes from a layer.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    return %x : tensor<f32>
  }
  // expected-error @below {{not supported yet: a loss that no layer makes}}
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    return %x : tensor<f32>
  }
}

// -----

// Two outputs are two values.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<f32>) -> tensor<f32> attributes {nn.layer}
  // expected-error @below {{not supported yet: output again that is also an input, a parameter or another output}}
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}, tensor<f32> {nn.output = "again"}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0, %0 : tensor<f32>, tensor<f32>
  }
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Gradients come from backward calls.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<f32>) -> tensor<f32> attributes {nn.layer}
  nn.param @w trainable : tensor<f32> = "m"[0 : 4]
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  // expected-error @below {{gradient of @w is not the result of a backward call}}
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}, tensor<f32> {nn.gradient = @w}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0, %0 : tensor<f32>, tensor<f32>
  }
}

// -----

// A call is in a chunk that the plan has.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
  pipe.rank @r0 stage(0) {
    %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  }
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<f32>) -> tensor<f32> attributes {nn.layer}
  func.func @model(%x: tensor<f32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = call @f(%x) {pipe.chunk = 0 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func @train(%x: tensor<f32> {nn.input = "x"}, %s: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}) {
    // expected-error @below {{is in chunk 1, the plan has 1}}
    %0 = call @f(%x) {pipe.chunk = 1 : i64, nn.phase = "forward", nn.instance = "one"} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}
