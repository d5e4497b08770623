// RUN: mgq-opt %s --nn-mark="trainable=w,table,bias,half" --split-input-file | FileCheck %s

// A trainable parameter stored as bf16 or f16 is f32 in the graph; the casts
// that widened it are gone, whatever moves its elements before them. A frozen
// one stays as it is stored.
// CHECK-DAG: nn.param @w trainable : tensor<4x4xbf16> = "m"[0 : 32]
// CHECK-DAG: nn.param @frozen frozen : tensor<4x4xbf16>
nn.param @w : tensor<4x4xbf16> = "m"[0 : 32]
nn.param @frozen : tensor<4x4xbf16> = "m"[32 : 32]
nn.param @table : tensor<8x4xbf16> = "m"[64 : 64]
nn.param @bias : tensor<4xf16> = "m"[128 : 8]
nn.param @half : tensor<4x4xbf16> = "m"[136 : 32]

// CHECK-LABEL: func.func @model
func.func @model(%ids: tensor<3xi64> {nn.input = "ids"}) -> (tensor<f32> {nn.output = "loss"}) {
  // CHECK-DAG: %[[W:.*]] = nn.param_ref @w : tensor<4x4xf32>
  // CHECK-DAG: %[[F:.*]] = nn.param_ref @frozen : tensor<4x4xbf16>
  // CHECK-DAG: %[[TABLE:.*]] = nn.param_ref @table : tensor<8x4xf32>
  // CHECK-DAG: %[[BIAS:.*]] = nn.param_ref @bias : tensor<4xf32>
  // CHECK-DAG: %[[HALF:.*]] = nn.param_ref @half : tensor<4x4xf32>
  %w = nn.param_ref @w : tensor<4x4xbf16>
  %f = nn.param_ref @frozen : tensor<4x4xbf16>
  %table = nn.param_ref @table : tensor<8x4xbf16>
  %bias = nn.param_ref @bias : tensor<4xf16>
  %half = nn.param_ref @half : tensor<4x4xbf16>
  // What computes in bf16 gets the value rounded.
  // CHECK: %[[ROUNDED:.*]] = nn.cast %[[HALF]] : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  // CHECK: %[[ROWS:.*]] = nn.gather %[[TABLE]], %{{.*}} axis 0 : (tensor<8x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>
  %rows = nn.gather %table, %ids axis 0 : (tensor<8x4xbf16>, tensor<3xi64>) -> tensor<3x4xbf16>
  %x = nn.cast %rows : (tensor<3x4xbf16>) -> tensor<3x4xf32>
  %wide = nn.cast %w : (tensor<4x4xbf16>) -> tensor<4x4xf32>
  // CHECK: %[[A:.*]] = nn.matmul %[[ROWS]], %[[W]]
  %a = nn.matmul %x, %wide : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  // CHECK: %[[FROZEN:.*]] = nn.cast %[[F]] : (tensor<4x4xbf16>) -> tensor<4x4xf32>
  // CHECK: %[[B:.*]] = nn.matmul %[[A]], %[[FROZEN]]
  %frozen = nn.cast %f : (tensor<4x4xbf16>) -> tensor<4x4xf32>
  %b = nn.matmul %a, %frozen : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  // CHECK: %[[C:.*]] = nn.binary add %[[B]], %[[BIAS]]
  %shift = nn.cast %bias : (tensor<4xf16>) -> tensor<4xf32>
  %c = nn.binary add %b, %shift : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  // CHECK: nn.matmul %{{.*}}, %[[ROUNDED]] {{.*}} -> tensor<3x4xbf16>
  %narrow = nn.cast %c : (tensor<3x4xf32>) -> tensor<3x4xbf16>
  %d = nn.matmul %narrow, %half : (tensor<3x4xbf16>, tensor<4x4xbf16>) -> tensor<3x4xbf16>
  %e = nn.cast %d : (tensor<3x4xbf16>) -> tensor<3x4xf32>
  %loss = nn.reduce sum %e axes [0, 1] : (tensor<3x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
