// RUN: mgq-opt %s --convert-nn-to-linalg --cse --kern-fuse-elementwise --cse --cuda-fuse-epilogues --cse | FileCheck %s

// Each function is a product and what follows it. Where products do all of it, no
// linalg.generic is left.

// CHECK-LABEL: @bias
// CHECK-NOT: linalg.generic
// CHECK: kern.matmul transpose_b ins({{.*}}) bias(%arg2 : tensor<16xf32>) outs({{.*}})
// CHECK-NOT: linalg.generic
func.func @bias(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %b: tensor<16xf32>) -> tensor<2x4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w transpose_b : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<2x4x16xf32>, tensor<16xf32>) -> tensor<2x4x16xf32>
  return %1 : tensor<2x4x16xf32>
}

// A bias with dimensions of size 1; a batch of products.
// CHECK-LABEL: @wide_bias
// CHECK: %[[BIAS:.*]] = tensor.collapse_shape %arg2
// CHECK: kern.matmul ins({{.*}}) bias(%[[BIAS]] : tensor<16xf32>) outs({{.*}} : tensor<2x4x16xf32>)
// CHECK-NOT: linalg.generic
func.func @wide_bias(%x: tensor<2x4x8xf32>, %w: tensor<2x8x16xf32>, %b: tensor<1x1x16xf32>) -> tensor<2x4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<2x4x8xf32>, tensor<2x8x16xf32>) -> tensor<2x4x16xf32>
  %1 = nn.binary add %b, %0 : (tensor<1x1x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  return %1 : tensor<2x4x16xf32>
}

// x + (y w + b): the residual stream.
// CHECK-LABEL: @residual
// CHECK-NOT: linalg.generic
// CHECK: kern.matmul ins({{.*}}) add(%arg3 : tensor<4x16xf32>) bias(%arg2 : tensor<16xf32>)
// CHECK-NOT: linalg.generic
func.func @residual(%y: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>, %x: tensor<4x16xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %y, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %2 = nn.binary add %x, %1 : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  return %2 : tensor<4x16xf32>
}

// CHECK-LABEL: @gelu
// CHECK-NOT: linalg.generic
// CHECK: kern.matmul gelu ins({{.*}}) bias(%arg2 : tensor<16xf32>)
// CHECK-NOT: linalg.generic
func.func @gelu(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %2 = nn.unary gelu_tanh %1 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %2 : tensor<4x16xf32>
}

// Without a bias.
// CHECK-LABEL: @only_gelu
// CHECK: kern.matmul gelu ins
// CHECK-NOT: linalg.generic
func.func @only_gelu(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.unary gelu_tanh %0 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}

// cuBLASLt's GELU is not the one with erf.
// CHECK-LABEL: @erf
// CHECK: kern.matmul ins({{.*}}) outs
// CHECK: linalg.generic
// CHECK: arith.addf
// CHECK: math.erf
func.func @erf(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %2 = nn.unary gelu %1 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %2 : tensor<4x16xf32>
}

// A backward pass needs what GELU is of: the product does the bias.
// CHECK-LABEL: @kept
// CHECK: %[[U:.*]] = kern.matmul ins({{.*}}) bias(%arg2 : tensor<16xf32>)
// CHECK: linalg.generic
// CHECK-NOT: arith.addf %in, %in
// CHECK: math.tanh
// CHECK: return %{{.*}}, %[[U]]
func.func @kept(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>) attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %2 = nn.unary gelu_tanh %1 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %2, %1 : tensor<4x16xf32>, tensor<4x16xf32>
}

// LoRA: x w + b + (x a) b2 / 4, a chain.
// CHECK-LABEL: @lora
// CHECK-NOT: linalg.generic
// CHECK: %[[BASE:.*]] = kern.matmul ins(%arg0, %arg1 : {{.*}}) outs
// CHECK: kern.matmul ins({{.*}}, %arg4 : {{.*}}) add(%[[BASE]] : tensor<4x16xf32>) bias(%arg2 : tensor<16xf32>) outs({{.*}}) {alpha = 2.500000e-01 : f64}
// CHECK-NOT: linalg.generic
func.func @lora(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>, %a: tensor<8x2xf32>, %b2: tensor<2x16xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %quarter = nn.constant dense<0.25> : tensor<f32>
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %2 = nn.matmul %x, %a : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %3 = nn.matmul %2, %b2 : (tensor<4x2xf32>, tensor<2x16xf32>) -> tensor<4x16xf32>
  %4 = nn.binary mul %3, %quarter : (tensor<4x16xf32>, tensor<f32>) -> tensor<4x16xf32>
  %5 = nn.binary add %1, %4 : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  return %5 : tensor<4x16xf32>
}

