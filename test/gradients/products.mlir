// Gradients of products and convolutions.

// All transpose flags on plain matrices.
func.func private @matmul_nn(%a: tensor<2x3xf64>, %b: tensor<3x4xf64>) -> (tensor<2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

func.func private @matmul_tn(%a: tensor<3x2xf64>, %b: tensor<3x4xf64>) -> (tensor<2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_a : (tensor<3x2xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

func.func private @matmul_nt(%a: tensor<2x3xf64>, %b: tensor<4x3xf64>) -> (tensor<2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_b : (tensor<2x3xf64>, tensor<4x3xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

func.func private @matmul_tt(%a: tensor<3x2xf64>, %b: tensor<4x3xf64>) -> (tensor<2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_a transpose_b : (tensor<3x2xf64>, tensor<4x3xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

// A weight under a batch: one product for its gradient.
func.func private @matmul_linear_nn(%a: tensor<2x5x3xf64>, %b: tensor<3x4xf64>) -> (tensor<2x5x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b : (tensor<2x5x3xf64>, tensor<3x4xf64>) -> tensor<2x5x4xf64>
  return %r : tensor<2x5x4xf64>
}

func.func private @matmul_linear_nt(%a: tensor<2x5x3xf64>, %b: tensor<4x3xf64>) -> (tensor<2x5x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_b : (tensor<2x5x3xf64>, tensor<4x3xf64>) -> tensor<2x5x4xf64>
  return %r : tensor<2x5x4xf64>
}

func.func private @matmul_linear_tn(%a: tensor<2x3x5xf64>, %b: tensor<3x4xf64>) -> (tensor<2x5x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_a : (tensor<2x3x5xf64>, tensor<3x4xf64>) -> tensor<2x5x4xf64>
  return %r : tensor<2x5x4xf64>
}

func.func private @matmul_linear_tt(%a: tensor<2x3x5xf64>, %b: tensor<4x3xf64>) -> (tensor<2x5x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_a transpose_b : (tensor<2x3x5xf64>, tensor<4x3xf64>) -> tensor<2x5x4xf64>
  return %r : tensor<2x5x4xf64>
}

func.func private @matmul_linear_one(%a: tensor<2x5x3xf64>, %b: tensor<1x3x4xf64>) -> (tensor<2x5x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b : (tensor<2x5x3xf64>, tensor<1x3x4xf64>) -> tensor<2x5x4xf64>
  return %r : tensor<2x5x4xf64>
}

// A weight on the left of a batch.
func.func private @matmul_left_weight(%a: tensor<5x3xf64>, %b: tensor<2x3x4xf64>) -> (tensor<2x5x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b : (tensor<5x3xf64>, tensor<2x3x4xf64>) -> tensor<2x5x4xf64>
  return %r : tensor<2x5x4xf64>
}

// Leading dimensions of both sides broadcast.
func.func private @matmul_batch_nn(%a: tensor<2x1x2x3xf64>, %b: tensor<3x3x4xf64>) -> (tensor<2x3x2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b : (tensor<2x1x2x3xf64>, tensor<3x3x4xf64>) -> tensor<2x3x2x4xf64>
  return %r : tensor<2x3x2x4xf64>
}

func.func private @matmul_batch_tn(%a: tensor<2x1x3x2xf64>, %b: tensor<3x3x4xf64>) -> (tensor<2x3x2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_a : (tensor<2x1x3x2xf64>, tensor<3x3x4xf64>) -> tensor<2x3x2x4xf64>
  return %r : tensor<2x3x2x4xf64>
}

func.func private @matmul_batch_nt(%a: tensor<2x1x2x3xf64>, %b: tensor<3x4x3xf64>) -> (tensor<2x3x2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_b : (tensor<2x1x2x3xf64>, tensor<3x4x3xf64>) -> tensor<2x3x2x4xf64>
  return %r : tensor<2x3x2x4xf64>
}

func.func private @matmul_batch_tt(%a: tensor<2x1x3x2xf64>, %b: tensor<3x4x3xf64>) -> (tensor<2x3x2x4xf64>) attributes {nn.layer} {
  %r = nn.matmul %a, %b transpose_a transpose_b : (tensor<2x1x3x2xf64>, tensor<3x4x3xf64>) -> tensor<2x3x2x4xf64>
  return %r : tensor<2x3x2x4xf64>
}

func.func private @conv_plain(%x: tensor<1x2x4x5xf64>, %w: tensor<3x2x2x3xf64>) -> (tensor<1x3x3x3xf64>) attributes {nn.layer} {
  %r = nn.conv %x, %w {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<1x2x4x5xf64>, tensor<3x2x2x3xf64>) -> tensor<1x3x3x3xf64>
  return %r : tensor<1x3x3x3xf64>
}

// A patch embedding: the stride is the window.
func.func private @conv_patch(%x: tensor<2x3x4x4xf64>, %w: tensor<5x3x2x2xf64>) -> (tensor<2x5x2x2xf64>) attributes {nn.layer} {
  %r = nn.conv %x, %w {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<2x3x4x4xf64>, tensor<5x3x2x2xf64>) -> tensor<2x5x2x2xf64>
  return %r : tensor<2x5x2x2xf64>
}

func.func private @conv_padded(%x: tensor<1x2x5x5xf64>, %w: tensor<2x2x3x3xf64>) -> (tensor<1x2x3x1xf64>) attributes {nn.layer} {
  %r = nn.conv %x, %w {strides = array<i64: 2, 2>, dilations = array<i64: 1, 2>, pads_before = array<i64: 1, 1>, pads_after = array<i64: 1, 0>, groups = 1 : i64} : (tensor<1x2x5x5xf64>, tensor<2x2x3x3xf64>) -> tensor<1x2x3x1xf64>
  return %r : tensor<1x2x3x1xf64>
}

func.func private @conv_groups(%x: tensor<1x4x5xf64>, %w: tensor<6x2x3xf64>) -> (tensor<1x6x5xf64>) attributes {nn.layer} {
  %r = nn.conv %x, %w {strides = array<i64: 1>, dilations = array<i64: 1>, pads_before = array<i64: 1>, pads_after = array<i64: 1>, groups = 2 : i64} : (tensor<1x4x5xf64>, tensor<6x2x3xf64>) -> tensor<1x6x5xf64>
  return %r : tensor<1x6x5xf64>
}

func.func private @conv_3d(%x: tensor<1x1x3x3x3xf64>, %w: tensor<2x1x2x2x2xf64>) -> (tensor<1x2x2x2x2xf64>) attributes {nn.layer} {
  %r = nn.conv %x, %w {strides = array<i64: 1, 1, 1>, dilations = array<i64: 1, 1, 1>, pads_before = array<i64: 0, 0, 0>, pads_after = array<i64: 0, 0, 0>, groups = 1 : i64} : (tensor<1x1x3x3x3xf64>, tensor<2x1x2x2x2xf64>) -> tensor<1x2x2x2x2xf64>
  return %r : tensor<1x2x2x2x2xf64>
}

// conv_grad_input as an op of the forward pass.
func.func private @conv_transposed(%x: tensor<1x3x3x3xf64>, %w: tensor<3x2x2x3xf64>) -> (tensor<1x2x4x5xf64>) attributes {nn.layer} {
  %r = nn.conv_grad_input %x, %w {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<1x3x3x3xf64>, tensor<3x2x2x3xf64>) -> tensor<1x2x4x5xf64>
  return %r : tensor<1x2x4x5xf64>
}

func.func private @conv_transposed_strided(%x: tensor<1x2x3x1xf64>, %w: tensor<2x2x3x3xf64>) -> (tensor<1x2x5x5xf64>) attributes {nn.layer} {
  %r = nn.conv_grad_input %x, %w {strides = array<i64: 2, 2>, dilations = array<i64: 1, 2>, pads_before = array<i64: 1, 1>, pads_after = array<i64: 1, 0>, groups = 1 : i64} : (tensor<1x2x3x1xf64>, tensor<2x2x3x3xf64>) -> tensor<1x2x5x5xf64>
  return %r : tensor<1x2x5x5xf64>
}
