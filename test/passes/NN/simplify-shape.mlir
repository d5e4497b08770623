// RUN: mgq-opt %s --nn-simplify --split-input-file | FileCheck %s

// The parts of a fused qkv are picked before heads move to the front.
// CHECK-LABEL: @qkv
// CHECK: %[[S:.*]] = nn.slice %arg0 [0, 0, 1, 0, 0] to [2, 5, 2, 4, 8] by [1, 1, 1, 1, 1]
// CHECK-NEXT: %[[R:.*]] = nn.reshape %[[S]] : (tensor<2x5x1x4x8xf32>) -> tensor<2x5x4x8xf32>
// CHECK-NEXT: nn.transpose %[[R]] [0, 2, 1, 3]
func.func @qkv(%x: tensor<2x5x3x4x8xf32>) -> tensor<2x4x5x8xf32> {
  %one = nn.constant dense<1> : tensor<i64>
  %0 = nn.transpose %x [2, 0, 3, 1, 4] : (tensor<2x5x3x4x8xf32>) -> tensor<3x2x4x5x8xf32>
  %1 = nn.gather %0, %one axis 0 : (tensor<3x2x4x5x8xf32>, tensor<i64>) -> tensor<2x4x5x8xf32>
  return %1 : tensor<2x4x5x8xf32>
}

// -----

// The same for a part that a slice picks (torch.unbind, Split).
// CHECK-LABEL: @unbind
// CHECK: %[[S:.*]] = nn.slice %arg0 [0, 0, 2, 0, 0] to [2, 5, 3, 4, 8]
// CHECK-NEXT: %[[R:.*]] = nn.reshape %[[S]] : (tensor<2x5x1x4x8xf32>) -> tensor<2x5x4x8xf32>
// CHECK-NEXT: nn.transpose %[[R]] [0, 2, 1, 3]
func.func @unbind(%x: tensor<2x5x3x4x8xf32>) -> tensor<2x4x5x8xf32> {
  %0 = nn.transpose %x [2, 0, 3, 1, 4] : (tensor<2x5x3x4x8xf32>) -> tensor<3x2x4x5x8xf32>
  %1 = nn.slice %0 [2, 0, 0, 0, 0] to [3, 2, 4, 5, 8] by [1, 1, 1, 1, 1] : (tensor<3x2x4x5x8xf32>) -> tensor<1x2x4x5x8xf32>
  %2 = nn.reshape %1 : (tensor<1x2x4x5x8xf32>) -> tensor<2x4x5x8xf32>
  return %2 : tensor<2x4x5x8xf32>
}

// -----

// Views that cancel go; a transpose that moves only ones is a reshape.
// CHECK-LABEL: @cancel
// CHECK-NEXT: %[[R:.*]] = nn.reshape %arg0 : (tensor<1x5x4xf32>) -> tensor<5x1x4xf32>
// CHECK-NEXT: return %[[R]]
func.func @cancel(%x: tensor<1x5x4xf32>) -> tensor<5x1x4xf32> {
  %one = nn.constant dense<1.0> : tensor<f32>
  %0 = nn.reshape %x : (tensor<1x5x4xf32>) -> tensor<20xf32>
  %1 = nn.reshape %0 : (tensor<20xf32>) -> tensor<1x5x4xf32>
  %2 = nn.transpose %1 [2, 1, 0] : (tensor<1x5x4xf32>) -> tensor<4x5x1xf32>
  %3 = nn.transpose %2 [1, 2, 0] : (tensor<4x5x1xf32>) -> tensor<5x1x4xf32>
  %4 = nn.slice %3 [0, 0, 0] to [5, 1, 4] by [1, 1, 1] : (tensor<5x1x4xf32>) -> tensor<5x1x4xf32>
  %5 = nn.binary mul %4, %one : (tensor<5x1x4xf32>, tensor<f32>) -> tensor<5x1x4xf32>
  return %5 : tensor<5x1x4xf32>
}

// -----

// Elementwise ops broadcast by themselves.
// CHECK-LABEL: @broadcast
// CHECK-NOT: nn.broadcast
// CHECK: nn.select %arg0, %{{.*}}, %arg1 : (tensor<1x4xi1>, tensor<f32>, tensor<3x4xf32>) -> tensor<3x4xf32>
func.func @broadcast(%m: tensor<1x4xi1>, %x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %zero = nn.constant dense<0.0> : tensor<f32>
  %0 = nn.broadcast %m : (tensor<1x4xi1>) -> tensor<3x4xi1>
  %1 = nn.broadcast %zero : (tensor<f32>) -> tensor<3x4xf32>
  %2 = nn.select %0, %1, %x : (tensor<3x4xi1>, tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  return %2 : tensor<3x4xf32>
}

// -----

// A parameter that nothing uses goes; its name stays for messages.
// CHECK: module attributes {nn.dead_params = ["dead"]}
// CHECK-NOT: nn.param @dead
nn.param @dead : tensor<4xf32> = "m"[0 : 16]
func.func @model() {
  %0 = nn.param_ref @dead : tensor<4xf32>
  return
}
