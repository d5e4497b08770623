// RUN: mgq-opt %s --nn-simplify --split-input-file | FileCheck %s

// dynamo below opset 23: k^T through [B * H, T, D], the scale split over q and
// k^T, an added mask whose hidden value is finite, a guard against NaN. The mask
// stays a float: a row that is all hidden gives uniform weights.
// CHECK-LABEL: @dynamo
// CHECK-SAME: (%[[Q:.*]]: tensor<2x4x3x8xf32>, %[[K:.*]]: tensor<2x4x5x8xf32>, %[[V:.*]]: tensor<2x4x5x8xf32>, %[[M:.*]]: tensor<2x1x3x5xi1>)
// CHECK: %[[MASK:.*]] = nn.select %[[M]], {{.*}} -> tensor<2x1x3x5xf32>
// CHECK-NEXT: %[[Y:.*]] = nn.attention %[[Q]], %[[K]], %[[V]] mask %[[MASK]] {scale = 2.500000e-01 : f64}
// CHECK-NEXT: return %[[Y]]
func.func @dynamo(%q: tensor<2x4x3x8xf32>, %k: tensor<2x4x5x8xf32>, %v: tensor<2x4x5x8xf32>, %m: tensor<2x1x3x5xi1>) -> tensor<2x4x3x8xf32> {
  %s = nn.constant dense<0.5> : tensor<f32>
  %zero = nn.constant dense<0.0> : tensor<f32>
  %hidden = nn.constant dense<0xFF7FFFFF> : tensor<f32>
  %0 = nn.reshape %k : (tensor<2x4x5x8xf32>) -> tensor<8x5x8xf32>
  %1 = nn.transpose %0 [0, 2, 1] : (tensor<8x5x8xf32>) -> tensor<8x8x5xf32>
  %2 = nn.reshape %1 : (tensor<8x8x5xf32>) -> tensor<2x4x8x5xf32>
  %3 = nn.binary mul %q, %s : (tensor<2x4x3x8xf32>, tensor<f32>) -> tensor<2x4x3x8xf32>
  %4 = nn.binary mul %2, %s : (tensor<2x4x8x5xf32>, tensor<f32>) -> tensor<2x4x8x5xf32>
  %5 = nn.select %m, %zero, %hidden : (tensor<2x1x3x5xi1>, tensor<f32>, tensor<f32>) -> tensor<2x1x3x5xf32>
  %6 = nn.matmul %3, %4 : (tensor<2x4x3x8xf32>, tensor<2x4x8x5xf32>) -> tensor<2x4x3x5xf32>
  %7 = nn.binary add %6, %5 : (tensor<2x4x3x5xf32>, tensor<2x1x3x5xf32>) -> tensor<2x4x3x5xf32>
  %8 = nn.softmax %7 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %9 = nn.unary is_nan %8 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xi1>
  %10 = nn.select %9, %zero, %8 : (tensor<2x4x3x5xi1>, tensor<f32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %11 = nn.matmul %10, %v : (tensor<2x4x3x5xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32>
  return %11 : tensor<2x4x3x8xf32>
}

// -----

// With -inf and the guard, hidden rows give zeros: the mask is boolean.
// CHECK-LABEL: @torchscript
// CHECK-NEXT: nn.attention %arg0, %arg1, %arg2 mask %arg3 {scale = 5.000000e-01 : f64}
// CHECK-NEXT: return
func.func @torchscript(%q: tensor<2x4x3x8xf32>, %k: tensor<2x4x5x8xf32>, %v: tensor<2x4x5x8xf32>, %m: tensor<2x1x3x5xi1>) -> tensor<2x4x3x8xf32> {
  %s = nn.constant dense<0.5> : tensor<f32>
  %zero = nn.constant dense<0.0> : tensor<1xf32>
  %hidden = nn.constant dense<0xFF800000> : tensor<1xf32>
  %0 = nn.transpose %k [0, 1, 3, 2] : (tensor<2x4x5x8xf32>) -> tensor<2x4x8x5xf32>
  %1 = nn.binary mul %0, %s : (tensor<2x4x8x5xf32>, tensor<f32>) -> tensor<2x4x8x5xf32>
  %5 = nn.select %m, %zero, %hidden : (tensor<2x1x3x5xi1>, tensor<1xf32>, tensor<1xf32>) -> tensor<2x1x3x5xf32>
  %6 = nn.matmul %q, %1 : (tensor<2x4x3x8xf32>, tensor<2x4x8x5xf32>) -> tensor<2x4x3x5xf32>
  %7 = nn.binary add %6, %5 : (tensor<2x4x3x5xf32>, tensor<2x1x3x5xf32>) -> tensor<2x4x3x5xf32>
  %8 = nn.softmax %7 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %9 = nn.unary is_nan %8 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xi1>
  %10 = nn.select %9, %zero, %8 : (tensor<2x4x3x5xi1>, tensor<1xf32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %11 = nn.matmul %10, %v : (tensor<2x4x3x5xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32>
  return %11 : tensor<2x4x3x8xf32>
}

// -----

// Eager attention: one transpose for heads and swap, scale by division, no mask.
// CHECK-LABEL: @eager
// CHECK: %[[K:.*]] = nn.transpose %arg1 [0, 2, 1, 3]
// CHECK-NEXT: nn.attention %arg0, %[[K]], %arg2 {scale = 2.500000e-01 : f64}
// CHECK-NEXT: return
func.func @eager(%q: tensor<2x4x3x8xf32>, %k: tensor<2x5x4x8xf32>, %v: tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32> {
  %s = nn.constant dense<4.0> : tensor<f32>
  %0 = nn.transpose %k [0, 2, 3, 1] : (tensor<2x5x4x8xf32>) -> tensor<2x4x8x5xf32>
  %1 = nn.matmul %q, %0 : (tensor<2x4x3x8xf32>, tensor<2x4x8x5xf32>) -> tensor<2x4x3x5xf32>
  %2 = nn.binary div %1, %s : (tensor<2x4x3x5xf32>, tensor<f32>) -> tensor<2x4x3x5xf32>
  %3 = nn.softmax %2 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %4 = nn.matmul %3, %v : (tensor<2x4x3x5xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32>
  return %4 : tensor<2x4x3x8xf32>
}

// -----

// Grouped queries: keys and values before their repetition.
// CHECK-LABEL: @grouped
// CHECK-NEXT: nn.attention %arg0, %arg1, %arg2 {scale = 1.000000e+00 : f64} : (tensor<2x4x3x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x8xf32>) -> tensor<2x4x3x8xf32>
// CHECK-NEXT: return
func.func @grouped(%q: tensor<2x4x3x8xf32>, %k: tensor<2x2x5x8xf32>, %v: tensor<2x2x5x8xf32>) -> tensor<2x4x3x8xf32> {
  %k1 = nn.reshape %k : (tensor<2x2x5x8xf32>) -> tensor<2x2x1x5x8xf32>
  %k2 = nn.broadcast %k1 : (tensor<2x2x1x5x8xf32>) -> tensor<2x2x2x5x8xf32>
  %k3 = nn.reshape %k2 : (tensor<2x2x2x5x8xf32>) -> tensor<8x5x8xf32>
  %k4 = nn.transpose %k3 [0, 2, 1] : (tensor<8x5x8xf32>) -> tensor<8x8x5xf32>
  %k5 = nn.reshape %k4 : (tensor<8x8x5xf32>) -> tensor<2x4x8x5xf32>
  %v1 = nn.reshape %v : (tensor<2x2x5x8xf32>) -> tensor<2x2x1x5x8xf32>
  %v2 = nn.broadcast %v1 : (tensor<2x2x1x5x8xf32>) -> tensor<2x2x2x5x8xf32>
  %v3 = nn.reshape %v2 : (tensor<2x2x2x5x8xf32>) -> tensor<2x4x5x8xf32>
  %1 = nn.matmul %q, %k5 : (tensor<2x4x3x8xf32>, tensor<2x4x8x5xf32>) -> tensor<2x4x3x5xf32>
  %3 = nn.softmax %1 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %4 = nn.matmul %3, %v3 : (tensor<2x4x3x5xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32>
  return %4 : tensor<2x4x3x8xf32>
}

// -----

// Products over [batch * heads], the mask added on [batch, heads]; a soft cap.
// CHECK-LABEL: @merged_heads
// CHECK-DAG: %[[Q:.*]] = nn.reshape %arg0 : (tensor<8x3x8xf32>) -> tensor<2x4x3x8xf32>
// CHECK: %[[Y:.*]] = nn.attention %[[Q]], %{{.*}}, %{{.*}} mask %arg3 {scale = 5.000000e-01 : f64, softcap = 3.000000e+01 : f64}
// CHECK-NEXT: nn.reshape %[[Y]] : (tensor<2x4x3x8xf32>) -> tensor<8x3x8xf32>
func.func @merged_heads(%q: tensor<8x3x8xf32>, %k: tensor<8x5x8xf32>, %v: tensor<8x5x8xf32>, %m: tensor<2x1x3x5xf32>) -> tensor<8x3x8xf32> {
  %s = nn.constant dense<0.5> : tensor<f32>
  %cap = nn.constant dense<30.0> : tensor<f32>
  %0 = nn.matmul %q, %k transpose_b : (tensor<8x3x8xf32>, tensor<8x5x8xf32>) -> tensor<8x3x5xf32>
  %1 = nn.binary mul %0, %s : (tensor<8x3x5xf32>, tensor<f32>) -> tensor<8x3x5xf32>
  %2 = nn.binary div %1, %cap : (tensor<8x3x5xf32>, tensor<f32>) -> tensor<8x3x5xf32>
  %3 = nn.unary tanh %2 : (tensor<8x3x5xf32>) -> tensor<8x3x5xf32>
  %4 = nn.binary mul %3, %cap : (tensor<8x3x5xf32>, tensor<f32>) -> tensor<8x3x5xf32>
  %5 = nn.reshape %4 : (tensor<8x3x5xf32>) -> tensor<2x4x3x5xf32>
  %6 = nn.binary add %m, %5 : (tensor<2x1x3x5xf32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %7 = nn.reshape %6 : (tensor<2x4x3x5xf32>) -> tensor<8x3x5xf32>
  %8 = nn.softmax %7 axis 2 : (tensor<8x3x5xf32>) -> tensor<8x3x5xf32>
  %9 = nn.matmul %8, %v : (tensor<8x3x5xf32>, tensor<8x5x8xf32>) -> tensor<8x3x8xf32>
  return %9 : tensor<8x3x8xf32>
}

// -----

// masked_fill: scores replaced where the mask is true.
// CHECK-LABEL: @masked_fill
// CHECK: %[[SEES:.*]] = nn.unary not %arg3
// CHECK: nn.attention %arg0, %arg1, %arg2 mask %[[SEES]]
func.func @masked_fill(%q: tensor<2x4x3x8xf32>, %k: tensor<2x4x5x8xf32>, %v: tensor<2x4x5x8xf32>, %m: tensor<3x5xi1>) -> tensor<2x4x3x8xf32> {
  %hidden = nn.constant dense<0xFF800000> : tensor<f32>
  %0 = nn.matmul %q, %k transpose_b : (tensor<2x4x3x8xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x5xf32>
  %1 = nn.select %m, %hidden, %0 : (tensor<3x5xi1>, tensor<f32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %2 = nn.softmax %1 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %3 = nn.matmul %2, %v : (tensor<2x4x3x5xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32>
  return %3 : tensor<2x4x3x8xf32>
}

// -----

// A mask made of a parameter may need a gradient, which attention has not.
nn.param @bias : tensor<3x5xf32> = "m"[0 : 60]
// CHECK-LABEL: @trained_mask
// CHECK-NOT: nn.attention
// CHECK: nn.softmax
func.func @trained_mask(%q: tensor<2x4x3x8xf32>, %k: tensor<2x4x5x8xf32>, %v: tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32> {
  %m = nn.param_ref @bias : tensor<3x5xf32>
  %0 = nn.matmul %q, %k transpose_b : (tensor<2x4x3x8xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x5xf32>
  %1 = nn.binary add %0, %m : (tensor<2x4x3x5xf32>, tensor<3x5xf32>) -> tensor<2x4x3x5xf32>
  %2 = nn.softmax %1 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %3 = nn.matmul %2, %v : (tensor<2x4x3x5xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32>
  return %3 : tensor<2x4x3x8xf32>
}

// -----

// Weights that are an output too are not worth computing twice.
// CHECK-LABEL: @weights_wanted
// CHECK-NOT: nn.attention
func.func @weights_wanted(%q: tensor<2x4x3x8xf32>, %k: tensor<2x4x5x8xf32>, %v: tensor<2x4x5x8xf32>) -> (tensor<2x4x3x8xf32>, tensor<2x4x3x5xf32>) {
  %0 = nn.matmul %q, %k transpose_b : (tensor<2x4x3x8xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x5xf32>
  %2 = nn.softmax %0 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %3 = nn.matmul %2, %v : (tensor<2x4x3x5xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x3x8xf32>
  return %3, %2 : tensor<2x4x3x8xf32>, tensor<2x4x3x5xf32>
}

// -----

// Linear biases over [batch * heads] and a mask over [batch, heads]: their sum.
// CHECK-LABEL: @two_masks
// CHECK-DAG: %[[B:.*]] = nn.reshape %arg3 : (tensor<8x1x5xf32>) -> tensor<2x4x1x5xf32>
// CHECK: %[[M:.*]] = nn.binary add %[[B]], %arg4
// CHECK: nn.attention %{{.*}}, %{{.*}}, %{{.*}} mask %[[M]] {scale = 5.000000e-01 : f64}
func.func @two_masks(%q: tensor<8x3x8xf32>, %k: tensor<8x5x8xf32>, %v: tensor<8x5x8xf32>, %b: tensor<8x1x5xf32>, %m: tensor<2x1x3x5xf32>) -> tensor<8x3x8xf32> {
  %s = nn.constant dense<0.5> : tensor<f32>
  %0 = nn.matmul %q, %k transpose_b : (tensor<8x3x8xf32>, tensor<8x5x8xf32>) -> tensor<8x3x5xf32>
  %1 = nn.binary mul %0, %s : (tensor<8x3x5xf32>, tensor<f32>) -> tensor<8x3x5xf32>
  %2 = nn.binary add %1, %b : (tensor<8x3x5xf32>, tensor<8x1x5xf32>) -> tensor<8x3x5xf32>
  %3 = nn.reshape %2 : (tensor<8x3x5xf32>) -> tensor<2x4x3x5xf32>
  %4 = nn.binary add %3, %m : (tensor<2x4x3x5xf32>, tensor<2x1x3x5xf32>) -> tensor<2x4x3x5xf32>
  %5 = nn.softmax %4 axis 3 : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
  %6 = nn.reshape %5 : (tensor<2x4x3x5xf32>) -> tensor<8x3x5xf32>
  %7 = nn.matmul %6, %v : (tensor<8x3x5xf32>, tensor<8x5x8xf32>) -> tensor<8x3x8xf32>
  return %7 : tensor<8x3x8xf32>
}
