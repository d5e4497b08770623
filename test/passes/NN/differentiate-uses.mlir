// RUN: mgq-opt %s --nn-differentiate --nn-check-differentiated --split-input-file | FileCheck %s

// The gradients of a value that several calls use are added as the calls come,
// in reverse order, each by a call on behalf of its layer. A parameter that
// several calls use has one gradient per use, in program order.
nn.param @w trainable : tensor<4xf32> = "m"[0 : 16]
func.func private @scale(%x: tensor<2x4xf32>, %w: tensor<4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.binary mul %x, %w : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @mix(%x: tensor<2x4xf32>, %y: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.binary mul %x, %y : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @sum(%x: tensor<2x4xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.reduce sum %x axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @model(%x: tensor<2x4xf32>) -> (tensor<f32> {nn.loss = "mean"}) {
  %w = nn.param_ref @w : tensor<4xf32>
  %0 = call @scale(%x, %w) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32> loc("first")
  %1 = call @scale(%0, %w) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32> loc("second")
  %2 = call @mix(%0, %1) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32> loc("mix.0")
  %3 = call @mix(%2, %0) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32> loc("mix.1")
  %4 = call @sum(%3) : (tensor<2x4xf32>) -> tensor<f32> loc("sum")
  return %4 : tensor<f32>
}
// CHECK: func private @nn.add_gradients.2x4xf32(%[[A:.+]]: tensor<2x4xf32>, %[[B:.+]]: tensor<2x4xf32>)
// CHECK-SAME: attributes {nn.layer}
// CHECK-NEXT: nn.binary add %[[A]], %[[B]]
// CHECK-LABEL: func @train(
// CHECK-SAME: tensor<4xf32> {nn.gradient = @w}, tensor<4xf32> {nn.gradient = @w})
// CHECK: %[[SUM:.+]] = call @sum.backward
// CHECK: %[[MIX1:.+]]:2 = call @mix.backward(%[[SUM]],
// CHECK: %[[MIX0:.+]]:2 = call @mix.backward(%[[MIX1]]#0,
// CHECK: %[[S0:.+]] = call @nn.add_gradients.2x4xf32(%[[MIX1]]#1, %[[MIX0]]#0) {nn.instance = "mix.0", nn.phase = "backward"}
// CHECK: %[[SECOND:.+]]:2 = call @scale.backward.1(%[[MIX0]]#1,
// CHECK: %[[S1:.+]] = call @nn.add_gradients.2x4xf32(%[[S0]], %[[SECOND]]#0) {nn.instance = "second", nn.phase = "backward"}
// CHECK: %[[FIRST:.+]] = call @scale.backward(%[[S1]],
// CHECK: return %{{.*}}, %[[FIRST]], %[[SECOND]]#1

// -----

// What only other outputs of the model need is not in @train; the count is.
nn.param @w trainable : tensor<4xf32> = "m"[0 : 16]
func.func private @both(%x: tensor<4xf32>, %w: tensor<4xf32>) -> (tensor<f32>, tensor<f32>) attributes {nn.layer} {
  %0 = nn.binary mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = nn.reduce sum %0 axes [0] : (tensor<4xf32>) -> tensor<f32>
  %2 = nn.reduce sum %x axes [0] : (tensor<4xf32>) -> tensor<f32>
  return %1, %2 : tensor<f32>, tensor<f32>
}
func.func private @metric(%x: tensor<f32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.unary exp %x : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @model(%x: tensor<4xf32>) -> (tensor<f32> {nn.loss = "sum"}, tensor<f32> {nn.loss = "count"}, tensor<f32> {nn.output = "metric"}) {
  %w = nn.param_ref @w : tensor<4xf32>
  %0:2 = call @both(%x, %w) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<f32>, tensor<f32>)
  %1 = call @metric(%0#0) : (tensor<f32>) -> tensor<f32>
  return %0#0, %0#1, %1 : tensor<f32>, tensor<f32>, tensor<f32>
}
// The count gets no gradient: backward takes the one of the sum.
// CHECK: func private @both.backward(%{{.+}}: tensor<f32>, %{{.+}}: tensor<4xf32>) -> tensor<4xf32>
// CHECK-LABEL: func @train(
// CHECK-SAME: -> (tensor<f32> {nn.loss = "sum"}, tensor<f32> {nn.loss = "count"}, tensor<4xf32> {nn.gradient = @w})
// CHECK-NOT: @metric
// CHECK: return
