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

// A result without elements is not computed, and a sum of no elements is zero.
// CHECK-LABEL: func.func @no_elements
// CHECK-NOT: linalg.generic
// CHECK: %[[SUM:.*]] = linalg.fill
// CHECK-NOT: linalg.generic
// CHECK: return %{{.*}} : tensor<2x1x4xf32>
func.func @no_elements(%x: tensor<2x0x4xf32>) -> tensor<2x1x4xf32> attributes {nn.layer} {
  %0 = nn.unary exp %x : (tensor<2x0x4xf32>) -> tensor<2x0x4xf32>
  %1 = nn.reduce sum %0 axes [1] keep_dims : (tensor<2x0x4xf32>) -> tensor<2x1x4xf32>
  return %1 : tensor<2x1x4xf32>
}

// What has no elements takes no part in a concatenation.
// CHECK-LABEL: func.func @concat
// CHECK-SAME: %{{.*}}: tensor<2x0xf32>, %[[Y:.*]]: tensor<2x3xf32>
// CHECK: kern.loops ins(%[[Y]] : tensor<2x3xf32>)
func.func @concat(%x: tensor<2x0xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> attributes {nn.layer} {
  %0 = nn.concat %x, %y axis 1 : (tensor<2x0xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// A product and a convolution read their weights as they are stored.
// CHECK-LABEL: func.func @narrow_weights
// CHECK: kern.matmul transpose_b ins({{.*}} : tensor<2x4xf32>, tensor<3x4xbf16>)
// CHECK: kern.matmul ins({{.*}} : tensor<3x4xf16>, tensor<1x4x2xf32>)
func.func @narrow_weights(%x: tensor<2x4xf32>, %w: tensor<3x4xbf16>, %v: tensor<3x4x1xf16>, %y: tensor<1x4x2xf32>) -> (tensor<2x3xf32>, tensor<1x3x2xf32>) attributes {nn.layer} {
  %0 = nn.cast %w : (tensor<3x4xbf16>) -> tensor<3x4xf32>
  %1 = nn.matmul %x, %0 transpose_b : (tensor<2x4xf32>, tensor<3x4xf32>) -> tensor<2x3xf32>
  %2 = nn.cast %v : (tensor<3x4x1xf16>) -> tensor<3x4x1xf32>
  %3 = nn.conv %y, %2 {dilations = array<i64: 1>, groups = 1 : i64, pads_after = array<i64: 0>, pads_before = array<i64: 0>, strides = array<i64: 1>} : (tensor<1x4x2xf32>, tensor<3x4x1xf32>) -> tensor<1x3x2xf32>
  return %1, %3 : tensor<2x3xf32>, tensor<1x3x2xf32>
}

// Four elements share one call of Philox: ten rounds of two products. A key of
// -1 keeps all. 13 elements are three groups and one element more.
// CHECK-LABEL: @dropout
// CHECK: kern.loops
// CHECK: scf.parallel
// CHECK: %[[OFF:.*]] = arith.cmpi eq, %{{.*}}, %c-1_i32
// CHECK: scf.for
// CHECK-COUNT-20: arith.muli %{{.*}}, %{{.*}} : i64
// CHECK-NOT: arith.muli {{.*}} : i64
// CHECK: %[[LOW:.*]] = arith.cmpi ult
// CHECK: %[[KEEP:.*]] = arith.ori %[[OFF]], %[[LOW]]
// CHECK: arith.select %[[KEEP]]
// CHECK-COUNT-3: arith.cmpi ult
// CHECK: scf.if
func.func @dropout(%x: tensor<2x13xf32>, %key: tensor<4xi64>) -> tensor<2x13xf32> attributes {nn.layer} {
  %0 = nn.dropout %x, %key ratio 0.25 samples 2 : (tensor<2x13xf32>, tensor<4xi64>) -> tensor<2x13xf32>
  return %0 : tensor<2x13xf32>
}
