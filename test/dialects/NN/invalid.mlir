// RUN: mgq-opt %s --split-input-file --verify-diagnostics

// param_c1: the length is the size of the type.
// expected-error @below {{'nn.param' op has length 4, expected 8 bytes for 'tensor<2xf32>'}}
nn.param @w : tensor<2xf32> = "m.onnx"[0 : 4]

// -----

// expected-error @below {{'nn.param' op has type 'tensor<?xf32>', expected a static shape}}
nn.param @w : tensor<?xf32> = "m.onnx"[0 : 4]

// -----

// expected-error @below {{'nn.param' op has negative offset -4}}
nn.param @w : tensor<2xf32> = "m.onnx"[-4 : 8]

// -----

// expected-error @below {{'nn.param' op has a canonical permutation of 2 dimensions, expected 1}}
nn.param @w : tensor<2xf32> = "m.onnx"[0 : 8] {canonical_permutation = array<i64: 1, 0>}

// -----

func.func private @w()
func.func @f() {
  // expected-error @below {{'nn.param_ref' op refers to @w, which is not an nn.param}}
  %0 = nn.param_ref @w : tensor<2xf32>
  return
}

// -----

// param_ref_c1: the type is the parameter's.
// expected-note @below {{parameter declared here}}
nn.param @w : tensor<2xf32> = "m.onnx"[0 : 8]
func.func @f() {
  // expected-error @below {{'nn.param_ref' op has type 'tensor<3xf32>', expected 'tensor<2xf32>'}}
  %0 = nn.param_ref @w : tensor<3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x3xf32>, %y: tensor<4xf32>) {
  // expected-error @+2 {{shapes 2x3 and 4 do not broadcast}}
  // expected-error @below {{'nn.binary' op failed to infer returned types}}
  %0 = nn.binary add %x, %y : (tensor<2x3xf32>, tensor<4xf32>) -> tensor<2x3xf32>
  return
}

// -----

