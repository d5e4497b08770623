// RUN: mgq-opt %s --kern-sink-casts | FileCheck %s

// Rows are picked from the table as it is stored; only they are widened.
// CHECK-LABEL: func.func @embed
// CHECK-NEXT: %[[ROWS:.*]] = nn.gather %{{.*}} -> tensor<3x4xbf16>
// CHECK-NEXT: %[[WIDE:.*]] = nn.cast %[[ROWS]] : (tensor<3x4xbf16>) -> tensor<3x4xf32>
// CHECK-NEXT: return %[[WIDE]]
func.func @embed(%table: tensor<100x4xbf16>, %ids: tensor<3xi64>) -> tensor<3x4xf32> attributes {nn.layer} {
  %f = nn.cast %table : (tensor<100x4xbf16>) -> tensor<100x4xf32>
  %r = nn.gather %f, %ids axis 0 : (tensor<100x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>
  return %r : tensor<3x4xf32>
}

// A cast goes through several ops.
// CHECK-LABEL: func.func @chain
// CHECK-NEXT: nn.slice {{.*}} -> tensor<2x6xf16>
// CHECK-NEXT: nn.reshape {{.*}} -> tensor<12xf16>
// CHECK-NEXT: nn.cast {{.*}} -> tensor<12xf32>
func.func @chain(%w: tensor<4x6xf16>) -> tensor<12xf32> attributes {nn.layer} {
  %f = nn.cast %w : (tensor<4x6xf16>) -> tensor<4x6xf32>
  %s = nn.slice %f [1, 0] to [3, 6] by [1, 1] : (tensor<4x6xf32>) -> tensor<2x6xf32>
  %r = nn.reshape %s : (tensor<2x6xf32>) -> tensor<12xf32>
  return %r : tensor<12xf32>
}

// Parts are joined narrow if all are of one type.
// CHECK-LABEL: func.func @join
// CHECK-NEXT: nn.concat {{.*}} -> tensor<8xbf16>
// CHECK-NEXT: nn.cast
// CHECK-NEXT: return
func.func @join(%a: tensor<4xbf16>, %b: tensor<4xbf16>) -> tensor<8xf32> attributes {nn.layer} {
  %fa = nn.cast %a : (tensor<4xbf16>) -> tensor<4xf32>
  %fb = nn.cast %b : (tensor<4xbf16>) -> tensor<4xf32>
  %r = nn.concat %fa, %fb axis 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// CHECK-LABEL: func.func @mixed
// CHECK: nn.concat {{.*}} -> tensor<8xf32>
func.func @mixed(%a: tensor<4xbf16>, %b: tensor<4xf16>) -> tensor<8xf32> attributes {nn.layer} {
  %fa = nn.cast %a : (tensor<4xbf16>) -> tensor<4xf32>
  %fb = nn.cast %b : (tensor<4xf16>) -> tensor<4xf32>
  %r = nn.concat %fa, %fb axis 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// A cast that rounds stays where it is.
// CHECK-LABEL: func.func @rounds
// CHECK-NEXT: nn.cast
// CHECK-NEXT: nn.reshape {{.*}} -> tensor<4xbf16>
func.func @rounds(%a: tensor<2x2xf32>) -> tensor<4xbf16> attributes {nn.layer} {
  %n = nn.cast %a : (tensor<2x2xf32>) -> tensor<2x2xbf16>
  %r = nn.reshape %n : (tensor<2x2xbf16>) -> tensor<4xbf16>
  return %r : tensor<4xbf16>
}
