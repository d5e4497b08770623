// Gradients of elementwise ops of two operands.

func.func private @binary_add(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary add %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_add_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary add %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @binary_sub(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary sub %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_sub_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary sub %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @binary_mul(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary mul %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_mul_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary mul %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @binary_div(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.binary div %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_div_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.binary div %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @binary_max(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary max %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_max_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary max %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @binary_min(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary min %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_min_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.binary min %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @binary_mod(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.binary mod %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_mod_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.binary mod %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @binary_rem(%a: tensor<2x3xf64>, %b: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.binary rem %a, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_rem_broadcast(%a: tensor<4x1x3xf64>, %b: tensor<2x1xf64>) -> (tensor<4x2x3xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.binary rem %a, %b : (tensor<4x1x3xf64>, tensor<2x1xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

// Both operands of a power.
func.func private @binary_pow(%a: tensor<2x3xf64>, %b: tensor<3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 2.0]} {
  %r = nn.binary pow %a, %b : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_pow_two(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 2.0]} {
  %c = nn.constant dense<2.0> : tensor<f64>
  %r = nn.binary pow %a, %c : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_pow_three(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 2.0]} {
  %c = nn.constant dense<3.0> : tensor<f64>
  %r = nn.binary pow %a, %c : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_pow_half(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 2.0]} {
  %c = nn.constant dense<-0.5> : tensor<f64>
  %r = nn.binary pow %a, %c : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_pow_one(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 2.0]} {
  %c = nn.constant dense<1.0> : tensor<f64>
  %r = nn.binary pow %a, %c : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @binary_pow_zero(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [0.5, 2.0]} {
  %c = nn.constant dense<0.0> : tensor<f64>
  %r = nn.binary pow %a, %c : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

// An exponent of integers.
func.func private @binary_pow_integer(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer, test.range = [-2.0, 2.0]} {
  %c = nn.constant dense<[2, 0, 3]> : tensor<3xi32>
  %r = nn.binary pow %a, %c : (tensor<2x3xf64>, tensor<3xi32>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

// One value as both operands.
func.func private @binary_same(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer} {
  %r = nn.binary mul %a, %a : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @select(%a: tensor<2x3xf64>, %b: tensor<3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer} {
  %c = nn.constant dense<[[true], [false]]> : tensor<2x1xi1>
  %r = nn.select %c, %a, %b : (tensor<2x1xi1>, tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

// The condition decides the shape.
func.func private @select_widens(%a: tensor<3xf64>, %b: tensor<f64>) -> (tensor<2x3xf64>) attributes {nn.layer} {
  %c = nn.constant dense<[[true], [false]]> : tensor<2x1xi1>
  %r = nn.select %c, %a, %b : (tensor<2x1xi1>, tensor<3xf64>, tensor<f64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

// A cast between floats is the identity here.
func.func private @cast(%a: tensor<2x3xf64>) -> (tensor<2x3xf64>) attributes {nn.layer} {
  %r = nn.cast %a : (tensor<2x3xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

func.func private @dropout(%x: tensor<4x5xf64>, %key: tensor<4xi64>) -> (tensor<4x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.dropout %x, %key ratio 0.25 samples 2 : (tensor<4x5xf64>, tensor<4xi64>) -> tensor<4x5xf64>
  return %r : tensor<4x5xf64>
}

func.func private @dropout_of_square(%x: tensor<2x7xf64>, %key: tensor<4xi64>) -> (tensor<2x7xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %0 = nn.dropout %x, %key ratio 0.5 samples 1 : (tensor<2x7xf64>, tensor<4xi64>) -> tensor<2x7xf64>
  %1 = nn.binary mul %0, %0 : (tensor<2x7xf64>, tensor<2x7xf64>) -> tensor<2x7xf64>
  %r = nn.dropout %1, %key ratio 0.5 samples 2 : (tensor<2x7xf64>, tensor<4xi64>) -> tensor<2x7xf64>
  return %r : tensor<2x7xf64>
}
