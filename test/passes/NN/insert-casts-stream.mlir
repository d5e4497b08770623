// RUN: mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=bf16" | FileCheck %s
// RUN: mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=layered" | FileCheck %s --check-prefix=LAYERED
// RUN: mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=bf16 precision-of=middle.*=f32" | FileCheck %s --check-prefix=OF
// RUN: mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=layered tables" | FileCheck %s --check-prefix=TABLES
// RUN: not mgq-opt %s --nn-differentiate "--nn-insert-casts=precision-of=midle=f32" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not mgq-opt %s --nn-differentiate "--nn-insert-casts=precision-of=w=f16" 2>&1 | FileCheck %s --check-prefix=WORD
// RUN: not mgq-opt %s --nn-differentiate "--nn-insert-casts=precision=f16" 2>&1 | FileCheck %s --check-prefix=POLICY

// NONE: --precision-of=midle=f32: no parameter or layer matches 'midle'; nearest: middle.0
// WORD: --precision-of=w=f16: expected GLOB=f32 or GLOB=bf16
// POLICY: precision 'f16': expected f32, layered or bf16

// A mask, which follows from inputs alone, keeps its infinities. The table is
// looked up, not multiplied. All of @middle's weights train.
nn.param @table frozen : tensor<8x4xf32> = "m"[0 : 128]
nn.param @w trainable : tensor<4x4xf32> = "m"[0 : 64]
nn.param @head frozen : tensor<4x8xf32> = "m"[0 : 128]
func.func private @mask(%ids: tensor<2xi64>) -> tensor<2x1xf32> attributes {nn.layer} {
  %0 = nn.cast %ids : (tensor<2xi64>) -> tensor<2xf32>
  %1 = nn.unary log %0 : (tensor<2xf32>) -> tensor<2xf32>
  %2 = nn.reshape %1 : (tensor<2xf32>) -> tensor<2x1xf32>
  return %2 : tensor<2x1xf32>
}
func.func private @embed(%ids: tensor<2xi64>, %table: tensor<8x4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.gather %table, %ids axis 0 : (tensor<8x4xf32>, tensor<2xi64>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @middle(%x: tensor<2x4xf32>, %mask: tensor<2x1xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> attributes {nn.layer} {
  %0 = nn.binary add %x, %mask : (tensor<2x4xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
  %1 = nn.matmul %0, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %2 = nn.binary add %x, %1 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
func.func private @loss(%x: tensor<2x4xf32>, %labels: tensor<2xi64>, %head: tensor<4x8xf32>) -> tensor<f32> attributes {nn.layer} {
  %0 = nn.matmul %x, %head : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
  %1 = nn.cross_entropy %0, %labels : (tensor<2x8xf32>, tensor<2xi64>) -> tensor<2xf32>
  %2 = nn.reduce sum %1 axes [0] : (tensor<2xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
func.func @model(%ids: tensor<2xi64> {nn.input = "ids"}) -> (tensor<f32> {nn.output = "loss", nn.loss = "mean"}) {
  %t = nn.param_ref @table : tensor<8x4xf32>
  %w = nn.param_ref @w : tensor<4x4xf32>
  %h = nn.param_ref @head : tensor<4x8xf32>
  %m = call @mask(%ids) : (tensor<2xi64>) -> tensor<2x1xf32> loc("mask")
  %0 = call @embed(%ids, %t) : (tensor<2xi64>, tensor<8x4xf32>) -> tensor<2x4xf32> loc("embed")
  %1 = call @middle(%0, %m, %w) : (tensor<2x4xf32>, tensor<2x1xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("middle.0")
  %2 = call @middle(%1, %m, %w) : (tensor<2x4xf32>, tensor<2x1xf32>, tensor<4x4xf32>) -> tensor<2x4xf32> loc("middle.1")
  %3 = call @loss(%2, %ids, %h) : (tensor<2x4xf32>, tensor<2xi64>, tensor<4x8xf32>) -> tensor<f32> loc("loss")
  return %3 : tensor<f32>
}

// CHECK-LABEL: func.func private @mask(
// CHECK-SAME: -> tensor<2x1xf32>
// CHECK-LABEL: func.func private @embed(
// CHECK-SAME: tensor<8x4xf32>) -> tensor<2x4xbf16>
// CHECK: nn.cast %{{.+}} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// The master weight is f32, and so is its gradient.
// CHECK-LABEL: func.func private @middle.forward(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2x4xbf16>, %[[M:[^:]+]]: tensor<2x1xf32>, %[[W:[^:]+]]: tensor<4x4xf32>) -> (tensor<2x4xbf16>, tensor<2x4xbf16>)
// CHECK-DAG: %[[XF:.+]] = nn.cast %[[X]] : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-DAG: %[[WB:.+]] = nn.cast %[[W]] : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK: %[[A:.+]] = nn.binary add %[[XF]], %[[M]]
// CHECK: %[[AB:.+]] = nn.cast %[[A]]
// CHECK: nn.matmul %[[AB]], %[[WB]] : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xf32>
// CHECK-LABEL: func.func private @middle.backward(
// CHECK: nn.matmul %{{.+}} transpose_a : (tensor<2x4xbf16>, tensor<2x4xbf16>) -> tensor<4x4xf32>
// What the loss keeps, its logits, is f32.
// CHECK-LABEL: func.func private @loss.forward(
// CHECK-SAME: tensor<2x4xbf16>, %{{.+}}: tensor<2xi64>, %{{.+}}: tensor<4x8xbf16>) -> (tensor<f32>, tensor<2x8xf32>)

// LAYERED-LABEL: func.func private @embed(
// LAYERED-SAME: -> tensor<2x4xf32>
// LAYERED-LABEL: func.func private @middle.forward(
// LAYERED-NOT: xbf16
// LAYERED: func.func private @loss(
// LAYERED-LABEL: func.func private @loss.forward(
// LAYERED: nn.matmul %{{.+}} : (tensor<2x4xbf16>, tensor<4x8xbf16>) -> tensor<2x8xf32>
// LAYERED-LABEL: func.func @train(
// LAYERED: nn.param_ref @table : tensor<8x4xf32>

// A layer that is kept f32 still takes the stream as it comes.
// OF-LABEL: func.func private @middle.forward(
// OF-SAME: -> (tensor<2x4x{{b?f[0-9]+}}>
// OF: nn.matmul %{{.+}} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>

// TABLES-LABEL: func.func @train(
// TABLES: nn.param_ref @table : tensor<8x4xbf16>