// binary_c1: element types are equal.
func.func @f(%x: tensor<3xf32>, %y: tensor<3xi64>) {
  // expected-error @below {{'nn.binary' op has operands of 'f32' and 'i64', expected equal element types}}
  %0 = nn.binary add %x, %y : (tensor<3xf32>, tensor<3xi64>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x3xf32>, %y: tensor<4xf32>) {
  // expected-error @+2 {{shapes 2x3 and 4 do not broadcast}}
  // expected-error @below {{'nn.compare' op failed to infer returned types}}
  %0 = nn.compare eq %x, %y : (tensor<2x3xf32>, tensor<4xf32>) -> tensor<2x3xi1>
  return
}

// -----

func.func @f(%x: tensor<3xf32>) {
  // expected-error @+2 {{matmul of 3 and 3: operands need rank 2 or more}}
  // expected-error @below {{'nn.matmul' op failed to infer returned types}}
  %0 = nn.matmul %x, %x : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x3x3xf32>, %y: tensor<4x3x3xf32>) {
  // expected-error @+2 {{leading dimensions of 2x3x3 and 4x3x3 do not broadcast}}
  // expected-error @below {{'nn.matmul' op failed to infer returned types}}
  %0 = nn.matmul %x, %y : (tensor<2x3x3xf32>, tensor<4x3x3xf32>) -> tensor<2x3x3xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>) {
  // expected-error @+2 {{matmul of 3x4 and 3x4: inner dimensions 4 and 3 differ}}
  // expected-error @below {{'nn.matmul' op failed to infer returned types}}
  %0 = nn.matmul %x, %x : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<1x3x4xf32>, %w: tensor<2x3x1xf32>) {
  // expected-error @+2 {{convolution of 1x3x4 by 2x3x1 over 2 spatial dimensions}}
  // expected-error @below {{'nn.conv' op failed to infer returned types}}
  %0 = nn.conv %x, %w {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<1x3x4xf32>, tensor<2x3x1xf32>) -> tensor<1x2x4xf32>
  return
}

// -----

func.func @f(%x: tensor<1x3x4xf32>, %w: tensor<2x3x1xf32>) {
  // expected-error @+2 {{convolution of 1x3x4 by 2x3x1 in 2 groups: channels do not match}}
  // expected-error @below {{'nn.conv' op failed to infer returned types}}
  %0 = nn.conv %x, %w {strides = array<i64: 1>, dilations = array<i64: 1>, pads_before = array<i64: 0>, pads_after = array<i64: 0>, groups = 2 : i64} : (tensor<1x3x4xf32>, tensor<2x3x1xf32>) -> tensor<1x2x4xf32>
  return
}

// -----

func.func @f(%x: tensor<1x3x4xf32>, %w: tensor<2x3x5xf32>) {
  // expected-error @+2 {{convolution window 2x3x5 is larger than its padded input 1x3x4}}
  // expected-error @below {{'nn.conv' op failed to infer returned types}}
  %0 = nn.conv %x, %w {strides = array<i64: 1>, dilations = array<i64: 1>, pads_before = array<i64: 0>, pads_after = array<i64: 0>, groups = 1 : i64} : (tensor<1x3x4xf32>, tensor<2x3x5xf32>) -> tensor<1x2x4xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>) {
  // expected-error @below {{'nn.reshape' op changes the element type from 'f32' to 'f64'}}
  %0 = nn.reshape %x : (tensor<3x4xf32>) -> tensor<12xf64>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>) {
  // expected-error @below {{'nn.reshape' op changes the number of elements from 12 to 13}}
  %0 = nn.reshape %x : (tensor<3x4xf32>) -> tensor<13xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>) {
  // expected-error @+2 {{permutation [0, 0] does not fit a tensor of rank 2}}
  // expected-error @below {{'nn.transpose' op failed to infer returned types}}
  %0 = nn.transpose %x [0, 0] : (tensor<3x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>) {
  // expected-error @below {{'nn.broadcast' op cannot expand 'tensor<3x4xf32>' to 'tensor<3x5xf32>'}}
  %0 = nn.broadcast %x : (tensor<3x4xf32>) -> tensor<3x5xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>) {
  // expected-error @+2 {{slice of a tensor of rank 2 needs as many starts, limits and strides}}
  // expected-error @below {{'nn.slice' op failed to infer returned types}}
  %0 = nn.slice %x [0] to [3] by [1] : (tensor<3x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>) {
  // expected-error @+2 {{slice 0 to 5 by 1 does not fit a dimension of 4}}
  // expected-error @below {{'nn.slice' op failed to infer returned types}}
  %0 = nn.slice %x [0, 0] to [3, 5] by [1, 1] : (tensor<3x4xf32>) -> tensor<3x5xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %z: tensor<f32>) {
  // expected-error @+2 {{pad of a tensor of rank 2 needs as many amounts}}
  // expected-error @below {{'nn.pad' op failed to infer returned types}}
  %0 = nn.pad %x, %z [0], [0] interior [0] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<3xf32>, %z: tensor<f32>) {
  // expected-error @+2 {{pad by a negative amount}}
  // expected-error @below {{'nn.pad' op failed to infer returned types}}
  %0 = nn.pad %x, %z [-1], [0] interior [0] : (tensor<3xf32>, tensor<f32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %y: tensor<3xf32>) {
  // expected-error @+2 {{concat of 3x4 and 3}}
  // expected-error @below {{'nn.concat' op failed to infer returned types}}
  %0 = nn.concat %x, %y axis 0 : (tensor<3x4xf32>, tensor<3xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %y: tensor<3x5xf32>) {
  // expected-error @+2 {{concat of 3x4 and 3x5 along axis 0}}
  // expected-error @below {{'nn.concat' op failed to infer returned types}}
  %0 = nn.concat %x, %y axis 0 : (tensor<3x4xf32>, tensor<3x5xf32>) -> tensor<6x4xf32>
  return
}

// -----

func.func @f() {
  // expected-error @+2 {{concat of nothing}}
  // expected-error @below {{'nn.concat' op failed to infer returned types}}
  %0 = "nn.concat"() {axis = 0 : i64} : () -> tensor<1xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %i: tensor<2xi64>) {
  // expected-error @+2 {{axis 2 is outside a tensor of rank 2}}
  // expected-error @below {{'nn.gather' op failed to infer returned types}}
  %0 = nn.gather %x, %i axis 2 : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<3x2xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %i: tensor<2xi64>) {
  // expected-error @+2 {{input 3x4 and indices 2 have different ranks}}
  // expected-error @below {{'nn.gather_elements' op failed to infer returned types}}
  %0 = nn.gather_elements %x, %i axis 0 : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %i: tensor<2x4xi64>, %u: tensor<1x4xf32>) {
  // expected-error @+2 {{updates 1x4 and indices 2x4 into 3x4}}
  // expected-error @below {{'nn.scatter_elements' op failed to infer returned types}}
  %0 = nn.scatter_elements add %x, %i, %u axis 0 : (tensor<3x4xf32>, tensor<2x4xi64>, tensor<1x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %i: tensor<2x3xi64>) {
  // expected-error @+2 {{index tuples 2x3 into 3x4 with 0 batch dimensions}}
  // expected-error @below {{'nn.gather_nd' op failed to infer returned types}}
  %0 = nn.gather_nd %x, %i batch_dims 0 : (tensor<3x4xf32>, tensor<2x3xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %m: tensor<2xi1>, %s: tensor<2x4xf32>) {
  // expected-error @+2 {{masked_scatter of rows 2x4 into 3x4 by mask 2}}
  // expected-error @below {{'nn.masked_scatter' op failed to infer returned types}}
  %0 = nn.masked_scatter %x, %m, %s : (tensor<3x4xf32>, tensor<2xi1>, tensor<2x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<3x4xf32>, %w: tensor<3xf32>) {
  // expected-error @+2 {{scale or bias 3 does not broadcast to 3x4}}
  // expected-error @below {{'nn.rms_norm' op failed to infer returned types}}
  %0 = nn.rms_norm %x scale %w {axis = 1 : i64, epsilon = 1.0e-6 : f64} : (tensor<3x4xf32>, tensor<3xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%q: tensor<1x3x4x8xf32>, %k: tensor<1x2x4x8xf32>) {
  // expected-error @+2 {{attention of q 1x3x4x8, k 1x2x4x8, v 1x2x4x8: expected [batch, heads, length, width]}}
  // expected-error @below {{'nn.attention' op failed to infer returned types}}
  %0 = nn.attention %q, %k, %k {scale = 1.0 : f64} : (tensor<1x3x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x3x4x8xf32>
  return
}

// -----

func.func @f(%q: tensor<1x2x4x8xf32>, %m: tensor<4x3xi1>) {
  // expected-error @+2 {{attention mask 4x3 does not broadcast to 1x2x4x4}}
  // expected-error @below {{'nn.attention' op failed to infer returned types}}
  %0 = nn.attention %q, %q, %q mask %m {scale = 1.0 : f64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4x3xi1>) -> tensor<1x2x4x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x3xf32>) {
  // expected-error @+2 {{rope of 2x3: the last dimension must be even}}
  // expected-error @below {{'nn.rope' op failed to infer returned types}}
  %0 = nn.rope %x, %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%x: tensor<2x3xf32>, %l: tensor<3xi64>) {
  // expected-error @+2 {{cross_entropy of logits 2x3 and labels 3: expected [rows, classes] and [rows]}}
  // expected-error @below {{'nn.cross_entropy' op failed to infer returned types}}
  %0 = nn.cross_entropy %x, %l : (tensor<2x3xf32>, tensor<3xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @dropout_c1(%x: tensor<3x4xf32>, %key: tensor<4xi64>) {
  // expected-error @below {{'nn.dropout' op of 'tensor<3x4xf32>': the leading dimension does not hold 2 samples}}
  %0 = nn.dropout %x, %key ratio 0.5 samples 2 : (tensor<3x4xf32>, tensor<4xi64>) -> tensor<3x4xf32>
  return
}

// -----

func.func @dropout_c2(%x: tensor<3x4xf32>, %key: tensor<4xi64>) {
  // expected-error @below {{'nn.dropout' op has ratio 0.000000e+00, expected more than 0 and at most 1}}
  %0 = nn.dropout %x, %key ratio 0.0 samples 1 : (tensor<3x4xf32>, tensor<4xi64>) -> tensor<3x4xf32>
  return
}

// -----

func.func @dropout_key(%x: tensor<3x4xf32>, %key: tensor<2xi64>) {
  // expected-error @below {{'nn.dropout' op has a key of type 'tensor<2xi64>', expected [4]}}
  %0 = nn.dropout %x, %key ratio 0.5 samples 1 : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<3x4xf32>
  return
}
