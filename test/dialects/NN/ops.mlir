// RUN: mgq-opt %s --verify-roundtrip | FileCheck %s

// Every op parses what it prints.

// CHECK: nn.param @w : tensor<4x8xf32> = "m.onnx"[0 : 128]
nn.param @w : tensor<4x8xf32> = "m.onnx"[0 : 128]
// CHECK: nn.param @a.b trainable : tensor<8x4xf32> = "m.onnx.data"[128 : 128] {canonical_permutation = array<i64: 1, 0>}
nn.param @a.b trainable : tensor<8x4xf32> = "m.onnx.data"[128 : 128] {canonical_permutation = array<i64: 1, 0>}
// CHECK: nn.param @frozen frozen : tensor<4xi1> = "m.onnx.data"[0 : 4]
nn.param @frozen frozen : tensor<4xi1> = "m.onnx.data"[0 : 4]

// CHECK-LABEL: @parameters
func.func @parameters() -> (tensor<4x8xf32>, tensor<2xi64>) {
  // CHECK: nn.param_ref @w : tensor<4x8xf32>
  %w = nn.param_ref @w : tensor<4x8xf32>
  // CHECK: nn.constant dense<[1, 2]> : tensor<2xi64>
  %c = nn.constant dense<[1, 2]> : tensor<2xi64>
  return %w, %c : tensor<4x8xf32>, tensor<2xi64>
}

