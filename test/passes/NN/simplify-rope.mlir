// RUN: mgq-opt %s --nn-simplify --split-input-file | FileCheck %s

// Hugging Face: halves.
// CHECK-LABEL: @halves
// CHECK-NEXT: nn.rope %arg0, %arg1, %arg2 : (tensor<2x4x3x8xf32>, tensor<1x1x3x8xf32>, tensor<1x1x3x8xf32>) -> tensor<2x4x3x8xf32>
// CHECK-NEXT: return
func.func @halves(%x: tensor<2x4x3x8xf32>, %cos: tensor<1x1x3x8xf32>, %sin: tensor<1x1x3x8xf32>) -> tensor<2x4x3x8xf32> {
  %0 = nn.binary mul %x, %cos : (tensor<2x4x3x8xf32>, tensor<1x1x3x8xf32>) -> tensor<2x4x3x8xf32>
  %1 = nn.slice %x [0, 0, 0, 0] to [2, 4, 3, 4] by [1, 1, 1, 1] : (tensor<2x4x3x8xf32>) -> tensor<2x4x3x4xf32>
  %2 = nn.slice %x [0, 0, 0, 4] to [2, 4, 3, 8] by [1, 1, 1, 1] : (tensor<2x4x3x8xf32>) -> tensor<2x4x3x4xf32>
  %3 = nn.unary neg %2 : (tensor<2x4x3x4xf32>) -> tensor<2x4x3x4xf32>
  %4 = nn.concat %3, %1 axis 3 : (tensor<2x4x3x4xf32>, tensor<2x4x3x4xf32>) -> tensor<2x4x3x8xf32>
  %5 = nn.binary mul %4, %sin : (tensor<2x4x3x8xf32>, tensor<1x1x3x8xf32>) -> tensor<2x4x3x8xf32>
  %6 = nn.binary add %0, %5 : (tensor<2x4x3x8xf32>, tensor<2x4x3x8xf32>) -> tensor<2x4x3x8xf32>
  return %6 : tensor<2x4x3x8xf32>
}

// -----

// GPT-J: pairs.
// CHECK-LABEL: @pairs
// CHECK: nn.rope %arg0, %arg1, %arg2 interleaved
// CHECK-NEXT: return
func.func @pairs(%x: tensor<2x3x8xf32>, %cos: tensor<3x8xf32>, %sin: tensor<3x8xf32>) -> tensor<2x3x8xf32> {
  %1 = nn.slice %x [0, 0, 0] to [2, 3, 8] by [1, 1, 2] : (tensor<2x3x8xf32>) -> tensor<2x3x4xf32>
  %2 = nn.slice %x [0, 0, 1] to [2, 3, 8] by [1, 1, 2] : (tensor<2x3x8xf32>) -> tensor<2x3x4xf32>
  %3 = nn.unary neg %2 : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %4 = nn.reshape %3 : (tensor<2x3x4xf32>) -> tensor<2x3x4x1xf32>
  %5 = nn.reshape %1 : (tensor<2x3x4xf32>) -> tensor<2x3x4x1xf32>
  %6 = nn.concat %4, %5 axis 3 : (tensor<2x3x4x1xf32>, tensor<2x3x4x1xf32>) -> tensor<2x3x4x2xf32>
  %7 = nn.reshape %6 : (tensor<2x3x4x2xf32>) -> tensor<2x3x8xf32>
  %8 = nn.binary mul %sin, %7 : (tensor<3x8xf32>, tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  %9 = nn.binary mul %cos, %x : (tensor<3x8xf32>, tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  %10 = nn.binary add %8, %9 : (tensor<2x3x8xf32>, tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  return %10 : tensor<2x3x8xf32>
}

// -----

// Half by half, with tables of half the width.
// CHECK-LABEL: @by_half
// CHECK-DAG: %[[C:.*]] = nn.concat %arg1, %arg1 axis 1
// CHECK-DAG: %[[S:.*]] = nn.concat %arg2, %arg2 axis 1
// CHECK: nn.rope %arg0, %[[C]], %[[S]] :
// CHECK-NEXT: return
func.func @by_half(%x: tensor<2x3x8xf32>, %cos: tensor<3x4xf32>, %sin: tensor<3x4xf32>) -> tensor<2x3x8xf32> {
  %1 = nn.slice %x [0, 0, 0] to [2, 3, 4] by [1, 1, 1] : (tensor<2x3x8xf32>) -> tensor<2x3x4xf32>
  %2 = nn.slice %x [0, 0, 4] to [2, 3, 8] by [1, 1, 1] : (tensor<2x3x8xf32>) -> tensor<2x3x4xf32>
  %3 = nn.binary mul %1, %cos : (tensor<2x3x4xf32>, tensor<3x4xf32>) -> tensor<2x3x4xf32>
  %4 = nn.binary mul %2, %sin : (tensor<2x3x4xf32>, tensor<3x4xf32>) -> tensor<2x3x4xf32>
  %5 = nn.binary sub %3, %4 : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %6 = nn.binary mul %2, %cos : (tensor<2x3x4xf32>, tensor<3x4xf32>) -> tensor<2x3x4xf32>
  %7 = nn.binary mul %1, %sin : (tensor<2x3x4xf32>, tensor<3x4xf32>) -> tensor<2x3x4xf32>
  %8 = nn.binary add %7, %6 : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %9 = nn.concat %5, %8 axis 2 : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x8xf32>
  return %9 : tensor<2x3x8xf32>
}

// -----

// The halves the other way round turn backwards: not this rotation.
// CHECK-LABEL: @backwards
// CHECK-NOT: nn.rope
func.func @backwards(%x: tensor<3x8xf32>, %cos: tensor<3x8xf32>, %sin: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %0 = nn.binary mul %x, %cos : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %1 = nn.slice %x [0, 0] to [3, 4] by [1, 1] : (tensor<3x8xf32>) -> tensor<3x4xf32>
  %2 = nn.slice %x [0, 4] to [3, 8] by [1, 1] : (tensor<3x8xf32>) -> tensor<3x4xf32>
  %3 = nn.unary neg %1 : (tensor<3x4xf32>) -> tensor<3x4xf32>
  %4 = nn.concat %2, %3 axis 1 : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x8xf32>
  %5 = nn.binary mul %4, %sin : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %6 = nn.binary add %0, %5 : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  return %6 : tensor<3x8xf32>
}
