// RUN: mgq-opt %s --nn-simplify --split-input-file | FileCheck %s

// Hugging Face's RMSNorm as dynamo exports it: pow, mean, sqrt, reciprocal.
nn.param @w : tensor<4xf32> = "m"[0 : 16]
// CHECK-LABEL: @dynamo
// CHECK: %[[W:.*]] = nn.param_ref @w
// CHECK-NEXT: %[[Y:.*]] = nn.rms_norm %arg0 scale %[[W]] {axis = 2 : i64, epsilon = 9.9999999747524271E-7 : f64}
// CHECK-NEXT: return %[[Y]]
func.func @dynamo(%x: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %two = nn.constant dense<2.0> : tensor<f32>
  %n = nn.constant dense<0.25> : tensor<f32>
  %e = nn.constant dense<1.0e-6> : tensor<f32>
  %w = nn.param_ref @w : tensor<4xf32>
  %0 = nn.binary pow %x, %two : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x3x4xf32>
  %1 = nn.reduce sum %0 axes [2] keep_dims : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
  %2 = nn.binary mul %1, %n : (tensor<2x3x1xf32>, tensor<f32>) -> tensor<2x3x1xf32>
  %3 = nn.binary add %2, %e : (tensor<2x3x1xf32>, tensor<f32>) -> tensor<2x3x1xf32>
  %4 = nn.unary sqrt %3 : (tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
  %5 = nn.unary reciprocal %4 : (tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
  %6 = nn.binary mul %x, %5 : (tensor<2x3x4xf32>, tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
  %7 = nn.binary mul %w, %6 : (tensor<4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  return %7 : tensor<2x3x4xf32>
}

// -----

// TorchScript's: casts to the same type, 1 / sqrt, a mean by division.
nn.param @w : tensor<4xf32> = "m"[0 : 16]
// CHECK-LABEL: @torchscript
// CHECK: nn.rms_norm %arg0 scale %{{.*}} {axis = 2 : i64
// CHECK-NEXT: return
func.func @torchscript(%x: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %n = nn.constant dense<4.0> : tensor<f32>
  %one = nn.constant dense<1.0> : tensor<f32>
  %e = nn.constant dense<1.0e-6> : tensor<f32>
  %w = nn.param_ref @w : tensor<4xf32>
  %c = nn.cast %x : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %0 = nn.binary mul %c, %c : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %1 = nn.reduce sum %0 axes [2] keep_dims : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
  %2 = nn.binary div %1, %n : (tensor<2x3x1xf32>, tensor<f32>) -> tensor<2x3x1xf32>
  %3 = nn.binary add %e, %2 : (tensor<f32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
  %4 = nn.unary sqrt %3 : (tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
  %5 = nn.binary div %one, %4 : (tensor<f32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
  %6 = nn.binary mul %c, %5 : (tensor<2x3x4xf32>, tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
  %7 = nn.binary mul %6, %w : (tensor<2x3x4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
  return %7 : tensor<2x3x4xf32>
}

// -----

// A layer norm by hand, x / sqrt, with scale and bias.
nn.param @w : tensor<4xf32> = "m"[0 : 16]
nn.param @b : tensor<4xf32> = "m"[0 : 16]
// CHECK-LABEL: @layer_norm
// CHECK: nn.layer_norm %arg0 scale %{{.*}} bias %{{.*}} {axis = 1 : i64
// CHECK-NEXT: return
func.func @layer_norm(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %n = nn.constant dense<0.25> : tensor<f32>
  %e = nn.constant dense<1.0e-5> : tensor<f32>
  %w = nn.param_ref @w : tensor<4xf32>
  %b = nn.param_ref @b : tensor<4xf32>
  %s = nn.reduce sum %x axes [1] keep_dims : (tensor<3x4xf32>) -> tensor<3x1xf32>
  %m = nn.binary mul %s, %n : (tensor<3x1xf32>, tensor<f32>) -> tensor<3x1xf32>
  %d = nn.binary sub %x, %m : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
  %0 = nn.binary mul %d, %d : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  %1 = nn.reduce sum %0 axes [1] keep_dims : (tensor<3x4xf32>) -> tensor<3x1xf32>
  %2 = nn.binary mul %1, %n : (tensor<3x1xf32>, tensor<f32>) -> tensor<3x1xf32>
  %3 = nn.binary add %2, %e : (tensor<3x1xf32>, tensor<f32>) -> tensor<3x1xf32>
  %4 = nn.unary sqrt %3 : (tensor<3x1xf32>) -> tensor<3x1xf32>
  %5 = nn.binary div %d, %4 : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
  %6 = nn.binary mul %5, %w : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %7 = nn.binary add %6, %b : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  return %7 : tensor<3x4xf32>
}

// -----

// A mean over the wrong number of elements is no norm.
// CHECK-LABEL: @not_a_mean
// CHECK-NOT: nn.rms_norm
func.func @not_a_mean(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %n = nn.constant dense<0.2> : tensor<f32>
  %e = nn.constant dense<1.0e-5> : tensor<f32>
  %0 = nn.binary mul %x, %x : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  %1 = nn.reduce sum %0 axes [1] keep_dims : (tensor<3x4xf32>) -> tensor<3x1xf32>
  %2 = nn.binary mul %1, %n : (tensor<3x1xf32>, tensor<f32>) -> tensor<3x1xf32>
  %3 = nn.binary add %2, %e : (tensor<3x1xf32>, tensor<f32>) -> tensor<3x1xf32>
  %4 = nn.unary rsqrt %3 : (tensor<3x1xf32>) -> tensor<3x1xf32>
  %5 = nn.binary mul %x, %4 : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
  return %5 : tensor<3x4xf32>
}
