// RUN: mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=layered fp32-steps=3 bf16-ramp=2" | FileCheck %s

// Both phases of a layer read the bf16 weight; the called one computes in f32
// and has f32 residuals, the later one takes its place. What has no product of
// bf16 has one phase only.
nn.param @w frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @t trainable : tensor<4xf32> = "m"[0 : 16]
func.func private @shift(%x: tensor<2x4xf32>, %t: tensor<4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.binary add %x, %t : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @layer(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = nn.unary exp %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.reduce sum %1 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.output = "loss", nn.loss = "mean"}) {
  %t = nn.param_ref @t : tensor<4xf32>
  %w = nn.param_ref @w : tensor<4x4xf32>
  %0 = call @shift(%x, %t) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32> loc("shift")
  %1 = call @layer(%0, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<f32> loc("layer")
  return %1 : tensor<f32>
}
// CHECK: module attributes {nn.bf16_ramp = 2 : i64, nn.fp32_steps = 3 : i64}
// CHECK: func.func private @shift(%{{.+}}) -> tensor<2x4xf32> attributes {nn.layer} {
// CHECK: func.func private @layer.forward(%[[X:[^:]+]]: tensor<2x4xf32>, %[[W:[^:]+]]: tensor<4x4xbf16>) -> (tensor<f32>, tensor<2x4xf32>)
// CHECK-SAME: nn.late = @layer.forward.late
// CHECK-NEXT: %[[WF:.+]] = nn.cast %[[W]] : (tensor<4x4xbf16>) -> tensor<4x4xf32>
// CHECK-NEXT: nn.matmul %[[X]], %[[WF]] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
// CHECK: func.func private @layer.forward.late({{.+}}: tensor<4x4xbf16>) -> (tensor<f32>, tensor<2x4xbf16>)
// CHECK: func.func private @layer.backward({{.+}}: tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK: func.func private @layer.backward.late({{.+}}: tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK: func.func @train(
// CHECK: call @layer.forward(%{{.+}}) {{.+}} : (tensor<2x4xf32>, tensor<4x4xbf16>) -> (tensor<f32>, tensor<2x4xf32>)
