// RUN: mgq-opt %s --canonicalize --split-input-file | FileCheck %s

// Ops that change nothing go: times one, plus minus zero, minus zero.
// CHECK-LABEL: @neutral
// CHECK-SAME: (%[[X:.*]]: tensor<2x3xf32>
func.func @neutral(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  // CHECK-NEXT: return %[[X]]
  %one = nn.constant dense<1.0> : tensor<f32>
  %minus = nn.constant dense<-0.0> : tensor<f32>
  %zero = nn.constant dense<0.0> : tensor<f32>
  %a = nn.binary mul %one, %x : (tensor<f32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %b = nn.binary add %a, %minus : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %c = nn.binary sub %b, %zero : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %d = nn.transpose %c [0, 1] : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %e = nn.reshape %d : (tensor<2x3xf32>) -> tensor<6xf32>
  %f = nn.reshape %e : (tensor<6xf32>) -> tensor<2x3xf32>
  %g = nn.slice %f [0, 0] to [2, 3] by [1, 1] : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %h = nn.broadcast %g : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %i = nn.cast %h : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %i : tensor<2x3xf32>
}

// -----

// Plus zero stays: it turns -0.0 into 0.0. So does a broadcast that the product
// does, and a sum of floats, whose order is the kernels'.
// CHECK-LABEL: @not_neutral
func.func @not_neutral(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<2x3xf32>, tensor<f32>) {
  // CHECK-DAG: nn.binary add
  // CHECK-DAG: nn.binary mul
  // CHECK-DAG: nn.reduce sum
  %zero = nn.constant dense<0.0> : tensor<f32>
  %ones = nn.constant dense<1.0> : tensor<2x3xf32>
  %v = nn.constant dense<[0.1, 0.2]> : tensor<2xf32>
  %a = nn.binary add %x, %zero : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
  %b = nn.binary mul %x, %ones : (tensor<3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %c = nn.reduce sum %v axes [0] : (tensor<2xf32>) -> tensor<f32>
  return %a, %b, %c : tensor<3xf32>, tensor<2x3xf32>, tensor<f32>
}

// -----

// Transposes join, a choice that is known is made.
// CHECK-LABEL: @joined
// CHECK-SAME: (%[[X:.*]]: tensor<2x3x4xf32>
func.func @joined(%x: tensor<2x3x4xf32>, %y: tensor<3x4x2xf32>) -> tensor<3x4x2xf32> {
  // CHECK-NEXT: %[[T:.*]] = nn.transpose %[[X]] [1, 2, 0]
  // CHECK-NEXT: return %[[T]]
  %a = nn.transpose %x [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
  %b = nn.transpose %a [0, 2, 1] : (tensor<3x2x4xf32>) -> tensor<3x4x2xf32>
  %true = nn.constant dense<true> : tensor<i1>
  %c = nn.select %true, %b, %y : (tensor<i1>, tensor<3x4x2xf32>, tensor<3x4x2xf32>) -> tensor<3x4x2xf32>
  return %c : tensor<3x4x2xf32>
}

// -----

// Large float tables stay ops, except splats.
// CHECK-LABEL: @large
func.func @large() -> (tensor<300x300xf32>, tensor<300x300xf32>) {
  // CHECK-DAG: nn.constant dense<2.000000e+00> : tensor<300x300xf32>
  // CHECK-DAG: nn.broadcast
  %c = nn.constant dense<2.0> : tensor<f32>
  %a = nn.broadcast %c : (tensor<f32>) -> tensor<300x300xf32>
  %i = nn.constant dense<[[1.0], [2.0]]> : tensor<2x1xf32>
  %j = nn.reshape %i : (tensor<2x1xf32>) -> tensor<2x1x1xf32>
  %k = nn.broadcast %j : (tensor<2x1x1xf32>) -> tensor<2x300x150xf32>
  %b = nn.reshape %k : (tensor<2x300x150xf32>) -> tensor<300x300xf32>
  return %a, %b : tensor<300x300xf32>, tensor<300x300xf32>
}
