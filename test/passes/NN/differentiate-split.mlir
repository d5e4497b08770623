// RUN: mgq-opt %s --nn-differentiate=split-weights=always --nn-check-differentiated --split-input-file | FileCheck %s
// RUN: mgq-opt %s --nn-differentiate=split-weights=auto --nn-check-differentiated --split-input-file | FileCheck %s --check-prefix=AUTO
// RUN: mgq-opt %s "--nn-differentiate=split-weights=always recompute=full" --nn-check-differentiated --split-input-file | FileCheck %s --check-prefix=FULL

// A layer with both kinds of gradients is two calls, the weight call right
// behind the backward call, of one instance; dy and x are aliases, and each part
// takes only what it reads. The lowest trainable layer has weight gradients only
// and is one weight call. A layer without parameters that train stays as it is.
// Names cannot clash with those of parameters (@linear.weight). Nearly half of
// the work is in weight gradients: auto splits too.
nn.param @frozen frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @linear.weight trainable : tensor<4x4xf32> = "m"[64 : 64]
nn.param @second trainable : tensor<4x4xf32> = "m"[128 : 64]
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
  %t = nn.param_ref @linear.weight : tensor<4x4xf32>
  %s = nn.param_ref @second : tensor<4x4xf32>
  %0 = call @linear(%x, %t) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("layers.0")
  %1 = call @linear(%0, %s) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("layers.1")
  %2 = call @linear(%1, %f) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("layers.2")
  %3 = call @loss(%2) : (tensor<2x4xf32>) -> tensor<f32> loc("loss")
  return %3 : tensor<f32>
}
// CHECK: func private @linear.backward_weight(%[[G:.+]]: tensor<2x4xf32>, %[[X:.+]]: tensor<2x4xf32>) -> tensor<4x4xf32> attributes {nn.layer}
// CHECK-NEXT: nn.matmul %[[X]], %[[G]] transpose_a
// CHECK-NOT: @linear.backward(
// CHECK: func private @linear.backward.1(%[[G:.+]]: tensor<2x4xf32>, %[[W:.+]]: tensor<4x4xf32>) -> tensor<2x4xf32> attributes {nn.layer}
// CHECK-NEXT: nn.matmul %[[G]], %[[W]] transpose_b
// CHECK: func private @linear.backward_weight.1(%[[G:.+]]: tensor<2x4xf32>, %[[X:.+]]: tensor<2x4xf32>) -> tensor<4x4xf32> attributes {nn.layer}
// CHECK-NEXT: nn.matmul %[[X]], %[[G]] transpose_a
// CHECK: func private @linear.backward.2(%{{.+}}: tensor<2x4xf32>, %{{.+}}: tensor<4x4xf32>) -> tensor<2x4xf32>
// CHECK-NOT: @linear.backward_weight.2
// CHECK-LABEL: func @train(
// CHECK-SAME: %[[IN:.+]]: tensor<2x4xf32> {nn.input = "x"}, %[[SEED:.+]]: tensor<f32> {nn.seed})
// CHECK-SAME: tensor<4x4xf32> {nn.gradient = @linear.weight}, tensor<4x4xf32> {nn.gradient = @second})
// CHECK-DAG: %[[F:.+]] = nn.param_ref @frozen
// CHECK-DAG: %[[S:.+]] = nn.param_ref @second
// CHECK: %[[A:.+]] = call @linear(%[[IN]],
// CHECK: %[[DC:.+]] = call @loss.backward(%[[SEED]],
// CHECK-NEXT: %[[DB:.+]] = call @linear.backward.2(%[[DC]], %[[F]]) {nn.instance = "layers.2", nn.phase = "backward"}
// CHECK-NEXT: %[[DA:.+]] = call @linear.backward.1(%[[DB]], %[[S]]) {nn.instance = "layers.1", nn.phase = "backward"}
// CHECK-NEXT: %[[DS:.+]] = call @linear.backward_weight.1(%[[DB]], %[[A]]) {nn.instance = "layers.1", nn.phase = "weight"}
// CHECK-NEXT: %[[DT:.+]] = call @linear.backward_weight(%[[DA]], %[[IN]]) {nn.instance = "layers.0", nn.phase = "weight"}
// CHECK-NEXT: return %{{.+}}, %[[DT]], %[[DS]]
// AUTO-COUNT-2: nn.phase = "weight"
// AUTO-NOT: nn.phase = "weight"

// -----

