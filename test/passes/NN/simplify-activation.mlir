// RUN: mgq-opt %s --nn-simplify --split-input-file | FileCheck %s

// x / sqrt 2, erf, + 1, times x, times 0.5 (dynamo and TorchScript).
// CHECK-LABEL: @gelu_last
// CHECK: %[[Y:.*]] = nn.unary gelu %arg0
// CHECK-NEXT: return %[[Y]]
func.func @gelu_last(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %r = nn.constant dense<1.41421354> : tensor<f32>
  %one = nn.constant dense<1.0> : tensor<f32>
  %half = nn.constant dense<0.5> : tensor<f32>
  %0 = nn.binary div %x, %r : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %1 = nn.unary erf %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.binary add %1, %one : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %3 = nn.binary mul %x, %2 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = nn.binary mul %3, %half : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  return %4 : tensor<2x4xf32>
}

// -----

// 0.5 first, on x or on the sum, and a product by 1 / sqrt 2.
// CHECK-LABEL: @gelu_first
// CHECK: %[[G:.*]] = nn.unary gelu %arg0
// CHECK: nn.binary mul %[[G]], %[[G]]
func.func @gelu_first(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %r = nn.constant dense<0.707106769> : tensor<f32>
  %one = nn.constant dense<1.0> : tensor<f32>
  %half = nn.constant dense<0.5> : tensor<f32>
  %0 = nn.binary mul %r, %x : (tensor<f32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = nn.unary erf %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.binary add %one, %1 : (tensor<f32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = nn.binary mul %x, %half : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %4 = nn.binary mul %3, %2 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %5 = nn.binary mul %half, %2 : (tensor<f32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %6 = nn.binary mul %5, %x : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %7 = nn.binary mul %4, %6 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %7 : tensor<2x4xf32>
}

// -----

// The tanh form with pow 3.
// CHECK-LABEL: @tanh_pow
// CHECK: %[[Y:.*]] = nn.unary gelu_tanh %arg0
// CHECK-NEXT: return %[[Y]]
func.func @tanh_pow(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %three = nn.constant dense<3.0> : tensor<f32>
  %a = nn.constant dense<4.471500e-02> : tensor<f32>
  %c = nn.constant dense<0.797884583> : tensor<f32>
  %one = nn.constant dense<1.0> : tensor<f32>
  %half = nn.constant dense<0.5> : tensor<f32>
  %0 = nn.binary pow %x, %three : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %1 = nn.binary mul %0, %a : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %2 = nn.binary add %x, %1 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = nn.binary mul %2, %c : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %4 = nn.unary tanh %3 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %5 = nn.binary add %4, %one : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %6 = nn.binary mul %x, %half : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %7 = nn.binary mul %6, %5 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %7 : tensor<2x4xf32>
}

// -----

// The tanh form as x c (1 + a x x).
// CHECK-LABEL: @tanh_product
// CHECK: nn.unary gelu_tanh %arg0
// CHECK-NEXT: return
func.func @tanh_product(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %a = nn.constant dense<4.471500e-02> : tensor<f32>
  %c = nn.constant dense<0.797884583> : tensor<f32>
  %one = nn.constant dense<1.0> : tensor<f32>
  %half = nn.constant dense<0.5> : tensor<f32>
  %0 = nn.binary mul %x, %x : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = nn.binary mul %0, %a : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %2 = nn.binary add %1, %one : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %3 = nn.binary mul %x, %c : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %4 = nn.binary mul %3, %2 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %5 = nn.unary tanh %4 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %6 = nn.binary add %5, %one : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %7 = nn.binary mul %6, %x : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %8 = nn.binary mul %half, %7 : (tensor<f32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %8 : tensor<2x4xf32>
}

// -----

// Another slope is another function.
// CHECK-LABEL: @not_gelu
// CHECK: nn.unary erf
func.func @not_gelu(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %one = nn.constant dense<1.0> : tensor<f32>
  %half = nn.constant dense<0.5> : tensor<f32>
  %1 = nn.unary erf %x : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.binary add %1, %one : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %3 = nn.binary mul %x, %2 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = nn.binary mul %3, %half : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  return %4 : tensor<2x4xf32>
}

// -----

// CHECK-LABEL: @silu
// CHECK: %[[Y:.*]] = nn.unary silu %arg0
// CHECK-NEXT: nn.binary mul %[[Y]], %arg1
func.func @silu(%x: tensor<2x4xf32>, %up: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = nn.unary sigmoid %x : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = nn.binary mul %x, %0 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.binary mul %1, %up : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
