// RUN: mgq-opt %s --nn-mark="trainable=proj.*,*.lora_[AB].? freeze=proj.bias" --split-input-file | FileCheck %s

// Globs choose what trains; a mean cross-entropy becomes sum and count, and
// @count computes the count from the labels alone.
// CHECK-DAG: nn.param @proj.weight trainable
// CHECK-DAG: nn.param @proj.bias frozen
// CHECK-DAG: nn.param @q.lora_A.0 trainable
// CHECK-DAG: nn.param @base frozen
nn.param @proj.weight : tensor<4x7xf32> = "m"[0 : 112]
nn.param @proj.bias : tensor<7xf32> = "m"[0 : 28]
nn.param @q.lora_A.0 : tensor<4x4xf32> = "m"[0 : 64]
nn.param @base : tensor<4x4xf32> = "m"[0 : 64]

// CHECK-LABEL: func.func @model
// CHECK-SAME: -> (tensor<f32> {nn.loss = "sum", nn.output = "loss"}, tensor<f32> {nn.loss = "count"}, tensor<3x7xf32> {nn.output = "logits"})
// CHECK: %[[SUM:.*]] = nn.reduce sum
// CHECK: %[[COUNT:.*]] = nn.reduce sum
// CHECK-NOT: nn.binary div
// CHECK: return %[[SUM]], %[[COUNT]]

// CHECK-LABEL: func.func @count(%arg0: tensor<3xi64> {nn.input = "labels"}) -> tensor<f32>
// CHECK-NEXT: nn.label_weights
// CHECK-NEXT: nn.reduce sum
// CHECK-NEXT: return
func.func @model(%x: tensor<3x4xf32> {nn.input = "x"}, %labels: tensor<3xi64> {nn.input = "labels"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<3x7xf32> {nn.output = "logits"}) {
  %w = nn.param_ref @proj.weight : tensor<4x7xf32>
  %b = nn.param_ref @proj.bias : tensor<7xf32>
  %a = nn.param_ref @q.lora_A.0 : tensor<4x4xf32>
  %c = nn.param_ref @base : tensor<4x4xf32>
  %0 = nn.matmul %x, %c : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  %1 = nn.matmul %0, %a : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  %2 = nn.matmul %1, %w : (tensor<3x4xf32>, tensor<4x7xf32>) -> tensor<3x7xf32>
  %3 = nn.binary add %2, %b : (tensor<3x7xf32>, tensor<7xf32>) -> tensor<3x7xf32>
  %4 = nn.cross_entropy %3, %labels {ignore_index = -100 : i64} : (tensor<3x7xf32>, tensor<3xi64>) -> tensor<3xf32>
  %5 = nn.reduce sum %4 axes [0] : (tensor<3xf32>) -> tensor<f32>
  %6 = nn.label_weights %labels {ignore_index = -100 : i64} : (tensor<3xi64>) -> tensor<3xf32>
  %7 = nn.reduce sum %6 axes [0] : (tensor<3xf32>) -> tensor<f32>
  %8 = nn.binary div %5, %7 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %8, %3 : tensor<f32>, tensor<3x7xf32>
}

// -----

// Another loss stays a mean, as a tensor of rank 0.
nn.param @proj.weight : tensor<4xf32> = "m"[0 : 16]
nn.param @proj.bias : tensor<4xf32> = "m"[0 : 16]
nn.param @q.lora_B.0 : tensor<4xf32> = "m"[0 : 16]
// CHECK-LABEL: func.func @model
// CHECK-SAME: -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"})
// CHECK: nn.reshape %{{.*}} : (tensor<1xf32>) -> tensor<f32>
// CHECK-NOT: @count
func.func @model(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<1xf32> {nn.output = "loss"}) {
  %w = nn.param_ref @proj.weight : tensor<4xf32>
  %b = nn.param_ref @q.lora_B.0 : tensor<4xf32>
  %0 = nn.binary mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = nn.binary sub %0, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = nn.reduce sum %1 axes [0] keep_dims : (tensor<4xf32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}
