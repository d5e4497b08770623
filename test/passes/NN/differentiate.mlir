// RUN: mgq-opt %s --nn-differentiate --nn-check-differentiated --split-input-file | FileCheck %s

// A frozen prefix stays a forward call of the layer itself. A frozen linear
// above something trainable saves nothing and gives the data gradient only. The
// lowest trainable layer gives no data gradient. Residuals that are operands or
// results of forward calls already are aliases: no function needs a .forward.
nn.param @frozen frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @trained trainable : tensor<4x4xf32> = "m"[64 : 64]
func.func private @linear(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @loss(%x: tensor<2x4xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.unary exp %x : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = nn.reduce sum %0 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.output = "loss", nn.loss = "mean"}) {
  %f = nn.param_ref @frozen : tensor<4x4xf32>
  %t = nn.param_ref @trained : tensor<4x4xf32>
  %0 = call @linear(%x, %f) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("layers.0")
  %1 = call @linear(%0, %t) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("layers.1")
  %2 = call @linear(%1, %f) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("layers.2")
  %3 = call @loss(%2) : (tensor<2x4xf32>) -> tensor<f32> loc("loss")
  return %3 : tensor<f32>
}
// The weight gradient needs the input, the data gradient the weight.
// CHECK: func private @linear.backward(%[[G:.+]]: tensor<2x4xf32>, %[[X:.+]]: tensor<2x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT: nn.matmul %[[X]], %[[G]] transpose_a
// CHECK: func private @linear.backward.1(%[[G:.+]]: tensor<2x4xf32>, %[[W:.+]]: tensor<4x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT: nn.matmul %[[G]], %[[W]] transpose_b
// CHECK-LABEL: func @train(
// CHECK-SAME: %[[IN:.+]]: tensor<2x4xf32> {nn.input = "x"}, %[[SEED:.+]]: tensor<f32> {nn.seed})
// CHECK-SAME: -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}, tensor<4x4xf32> {nn.gradient = @trained})
// CHECK-DAG: %[[F:.+]] = nn.param_ref @frozen
// CHECK-DAG: %[[T:.+]] = nn.param_ref @trained
// CHECK: %[[A:.+]] = call @linear(%[[IN]], %[[F]]) {nn.instance = "layers.0", nn.phase = "forward"}
// CHECK: %[[B:.+]] = call @linear(%[[A]], %[[T]]) {nn.instance = "layers.1", nn.phase = "forward"}
// CHECK: %[[C:.+]] = call @linear(%[[B]], %[[F]]) {nn.instance = "layers.2", nn.phase = "forward"}
// CHECK: %[[L:.+]]:2 = call @loss.forward(%[[C]])
// CHECK: %[[DC:.+]] = call @loss.backward(%[[SEED]], %[[L]]#1) {nn.instance = "loss", nn.phase = "backward"}
// CHECK: %[[DB:.+]] = call @linear.backward.1(%[[DC]], %[[F]]) {nn.instance = "layers.2", nn.phase = "backward"}
// CHECK: %[[DT:.+]] = call @linear.backward(%[[DB]], %[[A]]) {nn.instance = "layers.1", nn.phase = "backward"}
// CHECK: return %[[L]]#0, %[[DT]]

// -----

// Of a LoRA layer only the adapters have weight gradients; the frozen weight is
// read for the data gradient.
nn.param @below trainable : tensor<4xf32> = "m"[0 : 16]
nn.param @w frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @a trainable : tensor<1x4xf32> = "m"[0 : 16]
nn.param @b trainable : tensor<4x1xf32> = "m"[0 : 16]
func.func private @bias(%x: tensor<2x4xf32>, %b: tensor<4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.binary add %x, %b : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @lora(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>, %a: tensor<1x4xf32>, %b: tensor<4x1xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w transpose_b : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = nn.matmul %x, %a transpose_b : (tensor<2x4xf32>, tensor<1x4xf32>) -> tensor<2x1xf32>
  %2 = nn.matmul %1, %b transpose_b : (tensor<2x1xf32>, tensor<4x1xf32>) -> tensor<2x4xf32>
  %3 = nn.binary add %0, %2 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = nn.reduce sum %3 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %4 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32>) -> (tensor<f32> {nn.loss = "mean"}) {
  %c = nn.param_ref @below : tensor<4xf32>
  %w = nn.param_ref @w : tensor<4x4xf32>
  %a = nn.param_ref @a : tensor<1x4xf32>
  %b = nn.param_ref @b : tensor<4x1xf32>
  %0 = call @bias(%x, %c) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1 = call @lora(%0, %w, %a, %b) : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<1x4xf32>, tensor<4x1xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
// CHECK: func private @bias.backward(%[[G:.+]]: tensor<2x4xf32>) -> tensor<4xf32>
// CHECK: func private @lora.forward(
// CHECK-SAME: -> (tensor<f32>, tensor<2x1xf32>)
// CHECK: func private @lora.backward(
// CHECK-SAME: -> (tensor<2x4xf32>, tensor<1x4xf32>, tensor<4x1xf32>)
// CHECK-COUNT-5: nn.matmul
// CHECK-NOT: nn.matmul
// CHECK-LABEL: func @train(
