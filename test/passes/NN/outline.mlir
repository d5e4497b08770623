// RUN: mgq-opt %s --nn-outline --split-input-file --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s

// Two blocks between the positions where one value is live are one function;
// that one of them trains does not split them. Names come from scopes, the
// function's without the number. Constants go inside.
nn.param @l.0.up frozen : tensor<4x8xf32> = "m"[0 : 128]
nn.param @l.0.down frozen : tensor<8x4xf32> = "m"[0 : 128]
nn.param @l.1.up trainable : tensor<4x8xf32> = "m"[0 : 128]
nn.param @l.1.down trainable : tensor<8x4xf32> = "m"[0 : 128]
// CHECK-LABEL: func.func @model
// CHECK: %[[H1:.*]] = call @net.layers(%{{.*}}, %{{.*}}, %{{.*}}) : {{.*}} loc("net.layers.0")
// CHECK: %[[UP:.*]] = nn.param_ref @l.1.up
// CHECK: %[[H2:.*]] = call @net.layers(%[[H1]], %[[UP]], %{{.*}}) : {{.*}} loc("net.layers.1")
// CHECK: %[[LOSS:.*]] = call @loss(%[[H2]]) : {{.*}} loc("loss")
// CHECK: return %[[LOSS]]
// CHECK-LABEL: func.func private @net.layers
// CHECK-SAME: attributes {nn.layer}
// CHECK: nn.rms_norm
// CHECK: nn.constant
// CHECK-LABEL: func.func private @loss
// CHECK-NEXT: nn.reduce sum
// CHECK-NOT: func.func
func.func @model(%x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
  %c = nn.constant dense<2.0> : tensor<f32>
  %u0 = nn.param_ref @l.0.up : tensor<4x8xf32>
  %d0 = nn.param_ref @l.0.down : tensor<8x4xf32>
  %u1 = nn.param_ref @l.1.up : tensor<4x8xf32>
  %d1 = nn.param_ref @l.1.down : tensor<8x4xf32>
  %0 = nn.rms_norm %x {axis = 1 : i64, epsilon = 1.0e-5 : f64} : (tensor<2x4xf32>) -> tensor<2x4xf32> loc("n0"("net.layers.0.norm"))
  %1 = nn.matmul %0, %u0 : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32> loc("u0"("net.layers.0.mlp.up"))
  %2 = nn.binary mul %1, %c : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32> loc("c0"("net.layers.0.mlp"))
  %3 = nn.matmul %2, %d0 : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32> loc("d0"("net.layers.0.mlp.down"))
  %4 = nn.binary add %x, %3 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32> loc("a0"("net.layers.0"))
  %5 = nn.rms_norm %4 {axis = 1 : i64, epsilon = 1.0e-5 : f64} : (tensor<2x4xf32>) -> tensor<2x4xf32> loc("n1"("net.layers.1.norm"))
  %6 = nn.matmul %5, %u1 : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32> loc("u1"("net.layers.1.mlp.up"))
  %7 = nn.binary mul %6, %c : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32> loc("c1"("net.layers.1.mlp"))
  %8 = nn.matmul %7, %d1 : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32> loc("d1"("net.layers.1.mlp.down"))
  %9 = nn.binary add %4, %8 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32> loc("a1"("net.layers.1"))
  %10 = nn.reduce sum %9 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %10 : tensor<f32>
}

// -----

