// Gradients of attention, rotary embeddings and the loss.

func.func private @attention(%q: tensor<2x2x3x3xf64>, %k: tensor<2x2x4x3xf64>, %v: tensor<2x2x4x2xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v {scale = 0.7 : f64} : (tensor<2x2x3x3xf64>, tensor<2x2x4x3xf64>, tensor<2x2x4x2xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

// Query heads that share keys and values.
func.func private @attention_groups(%q: tensor<2x4x3x3xf64>, %k: tensor<2x2x4x3xf64>, %v: tensor<2x2x4x2xf64>) -> tensor<2x4x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v {scale = 0.7 : f64} : (tensor<2x4x3x3xf64>, tensor<2x2x4x3xf64>, tensor<2x2x4x2xf64>) -> tensor<2x4x3x2xf64>
  return %r : tensor<2x4x3x2xf64>
}

func.func private @attention_causal(%q: tensor<2x2x3x3xf64>, %k: tensor<2x2x3x3xf64>, %v: tensor<2x2x3x2xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v causal {scale = 0.7 : f64} : (tensor<2x2x3x3xf64>, tensor<2x2x3x3xf64>, tensor<2x2x3x2xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

func.func private @attention_causal_from_end(%q: tensor<2x2x2x3xf64>, %k: tensor<2x1x4x3xf64>, %v: tensor<2x1x4x2xf64>) -> tensor<2x2x2x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v causal {scale = 0.7 : f64, causal_from_end} : (tensor<2x2x2x3xf64>, tensor<2x1x4x3xf64>, tensor<2x1x4x2xf64>) -> tensor<2x2x2x2xf64>
  return %r : tensor<2x2x2x2xf64>
}

// The first query sees no key.
func.func private @attention_causal_shorter(%q: tensor<2x2x3x3xf64>, %k: tensor<2x1x2x3xf64>, %v: tensor<2x1x2x2xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v causal {scale = 0.7 : f64, causal_from_end} : (tensor<2x2x3x3xf64>, tensor<2x1x2x3xf64>, tensor<2x1x2x2xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

func.func private @attention_softcap(%q: tensor<2x2x3x3xf64>, %k: tensor<2x1x4x3xf64>, %v: tensor<2x1x4x2xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v {scale = 0.7 : f64, softcap = 0.9 : f64} : (tensor<2x2x3x3xf64>, tensor<2x1x4x3xf64>, tensor<2x1x4x2xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

// A query that sees no key gives zeros.
func.func private @attention_bool(%q: tensor<2x2x3x3xf64>, %k: tensor<2x1x4x3xf64>, %v: tensor<2x1x4x2xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %m = nn.constant dense<[[true, true, false, true], [false, false, false, false], [true, false, false, true]]> : tensor<3x4xi1>
  %r = nn.attention %q, %k, %v mask %m {scale = 0.7 : f64} : (tensor<2x2x3x3xf64>, tensor<2x1x4x3xf64>, tensor<2x1x4x2xf64>, tensor<3x4xi1>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

func.func private @attention_float_mask(%q: tensor<2x2x3x3xf64>, %k: tensor<2x1x4x3xf64>, %v: tensor<2x1x4x2xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %m = nn.constant dense<[[0.0, -0.5, 1.0, 0.25]]> : tensor<1x4xf64>
  %r = nn.attention %q, %k, %v mask %m {scale = 0.7 : f64} : (tensor<2x2x3x3xf64>, tensor<2x1x4x3xf64>, tensor<2x1x4x2xf64>, tensor<1x4xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

// The gradient of a float mask.
func.func private @attention_bias(%q: tensor<2x2x3x3xf64>, %k: tensor<2x1x4x3xf64>, %v: tensor<2x1x4x2xf64>, %m: tensor<2x1x1x4xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v mask %m {scale = 0.7 : f64} : (tensor<2x2x3x3xf64>, tensor<2x1x4x3xf64>, tensor<2x1x4x2xf64>, tensor<2x1x1x4xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

func.func private @attention_bias_full(%q: tensor<2x2x3x3xf64>, %k: tensor<2x1x3x3xf64>, %v: tensor<2x1x3x2xf64>, %m: tensor<2x2x3x3xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v mask %m causal {scale = 0.7 : f64, softcap = 1.5 : f64} : (tensor<2x2x3x3xf64>, tensor<2x1x3x3xf64>, tensor<2x1x3x2xf64>, tensor<2x2x3x3xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

func.func private @attention_bias_no_key(%q: tensor<2x2x3x3xf64>, %k: tensor<2x2x2x3xf64>, %v: tensor<2x2x2x2xf64>, %m: tensor<1x3x2xf64>) -> tensor<2x2x3x2xf64> attributes {nn.layer} {
  %r = nn.attention %q, %k, %v mask %m causal {scale = 0.7 : f64, causal_from_end} : (tensor<2x2x3x3xf64>, tensor<2x2x2x3xf64>, tensor<2x2x2x2xf64>, tensor<1x3x2xf64>) -> tensor<2x2x3x2xf64>
  return %r : tensor<2x2x3x2xf64>
}

func.func private @rope(%x: tensor<2x2x3x4xf64>, %c: tensor<3x4xf64>, %s: tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64> attributes {nn.layer} {
  %r = nn.rope %x, %c, %s : (tensor<2x2x3x4xf64>, tensor<3x4xf64>, tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64>
  return %r : tensor<2x2x3x4xf64>
}

func.func private @rope_transposed(%x: tensor<2x2x3x4xf64>, %c: tensor<3x4xf64>, %s: tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64> attributes {nn.layer} {
  %r = nn.rope %x, %c, %s transposed : (tensor<2x2x3x4xf64>, tensor<3x4xf64>, tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64>
  return %r : tensor<2x2x3x4xf64>
}

func.func private @rope_interleaved(%x: tensor<2x2x3x4xf64>, %c: tensor<3x4xf64>, %s: tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64> attributes {nn.layer} {
  %r = nn.rope %x, %c, %s interleaved : (tensor<2x2x3x4xf64>, tensor<3x4xf64>, tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64>
  return %r : tensor<2x2x3x4xf64>
}

func.func private @rope_interleaved_transposed(%x: tensor<2x2x3x4xf64>, %c: tensor<3x4xf64>, %s: tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64> attributes {nn.layer} {
  %r = nn.rope %x, %c, %s interleaved transposed : (tensor<2x2x3x4xf64>, tensor<3x4xf64>, tensor<1x3x4xf64>) -> tensor<2x2x3x4xf64>
  return %r : tensor<2x2x3x4xf64>
}

func.func private @cross_entropy(%x: tensor<4x3xf64>) -> tensor<4xf64> attributes {nn.layer} {
  %l = nn.constant dense<[2, 0, 1, 2]> : tensor<4xi64>
  %r = nn.cross_entropy %x, %l : (tensor<4x3xf64>, tensor<4xi64>) -> tensor<4xf64>
  return %r : tensor<4xf64>
}

func.func private @cross_entropy_ignored(%x: tensor<4x3xf64>) -> tensor<4xf64> attributes {nn.layer} {
  %l = nn.constant dense<[2, 0, -100, 2]> : tensor<4xi64>
  %r = nn.cross_entropy %x, %l {ignore_index = -100 : i64} : (tensor<4x3xf64>, tensor<4xi64>) -> tensor<4xf64>
  return %r : tensor<4xf64>
}

func.func private @cross_entropy_weighted(%x: tensor<4x3xf64>, %w: tensor<3xf64>) -> tensor<4xf64> attributes {nn.layer, test.range = [0.5, 2.0]} {
  %l = nn.constant dense<[2, 0, -100, 2]> : tensor<4xi64>
  %r = nn.cross_entropy %x, %l weight %w {ignore_index = -100 : i64} : (tensor<4x3xf64>, tensor<4xi64>, tensor<3xf64>) -> tensor<4xf64>
  return %r : tensor<4xf64>
}
