// RUN: mgq-opt %s --split-input-file --mark-frozen-cache | FileCheck %s

// The narrowest of the cuts that save most of the work: the second call's 4
// values, not the first's 64. What trains, what follows from it and what is not
// needed for the cut (an embedding, wide and without FLOPs) are left alone, and
// so is a mask that follows from inputs alone: it has no chunk.
module {
  nn.param @w frozen : tensor<64xf32> = "m"[0 : 256]
  nn.param @t trainable : tensor<4xf32> = "m"[256 : 16]
  func.func private @vit(tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32> attributes {nn.flops = 1000 : i64}
  func.func private @query(tensor<64xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {nn.flops = 100 : i64}
  func.func private @mask(tensor<64xf32>) -> tensor<4xf32> attributes {nn.flops = 1 : i64}
  func.func private @embed(tensor<64xf32>) -> tensor<64xf32> attributes {nn.flops = 0 : i64}
  func.func private @head(tensor<4xf32>, tensor<64xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<f32> attributes {nn.flops = 100 : i64}
  func.func private @grad(tensor<f32>, tensor<4xf32>) -> tensor<4xf32> attributes {nn.flops = 100 : i64}
  // CHECK-LABEL: func.func @train
  func.func @train(%x: tensor<64xf32> {nn.input = "x"}, %seed: tensor<f32> {nn.seed}) -> (tensor<f32>, tensor<4xf32> {nn.gradient = @t}) {
    %w = nn.param_ref @w : tensor<64xf32>
    %t = nn.param_ref @t : tensor<4xf32>
    // CHECK: call @mask
    // CHECK-NOT: pipe.kept
    // CHECK-SAME: nn.instance = "mask"
    %m = call @mask(%x) {nn.phase = "forward", nn.instance = "mask"} : (tensor<64xf32>) -> tensor<4xf32>
    // CHECK: call @vit{{.*}}pipe.kept = array<i64>
    %v = call @vit(%x, %w) {nn.phase = "forward", nn.instance = "vit", pipe.chunk = 0} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    // CHECK: call @query{{.*}}pipe.kept = array<i64: 1>
    %q:2 = call @query(%v) {nn.phase = "forward", nn.instance = "query", pipe.chunk = 0} : (tensor<64xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    // CHECK: call @embed
    // CHECK-NOT: pipe.kept
    // CHECK: return
    %e = call @embed(%x) {nn.phase = "forward", nn.instance = "embed", pipe.chunk = 0} : (tensor<64xf32>) -> tensor<64xf32>
    %l = call @head(%q#1, %e, %m, %t) {nn.phase = "forward", nn.instance = "head", pipe.chunk = 1} : (tensor<4xf32>, tensor<64xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    %d = call @grad(%seed, %q#1) {nn.phase = "backward", nn.instance = "head", pipe.chunk = 1} : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
    return %l, %d : tensor<f32>, tensor<4xf32>
  }
}

// -----

// What drops is computed anew in each step, and all that follows from it; here
// nothing is left.
// CHECK: module attributes {pipe.no_cache = "layer 'vit' of the frozen prefix drops"}
module {
  nn.param @t trainable : tensor<4xf32> = "m"[0 : 16]
  func.func private @vit(tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32> attributes {nn.flops = 1000 : i64}
  func.func private @head(tensor<4xf32>, tensor<4xf32>) -> tensor<f32> attributes {nn.flops = 100 : i64}
  // CHECK-NOT: pipe.kept
  func.func @train(%x: tensor<4xf32> {nn.input = "x"}, %k: tensor<4xi64> {nn.input = "mgq.random.0"}) -> tensor<f32> {
    %t = nn.param_ref @t : tensor<4xf32>
    %v = call @vit(%x, %k) {nn.phase = "forward", nn.instance = "vit", pipe.chunk = 0} : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
    %l = call @head(%v, %t) {nn.phase = "forward", nn.instance = "head", pipe.chunk = 0} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}

// -----

// The first layer trains.
// CHECK: module attributes {pipe.no_cache = "no layer comes before the first that trains"}
module {
  nn.param @t trainable : tensor<4xf32> = "m"[0 : 16]
  func.func private @head(tensor<4xf32>, tensor<4xf32>) -> tensor<f32> attributes {nn.flops = 100 : i64}
  func.func @train(%x: tensor<4xf32> {nn.input = "x"}) -> tensor<f32> {
    %t = nn.param_ref @t : tensor<4xf32>
    %l = call @head(%x, %t) {nn.phase = "forward", nn.instance = "head", pipe.chunk = 0} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}
