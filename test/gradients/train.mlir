// A small model after outlining: a frozen prefix, layers with a shared function
// (one with LoRA, used twice with the same weight), a frozen linear, a value
// that three calls use, tied weights, and a loss as sum and count.

nn.param @prefix frozen : tensor<6x6xf64> = "m"[0 : 288]
nn.param @embed trainable : tensor<7x6xf64> = "m"[0 : 336]
nn.param @norm trainable : tensor<6xf64> = "m"[0 : 48]
nn.param @up frozen : tensor<8x6xf64> = "m"[0 : 384]
nn.param @a trainable : tensor<2x6xf64> = "m"[0 : 96]
nn.param @b trainable : tensor<8x2xf64> = "m"[0 : 128]
nn.param @down frozen : tensor<6x8xf64> = "m"[0 : 384]
nn.param @bias trainable : tensor<6xf64> = "m"[0 : 48]

func.func private @linear(%x: tensor<2x3x6xf64>, %w: tensor<6x6xf64>) -> tensor<2x3x6xf64> attributes {nn.layer} {
  %0 = nn.matmul %x, %w transpose_b : (tensor<2x3x6xf64>, tensor<6x6xf64>) -> tensor<2x3x6xf64>
  return %0 : tensor<2x3x6xf64>
}
func.func private @embedding(%ids: tensor<2x3xi64>, %w: tensor<7x6xf64>, %x: tensor<2x3x6xf64>) -> tensor<2x3x6xf64> attributes {nn.layer} {
  %0 = nn.gather %w, %ids axis 0 : (tensor<7x6xf64>, tensor<2x3xi64>) -> tensor<2x3x6xf64>
  %1 = nn.binary add %0, %x : (tensor<2x3x6xf64>, tensor<2x3x6xf64>) -> tensor<2x3x6xf64>
  return %1 : tensor<2x3x6xf64>
}
func.func private @mlp(%x: tensor<2x3x6xf64>, %n: tensor<6xf64>, %u: tensor<8x6xf64>, %a: tensor<2x6xf64>, %b: tensor<8x2xf64>, %d: tensor<6x8xf64>) -> tensor<2x3x6xf64> attributes {nn.layer} {
  %0 = nn.rms_norm %x scale %n {axis = 2 : i64, epsilon = 1.0e-3 : f64} : (tensor<2x3x6xf64>, tensor<6xf64>) -> tensor<2x3x6xf64>
  %1 = nn.matmul %0, %u transpose_b : (tensor<2x3x6xf64>, tensor<8x6xf64>) -> tensor<2x3x8xf64>
  %2 = nn.matmul %0, %a transpose_b : (tensor<2x3x6xf64>, tensor<2x6xf64>) -> tensor<2x3x2xf64>
  %3 = nn.matmul %2, %b transpose_b : (tensor<2x3x2xf64>, tensor<8x2xf64>) -> tensor<2x3x8xf64>
  %4 = nn.binary add %1, %3 : (tensor<2x3x8xf64>, tensor<2x3x8xf64>) -> tensor<2x3x8xf64>
  %5 = nn.unary gelu %4 : (tensor<2x3x8xf64>) -> tensor<2x3x8xf64>
  %6 = nn.matmul %5, %d transpose_b : (tensor<2x3x8xf64>, tensor<6x8xf64>) -> tensor<2x3x6xf64>
  %7 = nn.binary add %x, %6 : (tensor<2x3x6xf64>, tensor<2x3x6xf64>) -> tensor<2x3x6xf64>
  return %7 : tensor<2x3x6xf64>
}
func.func private @cross(%q: tensor<2x3x6xf64>, %kv: tensor<2x3x6xf64>, %bias: tensor<6xf64>) -> tensor<2x3x6xf64> attributes {nn.layer} {
  %0 = nn.binary add %q, %bias : (tensor<2x3x6xf64>, tensor<6xf64>) -> tensor<2x3x6xf64>
  %1 = nn.reshape %0 : (tensor<2x3x6xf64>) -> tensor<2x3x2x3xf64>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<2x3x2x3xf64>) -> tensor<2x2x3x3xf64>
  %3 = nn.reshape %kv : (tensor<2x3x6xf64>) -> tensor<2x3x2x3xf64>
  %4 = nn.transpose %3 [0, 2, 1, 3] : (tensor<2x3x2x3xf64>) -> tensor<2x2x3x3xf64>
  %5 = nn.attention %2, %4, %4 causal {scale = 0.6 : f64} : (tensor<2x2x3x3xf64>, tensor<2x2x3x3xf64>, tensor<2x2x3x3xf64>) -> tensor<2x2x3x3xf64>
  %6 = nn.transpose %5 [0, 2, 1, 3] : (tensor<2x2x3x3xf64>) -> tensor<2x3x2x3xf64>
  %7 = nn.reshape %6 : (tensor<2x3x2x3xf64>) -> tensor<2x3x6xf64>
  %8 = nn.binary add %7, %q : (tensor<2x3x6xf64>, tensor<2x3x6xf64>) -> tensor<2x3x6xf64>
  return %8 : tensor<2x3x6xf64>
}
func.func private @loss(%x: tensor<2x3x6xf64>, %w: tensor<7x6xf64>, %labels: tensor<6xi64>) -> (tensor<f64>, tensor<f64>, tensor<6x7xf64>) attributes {nn.layer} {
  %0 = nn.reshape %x : (tensor<2x3x6xf64>) -> tensor<6x6xf64>
  %1 = nn.matmul %0, %w transpose_b : (tensor<6x6xf64>, tensor<7x6xf64>) -> tensor<6x7xf64>
  %2 = nn.cross_entropy %1, %labels {ignore_index = 1 : i64} : (tensor<6x7xf64>, tensor<6xi64>) -> tensor<6xf64>
  %3 = nn.reduce sum %2 axes [0] : (tensor<6xf64>) -> tensor<f64>
  %4 = nn.label_weights %labels {ignore_index = 1 : i64} : (tensor<6xi64>) -> tensor<6xf64>
  %5 = nn.reduce sum %4 axes [0] : (tensor<6xf64>) -> tensor<f64>
  return %3, %5, %1 : tensor<f64>, tensor<f64>, tensor<6x7xf64>
}
func.func @model(%x: tensor<2x3x6xf64> {nn.input = "x"}, %ids: tensor<2x3xi64> {nn.input = "ids"}, %labels: tensor<6xi64> {nn.input = "labels"})
    -> (tensor<f64> {nn.output = "loss", nn.loss = "sum"}, tensor<f64> {nn.loss = "count"}, tensor<6x7xf64> {nn.output = "logits"}) {
  %prefix = nn.param_ref @prefix : tensor<6x6xf64>
  %embed = nn.param_ref @embed : tensor<7x6xf64>
  %norm = nn.param_ref @norm : tensor<6xf64>
  %up = nn.param_ref @up : tensor<8x6xf64>
  %a = nn.param_ref @a : tensor<2x6xf64>
  %b = nn.param_ref @b : tensor<8x2xf64>
  %down = nn.param_ref @down : tensor<6x8xf64>
  %bias = nn.param_ref @bias : tensor<6xf64>
  %0 = call @linear(%x, %prefix) : (tensor<2x3x6xf64>, tensor<6x6xf64>) -> tensor<2x3x6xf64> loc("prefix")
  %1 = call @embedding(%ids, %embed, %0) : (tensor<2x3xi64>, tensor<7x6xf64>, tensor<2x3x6xf64>) -> tensor<2x3x6xf64> loc("embed")
  %2 = call @mlp(%1, %norm, %up, %a, %b, %down) : (tensor<2x3x6xf64>, tensor<6xf64>, tensor<8x6xf64>, tensor<2x6xf64>, tensor<8x2xf64>, tensor<6x8xf64>) -> tensor<2x3x6xf64> loc("layers.0.mlp")
  %3 = call @cross(%1, %2, %bias) : (tensor<2x3x6xf64>, tensor<2x3x6xf64>, tensor<6xf64>) -> tensor<2x3x6xf64> loc("layers.0.cross")
  %4 = call @cross(%3, %2, %bias) : (tensor<2x3x6xf64>, tensor<2x3x6xf64>, tensor<6xf64>) -> tensor<2x3x6xf64> loc("layers.1.cross")
  %5 = call @linear(%4, %prefix) : (tensor<2x3x6xf64>, tensor<6x6xf64>) -> tensor<2x3x6xf64> loc("layers.1.linear")
  %6 = call @cross(%5, %2, %bias) : (tensor<2x3x6xf64>, tensor<2x3x6xf64>, tensor<6xf64>) -> tensor<2x3x6xf64> loc("layers.2.cross")
  %7:3 = call @loss(%6, %embed, %labels) : (tensor<2x3x6xf64>, tensor<7x6xf64>, tensor<6xi64>) -> (tensor<f64>, tensor<f64>, tensor<6x7xf64>) loc("loss")
  return %7#0, %7#1, %7#2 : tensor<f64>, tensor<f64>, tensor<6x7xf64>
}
