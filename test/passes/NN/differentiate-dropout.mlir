// RUN: mgq-opt %s --nn-outline --nn-differentiate --nn-check-differentiated | FileCheck %s

// Equal layers that drop are one function: the key is an operand. Backward
// drops the gradient with the same key, and drops again of the layer's input,
// which stays in memory anyway, so that no dropped copy does. The second
// gradient, that of the layer's input, goes through dropout too.
nn.param @a0 trainable : tensor<8x2xf32> = "m"[0 : 64]
nn.param @b0 trainable : tensor<2x8xf32> = "m"[64 : 64]
nn.param @a1 trainable : tensor<8x2xf32> = "m"[128 : 64]
nn.param @b1 trainable : tensor<2x8xf32> = "m"[192 : 64]
func.func @model(%x: tensor<4x8xf32> {nn.input = "x"}, %k0: tensor<4xi64> {nn.input = "mgq.random.0"}, %k1: tensor<4xi64> {nn.input = "mgq.random.1"}) -> (tensor<f32> {nn.output = "loss", nn.loss = "mean"}) {
  %a0 = nn.param_ref @a0 : tensor<8x2xf32>
  %b0 = nn.param_ref @b0 : tensor<2x8xf32>
  %a1 = nn.param_ref @a1 : tensor<8x2xf32>
  %b1 = nn.param_ref @b1 : tensor<2x8xf32>
  %0 = nn.dropout %x, %k0 ratio 0.25 samples 2 : (tensor<4x8xf32>, tensor<4xi64>) -> tensor<4x8xf32> loc("blocks.0/drop"("blocks.0"))
  %1 = nn.matmul %0, %a0 : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32> loc("blocks.0/a"("blocks.0"))
  %2 = nn.matmul %1, %b0 : (tensor<4x2xf32>, tensor<2x8xf32>) -> tensor<4x8xf32> loc("blocks.0/b"("blocks.0"))
  %3 = nn.binary add %x, %2 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32> loc("blocks.0/add"("blocks.0"))
  %4 = nn.dropout %3, %k1 ratio 0.25 samples 2 : (tensor<4x8xf32>, tensor<4xi64>) -> tensor<4x8xf32> loc("blocks.1/drop"("blocks.1"))
  %5 = nn.matmul %4, %a1 : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32> loc("blocks.1/a"("blocks.1"))
  %6 = nn.matmul %5, %b1 : (tensor<4x2xf32>, tensor<2x8xf32>) -> tensor<4x8xf32> loc("blocks.1/b"("blocks.1"))
  %7 = nn.binary add %3, %6 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32> loc("blocks.1/add"("blocks.1"))
  %8 = nn.reduce sum %7 axes [0, 1] : (tensor<4x8xf32>) -> tensor<f32> loc("loss"("loss"))
  return %8 : tensor<f32>
}
// CHECK-LABEL: func @train(
// CHECK-SAME: %[[X:.+]]: tensor<4x8xf32> {nn.input = "x"}, %[[K0:.+]]: tensor<4xi64> {nn.input = "mgq.random.0"}, %[[K1:.+]]: tensor<4xi64>
// CHECK: %[[H:.+]]:2 = call @blocks.forward(%[[X]], %[[K0]],
// CHECK: call @blocks.forward(%[[H]]#0, %[[K1]],
// CHECK: call @blocks.backward.1(%{{.+}}, %[[H]]#0, %[[K1]],
// CHECK: call @blocks.backward(%{{.+}}, %[[X]], %[[K0]],
// What forward keeps is the narrow product only.
// CHECK: func private @blocks.forward({{.*}}) -> (tensor<4x8xf32>, tensor<4x2xf32>)
// CHECK: func private @blocks.backward.1(%[[G:[a-z0-9]+]]: tensor<4x8xf32>, %[[IN:[a-z0-9]+]]: tensor<4x8xf32>, %[[K:[a-z0-9]+]]: tensor<4xi64>
// CHECK: nn.dropout %[[IN]], %[[K]] ratio 2.500000e-01 samples 2
// CHECK: %[[LOW:.+]] = nn.matmul %{{.+}}, %{{.+}} transpose_b : (tensor<4x2xf32>, tensor<8x2xf32>)
// CHECK: %[[D:.+]] = nn.dropout %[[LOW]], %[[K]] ratio 2.500000e-01 samples 2
// CHECK: nn.binary add %[[G]], %[[D]]
