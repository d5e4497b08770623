// RUN: mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=layered" --split-input-file | FileCheck %s
// RUN: mgq-opt %s --nn-differentiate --split-input-file > %t.f32
// RUN: mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=f32" --split-input-file | diff %t.f32 -

// Of a layer with an adapter the frozen product takes bf16, those of the
// adapter f32. The rounded value serves product and residual alike; what the
// adapter's gradients read stays f32. The weight is bf16 in memory. The stream
// and its gradients stay f32. The norm and the loss stay as they are.
nn.param @scale frozen : tensor<4xf32> = "m"[0 : 16]
nn.param @w frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @a trainable : tensor<1x4xf32> = "m"[0 : 16]
nn.param @b trainable : tensor<4x1xf32> = "m"[0 : 16]
func.func private @layer(%x: tensor<2x4xf32>, %s: tensor<4xf32>, %w: tensor<4x4xf32>, %a: tensor<1x4xf32>, %b: tensor<4x1xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.rms_norm %x scale %s {axis = 1 : i64, epsilon = 1.0e-6 : f64} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1 = nn.matmul %0, %w transpose_b : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %2 = nn.matmul %0, %a transpose_b : (tensor<2x4xf32>, tensor<1x4xf32>) -> tensor<2x1xf32>
  %3 = nn.matmul %2, %b transpose_b : (tensor<2x1xf32>, tensor<4x1xf32>) -> tensor<2x4xf32>
  %4 = nn.binary add %1, %3 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %5 = nn.unary silu %4 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %6 = nn.binary add %x, %5 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %6 : tensor<2x4xf32>
}
func.func private @loss(%x: tensor<2x4xf32>, %labels: tensor<2xi64>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.cross_entropy %x, %labels : (tensor<2x4xf32>, tensor<2xi64>) -> tensor<2xf32>
  %1 = nn.reduce sum %0 axes [0] : (tensor<2xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32> {nn.input = "x"}, %l: tensor<2xi64> {nn.input = "labels"}) -> (tensor<f32> {nn.output = "loss", nn.loss = "mean"}) {
  %s = nn.param_ref @scale : tensor<4xf32>
  %w = nn.param_ref @w : tensor<4x4xf32>
  %a = nn.param_ref @a : tensor<1x4xf32>
  %b = nn.param_ref @b : tensor<4x1xf32>
  %0 = call @layer(%x, %s, %w, %a, %b) : (tensor<2x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<1x4xf32>, tensor<4x1xf32>) -> tensor<2x4xf32> loc("layers.0")
  %1 = call @layer(%0, %s, %w, %a, %b) : (tensor<2x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<1x4xf32>, tensor<4x1xf32>) -> tensor<2x4xf32> loc("layers.1")
  %2 = call @loss(%1, %l) : (tensor<2x4xf32>, tensor<2xi64>) -> tensor<f32> loc("loss")
  return %2 : tensor<f32>
}
// CHECK-LABEL: func.func private @layer.forward(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2x4xf32>, %[[S:[^:]+]]: tensor<4xf32>, %[[W:[^:]+]]: tensor<4x4xbf16>, %[[A:[^:]+]]: tensor<1x4xf32>, %[[B:[^:]+]]: tensor<4x1xf32>)
// CHECK-SAME: -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x1xf32>, tensor<2x4xbf16>)
// CHECK-NEXT: %[[N:.+]] = nn.rms_norm %[[X]] scale %[[S]]
// CHECK-NEXT: %[[NB:.+]] = nn.cast %[[N]] : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT: %[[Y:.+]] = nn.matmul %[[NB]], %[[W]] transpose_b : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT: %[[D:.+]] = nn.matmul %[[N]], %[[A]] transpose_b : (tensor<2x4xf32>, tensor<1x4xf32>) -> tensor<2x1xf32>
// CHECK-NEXT: %[[U:.+]] = nn.matmul %[[D]], %[[B]] transpose_b : (tensor<2x1xf32>, tensor<4x1xf32>) -> tensor<2x4xf32>
// CHECK-NEXT: %[[SUM:.+]] = nn.binary add %[[Y]], %[[U]]
// CHECK-NEXT: %[[SB:.+]] = nn.cast %[[SUM]] : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT: %[[ACT:.+]] = nn.unary silu %[[SUM]]
// CHECK-NEXT: %[[R:.+]] = nn.binary add %[[X]], %[[ACT]]
// CHECK-NEXT: return %[[R]], %[[N]], %[[D]], %[[SB]]
// The data gradient is rounded where a product takes it; gradients are f32.
// CHECK-LABEL: func.func private @layer.backward.1(
// CHECK-SAME: tensor<2x4xbf16>) -> (tensor<2x4xf32>, tensor<1x4xf32>, tensor<4x1xf32>)
// CHECK: nn.cast %{{.+}} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK: %[[G:.+]] = nn.cast %{{.+}} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK: nn.matmul %[[G]], %{{.+}} : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xf32>
// CHECK-NOT: xbf16
// CHECK-LABEL: func.func private @loss(
// CHECK-NOT: bf16
// CHECK-LABEL: func.func @model(
// CHECK-DAG: nn.param_ref @scale : tensor<4xf32>
// CHECK-DAG: nn.param_ref @w : tensor<4x4xbf16>
// CHECK-DAG: nn.param_ref @a : tensor<1x4xf32>
// CHECK-LABEL: func.func @train(
// CHECK-SAME: -> (tensor<f32> {{.*}}, tensor<1x4xf32> {nn.gradient = @a}, tensor<4x1xf32> {nn.gradient = @b}
