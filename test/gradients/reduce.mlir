// Gradients of reductions and normalisation.

func.func private @reduce_sum(%x: tensor<2x3x4xf64>) -> tensor<3xf64> attributes {nn.layer} {
  %r = nn.reduce sum %x axes [0, 2] : (tensor<2x3x4xf64>) -> tensor<3xf64>
  return %r : tensor<3xf64>
}

func.func private @reduce_sum_keep(%x: tensor<2x3x4xf64>) -> tensor<2x1x4xf64> attributes {nn.layer} {
  %r = nn.reduce sum %x axes [1] keep_dims : (tensor<2x3x4xf64>) -> tensor<2x1x4xf64>
  return %r : tensor<2x1x4xf64>
}

func.func private @reduce_prod(%x: tensor<2x3x4xf64>) -> tensor<3xf64> attributes {nn.layer} {
  %r = nn.reduce prod %x axes [0, 2] : (tensor<2x3x4xf64>) -> tensor<3xf64>
  return %r : tensor<3xf64>
}

func.func private @reduce_prod_keep(%x: tensor<2x3x4xf64>) -> tensor<2x1x4xf64> attributes {nn.layer} {
  %r = nn.reduce prod %x axes [1] keep_dims : (tensor<2x3x4xf64>) -> tensor<2x1x4xf64>
  return %r : tensor<2x1x4xf64>
}

func.func private @reduce_max(%x: tensor<2x3x4xf64>) -> tensor<3xf64> attributes {nn.layer} {
  %r = nn.reduce max %x axes [0, 2] : (tensor<2x3x4xf64>) -> tensor<3xf64>
  return %r : tensor<3xf64>
}

func.func private @reduce_max_keep(%x: tensor<2x3x4xf64>) -> tensor<2x1x4xf64> attributes {nn.layer} {
  %r = nn.reduce max %x axes [1] keep_dims : (tensor<2x3x4xf64>) -> tensor<2x1x4xf64>
  return %r : tensor<2x1x4xf64>
}

func.func private @reduce_min(%x: tensor<2x3x4xf64>) -> tensor<3xf64> attributes {nn.layer} {
  %r = nn.reduce min %x axes [0, 2] : (tensor<2x3x4xf64>) -> tensor<3xf64>
  return %r : tensor<3xf64>
}

func.func private @reduce_min_keep(%x: tensor<2x3x4xf64>) -> tensor<2x1x4xf64> attributes {nn.layer} {
  %r = nn.reduce min %x axes [1] keep_dims : (tensor<2x3x4xf64>) -> tensor<2x1x4xf64>
  return %r : tensor<2x1x4xf64>
}

func.func private @cumsum(%x: tensor<2x4xf64>) -> tensor<2x4xf64> attributes {nn.layer} {
  %r = nn.cumsum %x axis 1 : (tensor<2x4xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

func.func private @cumsum_exclusive(%x: tensor<2x4xf64>) -> tensor<2x4xf64> attributes {nn.layer} {
  %r = nn.cumsum %x axis 1 exclusive : (tensor<2x4xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

func.func private @cumsum_reverse(%x: tensor<2x4xf64>) -> tensor<2x4xf64> attributes {nn.layer} {
  %r = nn.cumsum %x axis 1 reverse : (tensor<2x4xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

func.func private @cumsum_both(%x: tensor<2x4xf64>) -> tensor<2x4xf64> attributes {nn.layer} {
  %r = nn.cumsum %x axis 1 exclusive reverse : (tensor<2x4xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

func.func private @pool_max(%x: tensor<1x2x5x4xf64>) -> tensor<1x2x2x3xf64> attributes {nn.layer} {
  %r = nn.pool max %x window [2, 2] {strides = array<i64: 2, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 0, 0>, pads_after = array<i64: 0, 0>, groups = 1 : i64} : (tensor<1x2x5x4xf64>) -> tensor<1x2x2x3xf64>
  return %r : tensor<1x2x2x3xf64>
}

func.func private @pool_max_padded(%x: tensor<1x1x5xf64>) -> tensor<1x1x3xf64> attributes {nn.layer} {
  %r = nn.pool max %x window [3] {strides = array<i64: 2>, dilations = array<i64: 1>, pads_before = array<i64: 1>, pads_after = array<i64: 1>, groups = 1 : i64} : (tensor<1x1x5xf64>) -> tensor<1x1x3xf64>
  return %r : tensor<1x1x3xf64>
}

func.func private @pool_average(%x: tensor<1x2x5x4xf64>) -> tensor<1x2x3x3xf64> attributes {nn.layer} {
  %r = nn.pool average %x window [3, 2] {strides = array<i64: 2, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 1, 0>, pads_after = array<i64: 1, 0>, groups = 1 : i64} : (tensor<1x2x5x4xf64>) -> tensor<1x2x3x3xf64>
  return %r : tensor<1x2x3x3xf64>
}

func.func private @pool_average_count_padding(%x: tensor<1x2x5x4xf64>) -> tensor<1x2x3x3xf64> attributes {nn.layer} {
  %r = nn.pool average %x window [3, 2] {strides = array<i64: 2, 1>, dilations = array<i64: 1, 1>, pads_before = array<i64: 1, 0>, pads_after = array<i64: 1, 0>, groups = 1 : i64, count_padding} : (tensor<1x2x5x4xf64>) -> tensor<1x2x3x3xf64>
  return %r : tensor<1x2x3x3xf64>
}

func.func private @softmax_0(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.softmax %x axis 0 : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @softmax_1(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.softmax %x axis 1 : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @softmax_2(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.softmax %x axis 2 : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @log_softmax_0(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.log_softmax %x axis 0 : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @log_softmax_1(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.log_softmax %x axis 1 : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @log_softmax_2(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.log_softmax %x axis 2 : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @layer_norm_plain(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.layer_norm %x {axis = 2 : i64, epsilon = 1.0e-3 : f64} : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @layer_norm(%x: tensor<2x3x4xf64>, %s: tensor<4xf64>, %b: tensor<4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.layer_norm %x scale %s bias %b {axis = 2 : i64, epsilon = 1.0e-3 : f64} : (tensor<2x3x4xf64>, tensor<4xf64>, tensor<4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

// Over two dimensions.
func.func private @layer_norm_scale(%x: tensor<2x3x4xf64>, %s: tensor<3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.layer_norm %x scale %s {axis = 1 : i64, epsilon = 1.0e-3 : f64} : (tensor<2x3x4xf64>, tensor<3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @layer_norm_bias(%x: tensor<2x3x4xf64>, %b: tensor<3x1xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.layer_norm %x bias %b {axis = 1 : i64, epsilon = 1.0e-3 : f64} : (tensor<2x3x4xf64>, tensor<3x1xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @rms_norm_plain(%x: tensor<2x3x4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.rms_norm %x {axis = 2 : i64, epsilon = 1.0e-3 : f64} : (tensor<2x3x4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @rms_norm(%x: tensor<2x3x4xf64>, %s: tensor<4xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.rms_norm %x scale %s {axis = 2 : i64, epsilon = 1.0e-3 : f64} : (tensor<2x3x4xf64>, tensor<4xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}