// A narrow result is of narrow factors, and its bias is as narrow.
// CHECK-LABEL: @rounded
// CHECK-NOT: linalg.generic
// CHECK: kern.matmul ins({{.*}}) bias(%arg2 : tensor<16xbf16>) outs({{.*}} : tensor<4x16xbf16>)
// CHECK-NOT: linalg.generic
func.func @rounded(%x: tensor<4x8xbf16>, %w: tensor<8x16xbf16>, %b: tensor<16xbf16>) -> tensor<4x16xbf16> attributes {nn.layer} {
  %x1 = nn.cast %x : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %w1 = nn.cast %w : (tensor<8x16xbf16>) -> tensor<8x16xf32>
  %b1 = nn.cast %b : (tensor<16xbf16>) -> tensor<16xf32>
  %0 = nn.matmul %x1, %w1 : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b1 : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %2 = nn.cast %1 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
  return %2 : tensor<4x16xbf16>
}

// CHECK-LABEL: @only_rounded
// CHECK: kern.matmul ins({{.*}}) outs({{.*}} : tensor<4x16xf16>) -> tensor<4x16xf16>
// CHECK-NOT: linalg.generic
func.func @only_rounded(%x: tensor<4x8xf16>, %w: tensor<8x16xf16>) -> tensor<4x16xf16> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf16>, tensor<8x16xf16>) -> tensor<4x16xf16>
  return %0 : tensor<4x16xf16>
}

// cuBLASLt has no f32 bias for a narrow result.
// CHECK-LABEL: @wide_for_narrow
// CHECK: kern.matmul ins({{.*}}) outs({{.*}} : tensor<4x16xf32>)
// CHECK: linalg.generic
// CHECK: arith.truncf
func.func @wide_for_narrow(%x: tensor<4x8xbf16>, %w: tensor<8x16xbf16>, %b: tensor<16xf32>) -> tensor<4x16xbf16> attributes {nn.layer} {
  %x1 = nn.cast %x : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %w1 = nn.cast %w : (tensor<8x16xbf16>) -> tensor<8x16xf32>
  %0 = nn.matmul %x1, %w1 : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %2 = nn.cast %1 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
  return %2 : tensor<4x16xbf16>
}

// Nor a narrow bias for an f32 result.
// CHECK-LABEL: @narrow_for_wide
// CHECK: kern.matmul ins({{.*}}) outs
// CHECK: linalg.generic
// CHECK: arith.extf
func.func @narrow_for_wide(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xbf16>) -> tensor<4x16xf32> attributes {nn.layer} {
  %b1 = nn.cast %b : (tensor<16xbf16>) -> tensor<16xf32>
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b1 : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}

// Nor narrow results of wide factors.
// CHECK-LABEL: @wide_factors
// CHECK: kern.matmul ins({{.*}}) outs({{.*}} : tensor<4x16xf32>)
// CHECK: linalg.generic
func.func @wide_factors(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>) -> tensor<4x16xbf16> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.cast %0 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
  return %1 : tensor<4x16xbf16>
}

// Sums of products that are rounded would be rounded twice.
// CHECK-LABEL: @rounded_chain
// CHECK: linalg.generic
func.func @rounded_chain(%x: tensor<4x8xbf16>, %w: tensor<8x16xbf16>, %v: tensor<8x16xbf16>) -> tensor<4x16xbf16> attributes {nn.layer} {
  %x1 = nn.cast %x : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %w1 = nn.cast %w : (tensor<8x16xbf16>) -> tensor<8x16xf32>
  %v1 = nn.cast %v : (tensor<8x16xbf16>) -> tensor<8x16xf32>
  %0 = nn.matmul %x1, %w1 : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.matmul %x1, %v1 : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %2 = nn.binary add %0, %1 : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %3 = nn.cast %2 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
  return %3 : tensor<4x16xbf16>
}

