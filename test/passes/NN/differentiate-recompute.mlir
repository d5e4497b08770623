// RUN: mgq-opt %s --nn-differentiate | FileCheck %s --check-prefixes=CHECK,NONE
// RUN: mgq-opt %s --nn-differentiate=recompute=cheap | FileCheck %s --check-prefixes=CHECK,CHEAP
// RUN: mgq-opt %s --nn-differentiate=recompute=full | FileCheck %s --check-prefixes=CHECK,FULL

nn.param @up trainable : tensor<8x4xf32> = "m"[0 : 128]
nn.param @down trainable : tensor<4x8xf32> = "m"[0 : 128]
nn.param @head trainable : tensor<4xf32> = "m"[0 : 16]

// none keeps the norm's result, gelu's operand and gelu's result; cheap computes
// the norm and gelu again; full keeps operands only, so forward is the layer.
func.func private @mlp(%x: tensor<2x4xf32>, %u: tensor<8x4xf32>, %d: tensor<4x8xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.rms_norm %x {axis = 1 : i64, epsilon = 1.0e-6 : f64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = nn.matmul %0, %u transpose_b : (tensor<2x4xf32>, tensor<8x4xf32>) -> tensor<2x8xf32>
  %2 = nn.unary gelu %1 : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = nn.matmul %2, %d transpose_b : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}
// NONE: func private @mlp.forward(
// NONE-SAME: -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x8xf32>, tensor<2x8xf32>)
// NONE: func private @mlp.backward(
// NONE-NOT: nn.rms_norm %
// NONE-NOT: nn.unary gelu
// CHEAP: func private @mlp.forward(
// CHEAP-SAME: -> (tensor<2x4xf32>, tensor<2x8xf32>)
// CHEAP: func private @mlp.backward(
// CHEAP-DAG: nn.rms_norm %
// CHEAP-DAG: nn.unary gelu
// FULL-NOT: @mlp.forward
// FULL: func private @mlp.backward(
// FULL: nn.rms_norm %
// FULL-NEXT: nn.matmul
// FULL-NEXT: nn.unary gelu
// CHECK: func private @views

// A transposed product is computed again from the product where that is kept:
// views are never kept beside what they show. relu's mask, one byte per element,
// is cheaper than its operand.
func.func private @views(%x: tensor<2x4xf32>, %h: tensor<4xf32>) -> tensor<4x2xf32> attributes {nn.layer} {
  %0 = nn.binary mul %x, %h : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1 = nn.unary relu %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.binary add %1, %1 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = nn.transpose %2 [1, 0] : (tensor<2x4xf32>) -> tensor<4x2xf32>
  return %3 : tensor<4x2xf32>
}
// NONE: func private @views.forward(
// NONE-SAME: -> (tensor<4x2xf32>, tensor<2x4xi1>)
func.func private @loss(%x: tensor<4x2xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.reduce sum %x axes [0, 1] : (tensor<4x2xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32>) -> (tensor<f32> {nn.loss = "mean"}) {
  %u = nn.param_ref @up : tensor<8x4xf32>
  %d = nn.param_ref @down : tensor<4x8xf32>
  %h = nn.param_ref @head : tensor<4xf32>
  %0 = call @mlp(%x, %u, %d) : (tensor<2x4xf32>, tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
  %1 = call @views(%0, %h) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<4x2xf32>
  %2 = call @loss(%1) : (tensor<4x2xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
