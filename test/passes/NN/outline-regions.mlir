// RUN: mgq-opt %s --nn-outline --split-input-file | FileCheck %s

// A value that passes through blocks (the image of all cross-attentions) does not
// hide them: they repeat. Past its last use the block still is one.
nn.param @i.weight frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @q.0.weight frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @q.1.weight frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @q.2.weight frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @query frozen : tensor<1x1x3x4xf32> = "m"[0 : 48]
// CHECK-LABEL: func.func @model
// CHECK: %[[I:.*]] = call @i(%arg0
// CHECK: %[[Q:.*]] = call @[[START:.*]](%{{.*}}) : (tensor<1x1x3x4xf32>)
// CHECK: %[[Q0:.*]] = call @q(%[[I]], %[[Q]],
// CHECK: %[[Q1:.*]] = call @q(%[[I]], %[[Q0]],
// CHECK: %[[Q2:.*]] = call @q(%[[I]], %[[Q1]],
// CHECK: call @loss(%[[Q2]])
func.func @model(%in: tensor<1x1x3x4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean"}) {
  %w = nn.param_ref @i.weight : tensor<4x4xf32>
  %w0 = nn.param_ref @q.0.weight : tensor<4x4xf32>
  %w1 = nn.param_ref @q.1.weight : tensor<4x4xf32>
  %w2 = nn.param_ref @q.2.weight : tensor<4x4xf32>
  %query = nn.param_ref @query : tensor<1x1x3x4xf32>
  %i = nn.matmul %in, %w : (tensor<1x1x3x4xf32>, tensor<4x4xf32>) -> tensor<1x1x3x4xf32>
  %x0 = nn.rms_norm %query {axis = 3 : i64, epsilon = 1.0e-5 : f64} : (tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %k0 = nn.matmul %i, %w0 : (tensor<1x1x3x4xf32>, tensor<4x4xf32>) -> tensor<1x1x3x4xf32>
  %a0 = nn.attention %x0, %k0, %k0 {scale = 1.0 : f64} : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %o0 = nn.unary tanh %a0 : (tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %x1 = nn.binary add %x0, %o0 : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %k1 = nn.matmul %i, %w1 : (tensor<1x1x3x4xf32>, tensor<4x4xf32>) -> tensor<1x1x3x4xf32>
  %a1 = nn.attention %x1, %k1, %k1 {scale = 1.0 : f64} : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %o1 = nn.unary tanh %a1 : (tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %x2 = nn.binary add %x1, %o1 : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %k2 = nn.matmul %i, %w2 : (tensor<1x1x3x4xf32>, tensor<4x4xf32>) -> tensor<1x1x3x4xf32>
  %a2 = nn.attention %x2, %k2, %k2 {scale = 1.0 : f64} : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %o2 = nn.unary tanh %a2 : (tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %x3 = nn.binary add %x2, %o2 : (tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> tensor<1x1x3x4xf32>
  %loss = nn.reduce sum %x3 axes [0, 1, 2, 3] : (tensor<1x1x3x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// A chain without branches is cut at its products, so that equal ones meet.
nn.param @a frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @b frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @c frozen : tensor<4x4xf32> = "m"[0 : 64]
nn.param @d frozen : tensor<4x4xf32> = "m"[0 : 64]
// CHECK-LABEL: func.func @model
// CHECK-COUNT-3: call @[[F:.*]](%{{.*}}, %{{.*}}) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
// CHECK: call @loss(%{{.*}}, %{{.*}}) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<f32>
func.func @model(%x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean"}) {
  %a = nn.param_ref @a : tensor<4x4xf32>
  %b = nn.param_ref @b : tensor<4x4xf32>
  %c = nn.param_ref @c : tensor<4x4xf32>
  %d = nn.param_ref @d : tensor<4x4xf32>
  %0 = nn.matmul %x, %a : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = nn.unary relu %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = nn.matmul %1, %b : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = nn.unary relu %2 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = nn.matmul %3, %c : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %5 = nn.unary relu %4 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %6 = nn.matmul %5, %d : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %7 = nn.unary relu %6 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %8 = nn.reduce sum %7 axes [0, 1] : (tensor<2x4xf32>) -> tensor<f32>
  return %8 : tensor<f32>
}