// f64 has sums, and neither bias nor GELU.
// CHECK-LABEL: @double
// CHECK: kern.matmul ins({{.*}}) add(%arg2 : tensor<4x16xf64>)
// CHECK: linalg.generic
func.func @double(%x: tensor<4x8xf64>, %w: tensor<8x16xf64>, %r: tensor<4x16xf64>, %b: tensor<16xf64>) -> (tensor<4x16xf64>, tensor<4x16xf64>) attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf64>, tensor<8x16xf64>) -> tensor<4x16xf64>
  %1 = nn.binary add %0, %r : (tensor<4x16xf64>, tensor<4x16xf64>) -> tensor<4x16xf64>
  %2 = nn.matmul %1, %w transpose_b : (tensor<4x16xf64>, tensor<8x16xf64>) -> tensor<4x8xf64>
  %3 = nn.matmul %2, %w : (tensor<4x8xf64>, tensor<8x16xf64>) -> tensor<4x16xf64>
  %4 = nn.binary add %3, %b : (tensor<4x16xf64>, tensor<16xf64>) -> tensor<4x16xf64>
  return %1, %4 : tensor<4x16xf64>, tensor<4x16xf64>
}

// Others read the product.
// CHECK-LABEL: @shared
// CHECK: kern.matmul ins({{.*}}) outs
// CHECK: linalg.generic
func.func @shared(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>) attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  return %0, %1 : tensor<4x16xf32>, tensor<4x16xf32>
}

// A bias along rows, and one that has a row of its own for each matrix.
// CHECK-LABEL: @other_axis
// CHECK: kern.matmul ins({{.*}}) outs
// CHECK: linalg.generic
// CHECK: kern.matmul ins({{.*}}) outs
// CHECK: linalg.generic
func.func @other_axis(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<4x1xf32>, %y: tensor<2x4x8xf32>, %v: tensor<2x8x16xf32>, %c: tensor<2x1x16xf32>) -> (tensor<4x16xf32>, tensor<2x4x16xf32>) attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<4x1xf32>) -> tensor<4x16xf32>
  %2 = nn.matmul %y, %v : (tensor<2x4x8xf32>, tensor<2x8x16xf32>) -> tensor<2x4x16xf32>
  %3 = nn.binary add %2, %c : (tensor<2x4x16xf32>, tensor<2x1x16xf32>) -> tensor<2x4x16xf32>
  return %1, %3 : tensor<4x16xf32>, tensor<2x4x16xf32>
}

// Two matrices; another function; a difference; a scale of the whole sum.
// CHECK-LABEL: @more
// CHECK-COUNT-4: linalg.generic
func.func @more(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %r: tensor<4x16xf32>, %s: tensor<4x16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x16xf32>) attributes {nn.layer} {
  %half = nn.constant dense<0.5> : tensor<f32>
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %r : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %2 = nn.binary add %1, %s : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %3 = nn.matmul %2, %w transpose_b : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  %4 = nn.matmul %3, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %5 = nn.unary silu %4 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %6 = nn.matmul %5, %w transpose_b : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  %7 = nn.matmul %6, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %8 = nn.binary sub %7, %r : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %9 = nn.matmul %8, %w transpose_b : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  %10 = nn.matmul %9, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %11 = nn.binary add %10, %r : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %12 = nn.binary mul %11, %half : (tensor<4x16xf32>, tensor<f32>) -> tensor<4x16xf32>
  return %2, %5, %8, %12 : tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x16xf32>
}

// A product that is added twice is read twice.
// CHECK-LABEL: @twice
// CHECK: kern.matmul ins({{.*}}) outs
// CHECK: linalg.generic
func.func @twice(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = nn.binary add %0, %0 : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}

// A part of a vector may begin anywhere.
// CHECK-LABEL: @part
// CHECK: kern.matmul ins({{.*}}) outs
// CHECK: linalg.generic
func.func @part(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %v: tensor<20xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %b = nn.slice %v [2] to [18] by [1] : (tensor<20xf32>) -> tensor<16xf32>
  %1 = nn.binary add %0, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}
