// Gradients of all kinds of nn.unary; ranges avoid the points without a
// derivative.

func.func private @unary_abs(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary abs %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_neg(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary neg %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_sign(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary sign %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_ceil(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary ceil %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_floor(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary floor %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_round(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary round %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_sqrt(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.unary sqrt %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_rsqrt(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.unary rsqrt %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_reciprocal(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.unary reciprocal %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_exp(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary exp %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_log(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [0.5, 3.0]} {
  %r = nn.unary log %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_sin(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary sin %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_cos(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary cos %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_tan(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-1.2, 1.2]} {
  %r = nn.unary tan %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_asin(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-0.9, 0.9]} {
  %r = nn.unary asin %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_acos(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-0.9, 0.9]} {
  %r = nn.unary acos %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_atan(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary atan %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_sinh(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary sinh %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_cosh(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary cosh %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_asinh(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary asinh %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_acosh(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [1.2, 4.0]} {
  %r = nn.unary acosh %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_atanh(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-0.9, 0.9]} {
  %r = nn.unary atanh %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_tanh(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary tanh %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_erf(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary erf %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_sigmoid(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary sigmoid %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_relu(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary relu %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_gelu(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary gelu %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_gelu_tanh(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary gelu_tanh %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_silu(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary silu %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}

func.func private @unary_softplus(%x: tensor<3x5xf64>) -> (tensor<3x5xf64>) attributes {nn.layer, test.range = [-3.0, 3.0]} {
  %r = nn.unary softplus %x : (tensor<3x5xf64>) -> tensor<3x5xf64>
  return %r : tensor<3x5xf64>
}