// What depends on inputs alone goes into the one segment that uses it (the cast
// of ids), or, used by several, is a call of its own; a view of a parameter goes
// into the layer. Without scopes, names come from parameters. @count is outlined
// too.
nn.param @e.weight frozen : tensor<9x4xf32> = "m"[0 : 144]
nn.param @a.0.weight trainable : tensor<4x4xf32> = "m"[0 : 64]
nn.param @a.1.weight trainable : tensor<4x4xf32> = "m"[0 : 64]
// CHECK-LABEL: func.func @model
// CHECK-SAME: (%[[IDS:.*]]: tensor<3xi32> {{.*}}, %[[MASK:.*]]: tensor<3xi64>
// CHECK: %[[SEES:.*]] = call @inputs(%[[MASK]]) : {{.*}} loc("inputs")
// CHECK: %[[E:.*]] = call @e(%[[IDS]], %{{.*}}) : {{.*}} loc("e")
// CHECK: %[[A0:.*]] = call @a(%[[E]], %[[SEES]], %{{.*}}) : {{.*}} loc("a.0")
// CHECK: call @a(%[[A0]], %[[SEES]], %{{.*}}) : {{.*}} loc("a.1")
// CHECK-LABEL: func.func @count
// CHECK: call @count_{{[0-9]}}
// CHECK-LABEL: func.func private @inputs
// CHECK-NEXT: nn.constant
// CHECK-NEXT: nn.compare
// CHECK-LABEL: func.func private @e(
// CHECK-NEXT: nn.cast
// CHECK-NEXT: nn.gather
// CHECK-LABEL: func.func private @a(
// CHECK: nn.reshape {{.*}} (tensor<4x4xf32>) -> tensor<1x4x4xf32>
func.func @model(%ids: tensor<3xi32> {nn.input = "ids"}, %mask: tensor<3xi64> {nn.input = "mask"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
  %zero = nn.constant dense<0> : tensor<i64>
  %e = nn.param_ref @e.weight : tensor<9x4xf32>
  %w0 = nn.param_ref @a.0.weight : tensor<4x4xf32>
  %w1 = nn.param_ref @a.1.weight : tensor<4x4xf32>
  %i = nn.cast %ids : (tensor<3xi32>) -> tensor<3xi64>
  %sees = nn.compare ne %mask, %zero : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
  %v0 = nn.reshape %w0 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
  %v1 = nn.reshape %w1 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
  %g = nn.gather %e, %i axis 0 : (tensor<9x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>
  %x = nn.reshape %g : (tensor<3x4xf32>) -> tensor<1x1x3x4xf32>
  %y0 = nn.matmul %x, %v0 : (tensor<1x1x3x4xf32>, tensor<1x4x4xf32>) -> tensor<1x1x3x4xf32>
  %a0 = nn.attention %y0, %x, %x mask %sees {scale = 1.0 : f64} : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, tensor<3xi1>) -> tensor<1x1x3x4xf32>
  %r0 = nn.binary add %x, %a0 : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %y1 = nn.matmul %r0, %v1 : (tensor<1x1x3x4xf32>, tensor<1x4x4xf32>) -> tensor<1x1x3x4xf32>
  %a1 = nn.attention %y1, %r0, %r0 mask %sees {scale = 1.0 : f64} : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, tensor<3xi1>) -> tensor<1x1x3x4xf32>
  %r1 = nn.binary add %r0, %a1 : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %loss = nn.reduce sum %r1 axes [0, 1, 2, 3] : (tensor<1x1x3x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
func.func @count(%mask: tensor<3xi64> {nn.input = "mask"}) -> tensor<f32> {
  %0 = nn.label_weights %mask : (tensor<3xi64>) -> tensor<3xf32>
  %1 = nn.reduce sum %0 axes [0] : (tensor<3xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// A norm that follows every block belongs to it.
nn.param @b.0.weight frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @b.1.weight frozen : tensor<4x4xf32> = "m"[0 : 64]
// CHECK-LABEL: func.func @model
// CHECK: call @b(
// CHECK: call @b(
// CHECK: call @loss(
// CHECK-LABEL: func.func private @b(
// CHECK: nn.matmul
// CHECK: nn.layer_norm
// CHECK-NEXT: return
func.func @model(%in: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean"}) {
  %w0 = nn.param_ref @b.0.weight : tensor<4x4xf32>
  %w1 = nn.param_ref @b.1.weight : tensor<4x4xf32>
  %y0 = nn.matmul %in, %w0 : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %r0 = nn.binary add %in, %y0 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %x1 = nn.layer_norm %r0 {axis = 1 : i64, epsilon = 1.0e-5 : f64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %y1 = nn.matmul %x1, %w1 : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %r1 = nn.binary add %x1, %y1 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %x2 = nn.layer_norm %r1 {axis = 1 : i64, epsilon = 1.0e-5 : f64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %loss = nn.reduce sum %x2 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