// What the parts share is computed once: dh, a product times gelu's derivative,
// is an extra result of backward, and no product stands in both; what forward
// keeps is passed as alias. The norm's scale has a small gradient that cheap ops
// give: backward gives it, and what it is a sum of need not wait. With
// recompute=full backward computes h again, and weight takes it from there: it
// repeats the norm and gelu only.
nn.param @low trainable : tensor<4xf32> = "m"[0 : 16]
nn.param @scale trainable : tensor<4xf32> = "m"[0 : 16]
nn.param @up trainable : tensor<8x4xf32> = "m"[0 : 128]
nn.param @down trainable : tensor<4x8xf32> = "m"[0 : 128]
func.func private @bias(%x: tensor<2x4xf32>, %b: tensor<4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.binary add %x, %b : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @mlp(%x: tensor<2x4xf32>, %s: tensor<4xf32>, %u: tensor<8x4xf32>, %d: tensor<4x8xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.rms_norm %x scale %s {axis = 1 : i64, epsilon = 1.0e-6 : f64} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1 = nn.matmul %0, %u transpose_b : (tensor<2x4xf32>, tensor<8x4xf32>) -> tensor<2x8xf32>
  %2 = nn.unary gelu %1 : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = nn.matmul %2, %d transpose_b : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}
func.func private @sum(%x: tensor<2x4xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.reduce sum %x axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32>) -> (tensor<f32> {nn.loss = "mean"}) {
  %b = nn.param_ref @low : tensor<4xf32>
  %s = nn.param_ref @scale : tensor<4xf32>
  %u = nn.param_ref @up : tensor<8x4xf32>
  %d = nn.param_ref @down : tensor<4x8xf32>
  %0 = call @bias(%x, %b) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1 = call @mlp(%0, %s, %u, %d) : (tensor<2x4xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
  %2 = call @sum(%1) : (tensor<2x4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
// CHECK: func private @mlp.backward(
// CHECK-SAME: -> (tensor<2x4xf32>, tensor<4xf32>, tensor<2x8xf32>) attributes
// CHECK-COUNT-2: nn.matmul
// CHECK-NOT: nn.matmul
// CHECK: nn.rms_norm_grad
// CHECK: func private @mlp.backward_weight(
// CHECK-SAME: -> (tensor<8x4xf32>, tensor<4x8xf32>) attributes
// CHECK-NOT: nn.unary
// CHECK-NOT: nn.binary
// CHECK-COUNT-2: nn.matmul
// CHECK-NOT: nn.matmul
// CHECK-LABEL: func @train(
// CHECK: %[[F:.+]]:4 = call @mlp.forward(
// CHECK: %[[DY:.+]] = call @sum.backward(
// CHECK-NEXT: %[[B:.+]]:3 = call @mlp.backward(%[[DY]],
// CHECK-NEXT: %[[W:.+]]:2 = call @mlp.backward_weight(%[[DY]], %[[F]]#1, %[[F]]#3, %[[B]]#2) {nn.instance = "mlp", nn.phase = "weight"}
// CHECK-NEXT: %[[LOW:.+]] = call @bias.backward_weight(%[[B]]#0)
// CHECK-NEXT: return %{{.+}}, %[[LOW]], %[[B]]#1, %[[W]]#0, %[[W]]#1
// AUTO-COUNT-2: nn.phase = "weight"
// FULL: func private @mlp.backward(
// FULL-COUNT-3: nn.matmul
// FULL-NOT: nn.matmul
// FULL: func private @mlp.backward_weight(
// FULL-NEXT: nn.rms_norm
// FULL-NEXT: nn.unary gelu
// FULL-NEXT: nn.matmul
// FULL-NEXT: nn.matmul
// FULL-NEXT: return

// -----

// Adapters do a few percent of the work: always parts them, with dy B as the
// extra result, auto leaves every function whole, the one with weight gradients
// only too.
nn.param @below trainable : tensor<64xf32> = "m"[0 : 256]
nn.param @w frozen : tensor<64x64xf32> = "m"[0 : 16384]
nn.param @a trainable : tensor<1x64xf32> = "m"[0 : 256]
nn.param @b trainable : tensor<64x1xf32> = "m"[0 : 256]
func.func private @bias(%x: tensor<2x64xf32>, %b: tensor<64xf32>) -> tensor<2x64xf32> attributes {nn.layer} {
  %0 = nn.binary add %x, %b : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32>
  return %0 : tensor<2x64xf32>
}
func.func private @lora(%x: tensor<2x64xf32>, %w: tensor<64x64xf32>, %a: tensor<1x64xf32>, %b: tensor<64x1xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w transpose_b : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32>
  %1 = nn.matmul %x, %a transpose_b : (tensor<2x64xf32>, tensor<1x64xf32>) -> tensor<2x1xf32>
  %2 = nn.matmul %1, %b transpose_b : (tensor<2x1xf32>, tensor<64x1xf32>) -> tensor<2x64xf32>
  %3 = nn.binary add %0, %2 : (tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %4 = nn.unary exp %3 : (tensor<2x64xf32>) -> tensor<2x64xf32>
  %5 = nn.reduce sum %4 axes [0, 1] : (tensor<2x64xf32>) -> tensor<f32>
  return %5 : tensor<f32>
}
func.func @model(%x: tensor<2x64xf32>) -> (tensor<f32> {nn.loss = "mean"}) {
  %c = nn.param_ref @below : tensor<64xf32>
  %w = nn.param_ref @w : tensor<64x64xf32>
  %a = nn.param_ref @a : tensor<1x64xf32>
  %b = nn.param_ref @b : tensor<64x1xf32>
  %0 = call @bias(%x, %c) : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32>
  %1 = call @lora(%0, %w, %a, %b) : (tensor<2x64xf32>, tensor<64x64xf32>, tensor<1x64xf32>, tensor<64x1xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
// CHECK: func private @lora.backward(
// CHECK-SAME: -> (tensor<2x64xf32>, tensor<2x64xf32>, tensor<2x1xf32>) attributes
// CHECK-COUNT-3: nn.matmul
// CHECK-NOT: nn.matmul
// CHECK: func private @lora.backward_weight(
// CHECK-COUNT-2: nn.matmul
// CHECK-NOT: nn.matmul
// CHECK-LABEL: func @train(
// CHECK: call @lora.backward_weight(
// CHECK-NEXT: call @bias.backward_weight(
// AUTO-NOT: backward_weight
// AUTO: func private @bias.backward(
// AUTO-NOT: backward_weight
// AUTO: func private @lora.backward(
// AUTO-NOT: backward_weight
// AUTO: call @bias.backward(
// AUTO-SAME: nn.phase = "backward"

// -----

// A parameter that a layer takes twice has two gradient results, and one that it
// uses twice has one, the sum of both uses, added in the weight part: the
// products that it adds stand there.
nn.param @low trainable : tensor<4x4xf32> = "m"[0 : 64]
nn.param @w trainable : tensor<4x4xf32> = "m"[64 : 64]
func.func private @linear(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @twice(%x: tensor<2x4xf32>, %v: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.matmul %x, %v : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = nn.unary tanh %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.matmul %1, %v : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = nn.unary exp %2 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = nn.matmul %3, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %5 = nn.unary exp %4 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %6 = nn.reduce sum %5 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %6 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32>) -> (tensor<f32> {nn.loss = "mean"}) {
  %l = nn.param_ref @low : tensor<4x4xf32>
  %w = nn.param_ref @w : tensor<4x4xf32>
  %0 = call @linear(%x, %l) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = call @twice(%0, %w, %w) : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
// CHECK: func private @twice.backward(
// CHECK-COUNT-3: nn.matmul
// CHECK-NOT: nn.matmul
// CHECK: func private @twice.backward_weight(
// CHECK-SAME: -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes
// CHECK-COUNT-3: nn.matmul
// CHECK-NOT: nn.matmul
// CHECK: nn.binary add
// CHECK-LABEL: func @train(
// CHECK-SAME: tensor<4x4xf32> {nn.gradient = @low}, tensor<4x4xf32> {nn.gradient = @w}, tensor<4x4xf32> {nn.gradient = @w})
// CHECK: %[[W:.+]]:2 = call @twice.backward_weight(
// CHECK-NEXT: %[[L:.+]] = call @linear.backward_weight(
// CHECK-NEXT: return %{{.+}}, %[[L]], %[[W]]#0, %[[W]]#1
// AUTO: nn.phase = "weight"

// -----

// Gradients that several calls give are still added in phase backward, behind
// the weight call of the layer whose contribution they add.
nn.param @low trainable : tensor<4x4xf32> = "m"[0 : 64]
nn.param @w trainable : tensor<4x4xf32> = "m"[64 : 64]
func.func private @linear(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @mix(%x: tensor<2x4xf32>, %y: tensor<2x4xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.binary mul %x, %y : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = nn.reduce sum %0 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32>) -> (tensor<f32> {nn.loss = "mean"}) {
  %l = nn.param_ref @low : tensor<4x4xf32>
  %w = nn.param_ref @w : tensor<4x4xf32>
  %0 = call @linear(%x, %l) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("low")
  %1 = call @linear(%0, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("high")
  %2 = call @mix(%0, %1) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<f32> loc("mix")
  return %2 : tensor<f32>
}
// CHECK-LABEL: func @train(
// CHECK: %[[M:.+]]:2 = call @mix.backward(
// CHECK-NEXT: %[[D:.+]] = call @linear.backward.1(%[[M]]#1, %{{.+}}) {nn.instance = "high", nn.phase = "backward"}
// CHECK-NEXT: %[[W:.+]] = call @linear.backward_weight.1(%[[M]]#1, %{{.+}}) {nn.instance = "high", nn.phase = "weight"}
// CHECK-NEXT: %[[S:.+]] = call @nn.add_gradients.2x4xf32(%[[M]]#0, %[[D]]) {nn.instance = "high", nn.phase = "backward"}
// CHECK-NEXT: %[[L:.+]] = call @linear.backward_weight(%[[S]], %{{.+}}) {nn.instance = "low", nn.phase = "weight"}
// CHECK-NEXT: return %{{.+}}, %[[L]], %[[W]]
// AUTO: nn.phase = "weight"
