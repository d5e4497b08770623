// RUN: mgq-opt %s --nn-simplify --split-input-file | FileCheck %s

// A stored weight is transposed by the product, not before it.
nn.param @w : tensor<8x4xf32> = "m"[0 : 128]
nn.param @b : tensor<8xf32> = "m"[128 : 32]
// CHECK-LABEL: @linear
// CHECK-SAME: (%[[X:.*]]: tensor<2x3x4xf32>)
// CHECK: %[[W:.*]] = nn.param_ref @w
// CHECK: %[[Y:.*]] = nn.matmul %[[X]], %[[W]] transpose_b : (tensor<2x3x4xf32>, tensor<8x4xf32>) -> tensor<2x3x8xf32>
// CHECK: nn.binary add %[[Y]]
func.func @linear(%x: tensor<2x3x4xf32>) -> tensor<2x3x8xf32> {
  %w = nn.param_ref @w : tensor<8x4xf32>
  %b = nn.param_ref @b : tensor<8xf32>
  %0 = nn.transpose %w [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %1 = nn.matmul %x, %0 : (tensor<2x3x4xf32>, tensor<4x8xf32>) -> tensor<2x3x8xf32>
  %2 = nn.binary add %1, %b : (tensor<2x3x8xf32>, tensor<8xf32>) -> tensor<2x3x8xf32>
  return %2 : tensor<2x3x8xf32>
}

// -----

// Of a transpose that also moves heads, only the swap becomes a flag.
// CHECK-LABEL: @heads
// CHECK: %[[K:.*]] = nn.transpose %{{.*}} [0, 2, 1, 3]
// CHECK: nn.matmul %{{.*}}, %[[K]] transpose_b
func.func @heads(%q: tensor<2x4x3x8xf32>, %k: tensor<2x5x4x8xf32>) -> tensor<2x4x3x5xf32> {
  %0 = nn.transpose %k [0, 2, 3, 1] : (tensor<2x5x4x8xf32>) -> tensor<2x4x8x5xf32>
  %1 = nn.matmul %q, %0 : (tensor<2x4x3x8xf32>, tensor<2x4x8x5xf32>) -> tensor<2x4x3x5xf32>
  return %1 : tensor<2x4x3x5xf32>
}

// -----

// Conv1D: Gemm on merged rows is a product of the rows as they were.
nn.param @w : tensor<4x8xf32> = "m"[0 : 128]
nn.param @b : tensor<8xf32> = "m"[128 : 32]
// CHECK-LABEL: @conv1d
// CHECK-NOT: nn.reshape
// CHECK: nn.matmul %arg0, %{{.*}} : (tensor<2x3x4xf32>, tensor<4x8xf32>) -> tensor<2x3x8xf32>
// CHECK-NEXT: nn.binary add
// CHECK-NEXT: return
func.func @conv1d(%x: tensor<2x3x4xf32>) -> tensor<2x3x8xf32> {
  %w = nn.param_ref @w : tensor<4x8xf32>
  %b = nn.param_ref @b : tensor<8xf32>
  %0 = nn.reshape %x : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
  %1 = nn.matmul %0, %w : (tensor<6x4xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
  %2 = nn.binary add %1, %b : (tensor<6x8xf32>, tensor<8xf32>) -> tensor<6x8xf32>
  %3 = nn.reshape %2 : (tensor<6x8xf32>) -> tensor<2x3x8xf32>
  return %3 : tensor<2x3x8xf32>
}

// -----

// A patch embedding is a product; its bias comes before the channels move, and
// the transpose that follows cancels.
nn.param @w : tensor<8x3x2x2xf32> = "m"[0 : 384]
nn.param @b : tensor<8xf32> = "m"[384 : 32]
// CHECK-LABEL: @patches
// CHECK-NOT: nn.conv
// CHECK: %[[T:.*]] = nn.transpose %{{.*}} [0, 2, 4, 1, 3, 5] : (tensor<1x3x2x2x2x2xf32>) -> tensor<1x2x2x3x2x2xf32>
// CHECK: %[[R:.*]] = nn.reshape %[[T]] : (tensor<1x2x2x3x2x2xf32>) -> tensor<1x4x12xf32>
// CHECK: %[[P:.*]] = nn.matmul %[[R]], %{{.*}} transpose_b : (tensor<1x4x12xf32>, tensor<8x12xf32>) -> tensor<1x4x8xf32>
// CHECK: %[[S:.*]] = nn.binary add %[[P]], %{{.*}} : (tensor<1x4x8xf32>, tensor<8xf32>)
// CHECK-NEXT: return %[[S]]
func.func @patches(%x: tensor<1x3x4x4xf32>) -> tensor<1x4x8xf32> {
  %w = nn.param_ref @w : tensor<8x3x2x2xf32>
  %b = nn.param_ref @b : tensor<8xf32>
  %0 = nn.conv %x, %w {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<1x3x4x4xf32>, tensor<8x3x2x2xf32>) -> tensor<1x8x2x2xf32>
  %1 = nn.reshape %b : (tensor<8xf32>) -> tensor<8x1x1xf32>
  %2 = nn.binary add %0, %1 : (tensor<1x8x2x2xf32>, tensor<8x1x1xf32>) -> tensor<1x8x2x2xf32>
  %3 = nn.reshape %2 : (tensor<1x8x2x2xf32>) -> tensor<1x8x4xf32>
  %4 = nn.transpose %3 [0, 2, 1] : (tensor<1x8x4xf32>) -> tensor<1x4x8xf32>
  return %4 : tensor<1x4x8xf32>
}

// -----

// Windows that overlap stay a convolution.
// CHECK-LABEL: @overlap
// CHECK: nn.conv
func.func @overlap(%x: tensor<1x3x4xf32>, %w: tensor<8x3x2xf32>) -> tensor<1x8x3xf32> {
  %0 = nn.conv %x, %w {strides = array<i64: 1>, dilations = array<i64: 1>, pads_before = array<i64: 0>, pads_after = array<i64: 0>, groups = 1 : i64} : (tensor<1x3x4xf32>, tensor<8x3x2xf32>) -> tensor<1x8x3xf32>
  return %0 : tensor<1x8x3xf32>
}
