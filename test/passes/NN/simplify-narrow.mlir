// RUN: mgq-opt %s --nn-simplify | FileCheck %s

// Weights stored narrower than they are used are widened right where they are
// read, so that idioms are found as in a graph of f32 weights.
nn.param @w : tensor<8x4xbf16> = "m"[0 : 64]
nn.param @v : tensor<8x4xf16> = "m"[64 : 64]

// CHECK-LABEL: func.func @model
func.func @model(%x: tensor<3x4xf32>) -> tensor<3x8xf32> {
  // CHECK: %[[W:.*]] = nn.param_ref @w
  // CHECK: %[[V:.*]] = nn.param_ref @v
  %w = nn.param_ref @w : tensor<8x4xbf16>
  %v = nn.param_ref @v : tensor<8x4xf16>
  // Transposed before the cast.
  // CHECK: %[[WIDE:.*]] = nn.cast %[[W]] : (tensor<8x4xbf16>) -> tensor<8x4xf32>
  // CHECK: nn.matmul %{{.*}}, %[[WIDE]] transpose_b
  %wt = nn.transpose %w [1, 0] : (tensor<8x4xbf16>) -> tensor<4x8xbf16>
  %wide = nn.cast %wt : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %a = nn.matmul %x, %wide : (tensor<3x4xf32>, tensor<4x8xf32>) -> tensor<3x8xf32>
  // Transposed after the cast.
  // CHECK: %[[WIDE:.*]] = nn.cast %[[V]] : (tensor<8x4xf16>) -> tensor<8x4xf32>
  // CHECK: nn.matmul %{{.*}}, %[[WIDE]] transpose_b
  %vw = nn.cast %v : (tensor<8x4xf16>) -> tensor<8x4xf32>
  %vt = nn.transpose %vw [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %b = nn.matmul %x, %vt : (tensor<3x4xf32>, tensor<4x8xf32>) -> tensor<3x8xf32>
  %c = nn.binary add %a, %b : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  return %c : tensor<3x8xf32>
}
