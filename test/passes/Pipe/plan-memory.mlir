// RUN: mgq-opt %s --pipe-partition-stages --pipe-schedule=micro-batches=2 --pipe-plan-memory --pipe-check-memory --split-input-file | FileCheck %s

// A value is alive from its call to its last use: %b takes the room of nothing
// while %a lives, %c reuses the room of %a. The frozen weight stays in its file,
// the trainable one has value, gradient and optimizer state in the arena.
module {
  nn.param @frozen frozen : tensor<16xf32> = "m.onnx"[0 : 64]
  nn.param @w trainable : tensor<16xf32> = "m.onnx"[64 : 64]
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.scratch_bytes = 100 : i64} { llvm.return }
    llvm.func @loss(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
    llvm.func @grad(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @loss(tensor<16xf32>) -> tensor<f32> attributes {nn.layer}
  func.func private @grad(tensor<16xf32>, tensor<f32>) -> tensor<16xf32> attributes {nn.layer}
  func.func @model(%x: tensor<16xf32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = nn.param_ref @frozen : tensor<16xf32>
    %a = call @f(%x, %0) : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%a) : (tensor<16xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
  func.func @train(%x: tensor<16xf32> {nn.input = "x"}, %seed: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}, tensor<16xf32> {nn.gradient = @w}) {
    %0 = nn.param_ref @frozen : tensor<16xf32>
    %1 = nn.param_ref @w : tensor<16xf32>
    %a = call @f(%x, %0) {nn.phase = "forward", nn.instance = "one"} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %b = call @f(%a, %1) {nn.phase = "forward", nn.instance = "two"} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%b) {nn.phase = "forward", nn.instance = "loss"} : (tensor<16xf32>) -> tensor<f32>
    %c = call @grad(%b, %seed) {nn.phase = "backward", nn.instance = "two"} : (tensor<16xf32>, tensor<f32>) -> tensor<16xf32>
    return %l, %c : tensor<f32>, tensor<16xf32>
  }
}

// weights, gradients, optimizer, inputs (seed, x, loss), activations, scratch
// CHECK-LABEL: pipe.rank @r0 stage(0) memory [64, 64, 128, 192, 128, 128]
// CHECK-NOT: pipe.place_param @frozen value
// CHECK: pipe.place_param @w value(0) gradient(64) momentum(128) variance(192)
// CHECK: pipe.place_input "x" : tensor<16xf32> at 320
// CHECK: pipe.place_output "loss" : tensor<f32> at 384
// CHECK: pipe.place_gradient @w at [[C:[0-9]+]] into 64 after 0
// CHECK: pipe.place_loss 384 seed(256)
// CHECK: pipe.sequence forward
// CHECK-NEXT: pipe.call @f [#pipe.arena<320, 64>, #pipe.weight<@frozen>, #pipe.arena<[[A:[0-9]+]], 64>] results(1) scratch(<576, 100>) layer("one")
// CHECK-NEXT: pipe.call @f [#pipe.arena<[[A]], 64>, #pipe.arena<0, 64>, #pipe.arena<[[B:[0-9]+]], 64>]
// CHECK-NEXT: pipe.call @loss [#pipe.arena<[[B]], 64>, #pipe.arena<384, 4>]
// CHECK: pipe.sequence backward
// CHECK-NEXT: pipe.call @grad [#pipe.arena<[[B]], 64>, #pipe.arena<256, 4>, #pipe.arena<[[C]], 64>]
// CHECK: pipe.sequence evaluate
// CHECK-NEXT: pipe.call @f
// CHECK-NEXT: pipe.call @loss
// CHECK: pipe.forward chunk(0) micro_batch(0)
// CHECK-NEXT: pipe.backward chunk(0) micro_batch(0)
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(1)
// CHECK-NEXT: pipe.backward chunk(0) micro_batch(1)
// CHECK-NEXT: pipe.optimizer
