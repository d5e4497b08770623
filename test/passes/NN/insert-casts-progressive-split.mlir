// RUN: mgq-opt %s --nn-differentiate=split-weights=always "--nn-insert-casts=precision=layered fp32-steps=3 bf16-ramp=2" | FileCheck %s

// The gradient that the upper layer hands to the weight gradients of the lower one,
// which only a bf16 product reads, is f32 in both phases: one layer may have changed
// and the other not.
nn.param @a trainable : tensor<4x4xf32> = "m"[0 : 64]
nn.param @w frozen : tensor<4x4xf32> = "m"[0 : 64]
func.func private @low(%x: tensor<2x4xf32>, %a: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %a : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = nn.matmul %0, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
func.func private @top(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = nn.unary exp %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.reduce sum %1 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.output = "loss", nn.loss = "mean"}) {
  %a = nn.param_ref @a : tensor<4x4xf32>
  %w = nn.param_ref @w : tensor<4x4xf32>
  %0 = call @low(%x, %a, %w) : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("low")
  %1 = call @top(%0, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<f32> loc("top")
  return %1 : tensor<f32>
}
// CHECK-DAG: func.func private @top.backward({{.+}}) -> tensor<2x4xf32> attributes {nn.late = @top.backward.late
// CHECK-DAG: func.func private @top.backward.late({{.+}}) -> tensor<2x4xf32> attributes {nn.layer}
// CHECK-DAG: func.func private @low.backward_weight(%{{[^:]+}}: tensor<2x4xf32>, {{.+}} attributes {nn.late = @low.backward_weight.late
// CHECK-DAG: func.func private @low.backward_weight.late(%{{[^:]+}}: tensor<2x4xf32>, {{.+}} attributes {nn.layer}
