// RUN: mgq-opt %s --convert-nn-to-linalg | FileCheck %s
// RUN: mgq-opt %s --convert-nn-to-linalg=fused-attention=true | FileCheck %s --check-prefix=FUSED

// bf16 is f32 between load and store.
// CHECK-LABEL: @narrow
// CHECK: linalg.generic
// CHECK: %[[X:.*]] = arith.extf %{{.*}} : bf16 to f32
// CHECK: %[[Y:.*]] = math.exp %[[X]] : f32
// CHECK: arith.truncf %[[Y]] : f32 to bf16
func.func @narrow(%x: tensor<4x8xbf16>) -> tensor<4x8xbf16> attributes {nn.layer} {
  %0 = nn.unary exp %x : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
  return %0 : tensor<4x8xbf16>
}

// Unsigned types become signless; the arithmetic stays unsigned.
// CHECK-LABEL: @unsigned(%arg0: tensor<4xi8>) -> tensor<4xf32>
// CHECK: arith.maxui
// CHECK: arith.uitofp
func.func @unsigned(%x: tensor<4xui8>) -> tensor<4xf32> attributes {nn.layer} {
  %0 = nn.binary max %x, %x : (tensor<4xui8>, tensor<4xui8>) -> tensor<4xui8>
  %1 = nn.cast %0 : (tensor<4xui8>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Rows of all batches are rows of one product; sums of bf16 are f32.
// CHECK-LABEL: @linear
// CHECK: kern.matmul transpose_b ins({{.*}} : tensor<48x64xbf16>, tensor<128x64xbf16>) outs({{.*}} : tensor<48x128xf32>)
func.func @linear(%x: tensor<2x24x64xbf16>, %w: tensor<128x64xbf16>) -> tensor<2x24x128xbf16> attributes {nn.layer} {
  %0 = nn.matmul %x, %w transpose_b : (tensor<2x24x64xbf16>, tensor<128x64xbf16>) -> tensor<2x24x128xbf16>
  return %0 : tensor<2x24x128xbf16>
}

// An index is checked, with the node's name, before it is used.
// CHECK-LABEL: @gather
// CHECK: kern.loops
// CHECK: scf.if
// CHECK-NEXT: arith.index_cast
// CHECK: func.call @mgq_index_error
func.func @gather(%t: tensor<10x4xf32>, %i: tensor<3xi64>) -> tensor<3x4xf32> attributes {nn.layer} {
  %0 = nn.gather %t, %i axis 0 : (tensor<10x4xf32>, tensor<3xi64>) -> tensor<3x4xf32> loc("embed")
  return %0 : tensor<3x4xf32>
}

// Heads that share keys are rows of one product, unless attention stays whole.
// CHECK-LABEL: @attention
// CHECK: kern.matmul transpose_b ins({{.*}} : tensor<4x16x16xf32>, tensor<4x8x16xf32>)
// FUSED-LABEL: @attention
// FUSED: kern.attention
func.func @attention(%q: tensor<2x4x8x16xf32>, %k: tensor<2x2x8x16xf32>, %v: tensor<2x2x8x16xf32>) -> tensor<2x4x8x16xf32> attributes {nn.layer} {
  %0 = nn.attention %q, %k, %v causal {scale = 0.25 : f64} : (tensor<2x4x8x16xf32>, tensor<2x2x8x16xf32>, tensor<2x2x8x16xf32>) -> tensor<2x4x8x16xf32>
  return %0 : tensor<2x4x8x16xf32>
}

// Functions that are no layers are left alone.
// CHECK-LABEL: @model
// CHECK: nn.unary exp
func.func @model(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = nn.unary exp %x : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