// CHECK-LABEL: @elementwise
func.func @elementwise(%x: tensor<2x4xf32>, %y: tensor<4xf32>) {
  // CHECK: nn.unary gelu_tanh %{{.*}} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %0 = nn.unary gelu_tanh %x : (tensor<2x4xf32>) -> tensor<2x4xf32>
  // CHECK: nn.unary is_nan %{{.*}} : (tensor<2x4xf32>) -> tensor<2x4xi1>
  %1 = nn.unary is_nan %x : (tensor<2x4xf32>) -> tensor<2x4xi1>
  // CHECK: nn.binary add %{{.*}}, %{{.*}} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %2 = nn.binary add %x, %y : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  // CHECK: nn.compare le
  %3 = nn.compare le %x, %y : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xi1>
  // CHECK: nn.select
  %4 = nn.select %3, %x, %y : (tensor<2x4xi1>, tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  // CHECK: nn.cast %{{.*}} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
  %5 = nn.cast %x : (tensor<2x4xf32>) -> tensor<2x4xbf16>
  return
}

// CHECK-LABEL: @dropout
func.func @dropout(%x: tensor<4x6xbf16>, %key: tensor<4xi64>) {
  // CHECK: nn.dropout %{{.*}}, %{{.*}} ratio 5.000000e-02 samples 2 : (tensor<4x6xbf16>, tensor<4xi64>) -> tensor<4x6xbf16>
  %0 = nn.dropout %x, %key ratio 0.05 samples 2 : (tensor<4x6xbf16>, tensor<4xi64>) -> tensor<4x6xbf16>
  return
}

// CHECK-LABEL: @products
func.func @products(%x: tensor<2x3x4xf32>, %w: tensor<8x4xf32>, %i: tensor<1x4x6x6xf32>, %k: tensor<8x2x3x3xf32>) {
  // CHECK: nn.matmul %{{.*}}, %{{.*}} transpose_b : (tensor<2x3x4xf32>, tensor<8x4xf32>) -> tensor<2x3x8xf32>
  %0 = nn.matmul %x, %w transpose_b : (tensor<2x3x4xf32>, tensor<8x4xf32>) -> tensor<2x3x8xf32>
  // CHECK: nn.matmul %{{.*}}, %{{.*}} transpose_a transpose_b
  %t = nn.transpose %x [0, 2, 1] : (tensor<2x3x4xf32>) -> tensor<2x4x3xf32>
  %1 = nn.matmul %t, %w transpose_a transpose_b : (tensor<2x4x3xf32>, tensor<8x4xf32>) -> tensor<2x3x8xf32>
  // CHECK: nn.conv
  %2 = nn.conv %i, %k {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 1, 1>, pads_after = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x4x6x6xf32>, tensor<8x2x3x3xf32>) -> tensor<1x8x6x6xf32>
  // CHECK: nn.conv_grad_input
  %3 = nn.conv_grad_input %2, %k {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 1, 1>, pads_after = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x8x6x6xf32>, tensor<8x2x3x3xf32>) -> tensor<1x4x6x6xf32>
  // CHECK: nn.conv_grad_weight
  %4 = nn.conv_grad_weight %i, %2 {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 1, 1>, pads_after = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x4x6x6xf32>, tensor<1x8x6x6xf32>) -> tensor<8x2x3x3xf32>
  return
}

// CHECK-LABEL: @shapes
func.func @shapes(%x: tensor<2x6xf32>, %z: tensor<f32>, %i: tensor<3xi64>, %e: tensor<2x1xi64>, %n: tensor<4x2xi64>, %m: tensor<2xi1>) {
  // CHECK: nn.reshape %{{.*}} : (tensor<2x6xf32>) -> tensor<3x4xf32>
  %0 = nn.reshape %x : (tensor<2x6xf32>) -> tensor<3x4xf32>
  // CHECK: nn.transpose %{{.*}} [1, 0]
  %1 = nn.transpose %x [1, 0] : (tensor<2x6xf32>) -> tensor<6x2xf32>
  // CHECK: nn.broadcast
  %2 = nn.broadcast %x : (tensor<2x6xf32>) -> tensor<5x2x6xf32>
  // CHECK: nn.slice %{{.*}} [0, 1] to [2, 6] by [1, 2]
  %3 = nn.slice %x [0, 1] to [2, 6] by [1, 2] : (tensor<2x6xf32>) -> tensor<2x3xf32>
  // CHECK: nn.pad %{{.*}}, %{{.*}} [0, 1], [0, 1] interior [1, 0]
  %4 = nn.pad %x, %z [0, 1], [0, 1] interior [1, 0] : (tensor<2x6xf32>, tensor<f32>) -> tensor<3x8xf32>
  // CHECK: nn.concat %{{.*}}, %{{.*}} axis 1
  %5 = nn.concat %x, %3 axis 1 : (tensor<2x6xf32>, tensor<2x3xf32>) -> tensor<2x9xf32>
  // CHECK: nn.gather %{{.*}}, %{{.*}} axis 1
  %6 = nn.gather %x, %i axis 1 : (tensor<2x6xf32>, tensor<3xi64>) -> tensor<2x3xf32>
  // CHECK: nn.gather_grad %{{.*}}, %{{.*}} axis 1
  %7 = nn.gather_grad %6, %i axis 1 : (tensor<2x3xf32>, tensor<3xi64>) -> tensor<2x6xf32>
  // CHECK: nn.gather_elements
  %8 = nn.gather_elements %x, %e axis 1 : (tensor<2x6xf32>, tensor<2x1xi64>) -> tensor<2x1xf32>
  // CHECK: nn.scatter_elements add
  %9 = nn.scatter_elements add %x, %e, %8 axis 1 : (tensor<2x6xf32>, tensor<2x1xi64>, tensor<2x1xf32>) -> tensor<2x6xf32>
  // CHECK: nn.gather_nd %{{.*}}, %{{.*}} batch_dims 0
  %10 = nn.gather_nd %x, %n batch_dims 0 : (tensor<2x6xf32>, tensor<4x2xi64>) -> tensor<4xf32>
  // CHECK: nn.scatter_nd replace
  %11 = nn.scatter_nd replace %x, %n, %10 : (tensor<2x6xf32>, tensor<4x2xi64>, tensor<4xf32>) -> tensor<2x6xf32>
  // CHECK: nn.masked_gather
  %12 = nn.masked_gather %x, %m : (tensor<2x6xf32>, tensor<2xi1>) -> tensor<1x6xf32>
  // CHECK: nn.masked_scatter
  %13 = nn.masked_scatter %x, %m, %12 : (tensor<2x6xf32>, tensor<2xi1>, tensor<1x6xf32>) -> tensor<2x6xf32>
  return
}

// The ops between the importer and nn-simplify have dynamic results.
// CHECK-LABEL: @dynamic
func.func @dynamic(%m: tensor<2x6xi1>, %x: tensor<12xf32>, %i: tensor<1xi64>) {
  // CHECK: nn.non_zero %{{.*}} : (tensor<2x6xi1>) -> tensor<2x?xi64>
  %0 = nn.non_zero %m : (tensor<2x6xi1>) -> tensor<2x?xi64>
  // CHECK: nn.shape
  %1 = nn.shape %0 : (tensor<2x?xi64>) -> tensor<2xi64>
  // CHECK: nn.dynamic_slice
  %2 = nn.dynamic_slice %x, %i, %i, %i, %i : (tensor<12xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<?xf32>
  return
}

// CHECK-LABEL: @reductions
func.func @reductions(%x: tensor<2x6xf32>, %image: tensor<1x1x4x4xf32>) {
  // CHECK: nn.reduce sum %{{.*}} axes [1] keep_dims
  %0 = nn.reduce sum %x axes [1] keep_dims : (tensor<2x6xf32>) -> tensor<2x1xf32>
  // CHECK: nn.reduce max %{{.*}} axes [0, 1] :
  %1 = nn.reduce max %x axes [0, 1] : (tensor<2x6xf32>) -> tensor<f32>
  // CHECK: nn.arg_reduce max %{{.*}} axis 1 select_last
  %2 = nn.arg_reduce max %x axis 1 select_last : (tensor<2x6xf32>) -> tensor<2xi64>
  // CHECK: nn.cumsum %{{.*}} axis 1 exclusive reverse
  %3 = nn.cumsum %x axis 1 exclusive reverse : (tensor<2x6xf32>) -> tensor<2x6xf32>
  // CHECK: nn.pool average %{{.*}} window [2, 2]
  %4 = nn.pool average %image window [2, 2] {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<1x1x4x4xf32>) -> tensor<1x1x2x2xf32>
  // CHECK: nn.pool_grad average
  %5 = nn.pool_grad average %image, %4 window [2, 2] {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<1x1x4x4xf32>, tensor<1x1x2x2xf32>) -> tensor<1x1x4x4xf32>
  return
}

// CHECK-LABEL: @norms
func.func @norms(%x: tensor<2x6xf32>, %w: tensor<6xf32>) {
  // CHECK: nn.softmax %{{.*}} axis 1
  %0 = nn.softmax %x axis 1 : (tensor<2x6xf32>) -> tensor<2x6xf32>
  // CHECK: nn.log_softmax %{{.*}} axis 1
  %1 = nn.log_softmax %x axis 1 : (tensor<2x6xf32>) -> tensor<2x6xf32>
  // CHECK: nn.layer_norm %{{.*}} scale %{{.*}} bias %{{.*}} {axis = 1 : i64, epsilon = 1.000000e-05 : f64}
  %2 = nn.layer_norm %x scale %w bias %w {axis = 1 : i64, epsilon = 1.0e-5 : f64} : (tensor<2x6xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<2x6xf32>
  // CHECK: nn.layer_norm_grad
  %3 = nn.layer_norm_grad %x, %x {axis = 1 : i64, epsilon = 1.0e-5 : f64} : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
  // CHECK: nn.rms_norm %{{.*}} scale %{{.*}} {axis = 1 : i64, epsilon = {{.*}} : f64}
  %4 = nn.rms_norm %x scale %w {axis = 1 : i64, epsilon = 1.0e-5 : f64} : (tensor<2x6xf32>, tensor<6xf32>) -> tensor<2x6xf32>
  // CHECK: nn.rms_norm_grad
  %5 = nn.rms_norm_grad %x, %x {axis = 1 : i64, epsilon = 1.0e-6 : f64} : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
  return
}

// CHECK-LABEL: @transformers
func.func @transformers(%q: tensor<1x4x3x8xf32>, %kv: tensor<1x2x5x8xf32>, %mask: tensor<3x5xi1>, %cos: tensor<3x8xf32>) {
  // CHECK: nn.attention %{{.*}}, %{{.*}}, %{{.*}} mask %{{.*}} causal {causal_from_end, scale = 5.000000e-01 : f64, softcap = 3.000000e+01 : f64}
  %0 = nn.attention %q, %kv, %kv mask %mask causal {scale = 0.5 : f64, causal_from_end, softcap = 30.0 : f64} : (tensor<1x4x3x8xf32>, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>, tensor<3x5xi1>) -> tensor<1x4x3x8xf32>
  // CHECK: nn.attention_grad
  %1:3 = nn.attention_grad %q, %kv, %kv, %0, %0 mask %mask causal {scale = 0.5 : f64} : (tensor<1x4x3x8xf32>, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>, tensor<1x4x3x8xf32>, tensor<1x4x3x8xf32>, tensor<3x5xi1>) -> (tensor<1x4x3x8xf32>, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>)
  // CHECK: nn.rope %{{.*}}, %{{.*}}, %{{.*}} interleaved transposed
  %2 = nn.rope %q, %cos, %cos interleaved transposed : (tensor<1x4x3x8xf32>, tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<1x4x3x8xf32>
  return
}

// CHECK-LABEL: @loss
func.func @loss(%x: tensor<3x7xf32>, %labels: tensor<3xi64>, %w: tensor<7xf32>) {
  // CHECK: nn.cross_entropy %{{.*}}, %{{.*}} weight %{{.*}} {ignore_index = -100 : i64}
  %0 = nn.cross_entropy %x, %labels weight %w {ignore_index = -100 : i64} : (tensor<3x7xf32>, tensor<3xi64>, tensor<7xf32>) -> tensor<3xf32>
  // CHECK: nn.cross_entropy_grad
  %1 = nn.cross_entropy_grad %x, %labels, %0 : (tensor<3x7xf32>, tensor<3xi64>, tensor<3xf32>) -> tensor<3x7xf32>
  // CHECK: nn.label_weights
  %2 = nn.label_weights %labels {ignore_index = -100 : i64} : (tensor<3xi64>) -> tensor<3xf32>
  return
}

// CHECK-LABEL: @optimizer
func.func @optimizer(%p: tensor<16xf32>, %scalars: tensor<9xf32>) {
  // CHECK: nn.adamw
  %0:3 = nn.adamw %p, %p, %p, %p, %scalars : (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<9xf32>) -> (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>)
  // CHECK: nn.sq_norm
  %1 = nn.sq_norm %p : (tensor<16xf32>) -> tensor<f64>
  return
}
