// RUN: mgq-opt %s --convert-nn-to-linalg=tiled-attention=true | FileCheck %s

// What is made of one narrow type becomes that, whatever the result's type. A mask
// becomes a bias of finite numbers, less the largest of a row where that is very
// small; rows that see nothing are zeros, and have no bias.
// CHECK-LABEL: func.func @masked
// CHECK: %[[BIAS:.*]] = kern.loops ins(%arg1 : tensor<2x1x8x8xi1>) outs(%{{.*}} : tensor<2x1x8x8xbf16>)
// CHECK: %[[MOST:.*]] = scf.for
// CHECK: %[[NOTHING:.*]] = arith.cmpf oeq, %[[MOST]]
// CHECK: %[[SHIFT:.*]] = arith.select %{{.*}}, %[[MOST]]
// CHECK: arith.subf %{{.*}}, %[[SHIFT]] : f32
// CHECK: arith.select %[[NOTHING]], %{{.*}}, %{{.*}} : f32
// CHECK: %[[SEEN:.*]] = kern.loops ins(%arg1 : tensor<2x1x8x8xi1>) outs(%{{.*}} : tensor<2x1x8x1xi1>)
// CHECK: %[[R:.*]] = kern.attention ins(%arg0, %arg0, %arg0 mask %[[BIAS]]
// CHECK-SAME: -> tensor<2x4x8x16xbf16>
// CHECK: linalg.generic
// CHECK-SAME: ins(%[[R]], %[[SEEN]] : tensor<2x4x8x16xbf16>, tensor<2x1x8x1xi1>) outs(%{{.*}} : tensor<2x4x8x16xf32>)
// CHECK: arith.select
func.func @masked(%x: tensor<2x4x8x16xbf16>, %mask: tensor<2x1x8x8xi1>) -> tensor<2x4x8x16xf32> attributes {nn.layer} {
  %r = nn.attention %x, %x, %x mask %mask causal {scale = 0.25 : f64} : (tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x1x8x8xi1>) -> tensor<2x4x8x16xf32>
  return %r : tensor<2x4x8x16xf32>
}

// CHECK-LABEL: func.func @gradient
// CHECK: %[[G:.*]] = linalg.generic
// CHECK-SAME: ins(%arg1 : tensor<2x4x8x16xf32>) outs(%{{.*}} : tensor<2x4x8x16xbf16>)
// CHECK: %[[R:.*]]:3 = kern.attention_grad ins(%arg0, %arg0, %arg0, %arg0, %[[G]] :
// CHECK-SAME: -> tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>
func.func @gradient(%x: tensor<2x4x8x16xbf16>, %g: tensor<2x4x8x16xf32>) -> tensor<2x4x8x16xf32> attributes {nn.layer} {
  %r:3 = nn.attention_grad %x, %x, %x, %x, %g {scale = 0.25 : f64} : (tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x4x8x16xf32>) -> (tensor<2x4x8x16xf32>, tensor<2x4x8x16xf32>, tensor<2x4x8x16xf32>)
  return %r#0 : tensor<2x4x8x16xf32>
}

// With a cap, or in f32, operands stay as they are.
// CHECK-LABEL: func.func @capped
// CHECK: kern.attention ins(%arg0, %arg0, %arg0 mask %arg1
// CHECK-SAME: tensor<2x4x8x16xbf16> mask tensor<2x1x8x8xi1>) outs(%{{.*}} : tensor<2x4x8x16xf32>)
func.func @capped(%x: tensor<2x4x8x16xbf16>, %mask: tensor<2x1x8x8xi1>) -> tensor<2x4x8x16xf32> attributes {nn.layer} {
  %r = nn.attention %x, %x, %x mask %mask {scale = 0.25 : f64, softcap = 5.0 : f64} : (tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x1x8x8xi1>) -> tensor<2x4x8x16xf32>
  return %r : tensor<2x4x8x16xf32>
}

// Heads of more than 128, of no multiple of 4, and f64, are made of products.
// CHECK-LABEL: func.func @large
// CHECK-NOT: kern.attention
// CHECK-COUNT-2: kern.matmul
func.func @large(%x: tensor<1x1x8x136xf32>) -> tensor<1x1x8x136xf32> attributes {nn.layer} {
  %r = nn.attention %x, %x, %x {scale = 0.25 : f64} : (tensor<1x1x8x136xf32>, tensor<1x1x8x136xf32>, tensor<1x1x8x136xf32>) -> tensor<1x1x8x136xf32>
  return %r : tensor<1x1x8x136xf32>
}

// CHECK-LABEL: func.func @odd
// CHECK-COUNT-2: kern.matmul
func.func @odd(%x: tensor<1x1x8x7xf32>) -> tensor<1x1x8x7xf32> attributes {nn.layer} {
  %r = nn.attention %x, %x, %x {scale = 0.25 : f64} : (tensor<1x1x8x7xf32>, tensor<1x1x8x7xf32>, tensor<1x1x8x7xf32>) -> tensor<1x1x8x7xf32>
  return %r : tensor<1x1x8x7xf32>
}

// CHECK-LABEL: func.func @double
// CHECK-COUNT-2: kern.matmul
func.func @double(%x: tensor<1x1x8x16xf64>) -> tensor<1x1x8x16xf64> attributes {nn.layer} {
  %r = nn.attention %x, %x, %x {scale = 0.25 : f64} : (tensor<1x1x8x16xf64>, tensor<1x1x8x16xf64>, tensor<1x1x8x16xf64>) -> tensor<1x1x8x16xf64>
  return %r : tensor<1x1x8x16xf64>
}
