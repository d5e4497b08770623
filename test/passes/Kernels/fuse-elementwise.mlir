// RUN: mgq-opt %s --convert-nn-to-linalg --kern-fuse-elementwise | FileCheck %s

// A chain of elementwise ops is one op.
// CHECK-LABEL: @chain
// CHECK-COUNT-1: linalg.generic
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @chain(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> attributes {nn.layer} {
  %0 = nn.binary add %x, %b : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %1 = nn.unary gelu %0 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// A value with two users is computed once.
// CHECK-LABEL: @shared
// CHECK-COUNT-1: math.exp
// CHECK-NOT: math.exp
// CHECK: return
func.func @shared(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) attributes {nn.layer} {
  %0 = nn.unary exp %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = nn.unary sqrt %0 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = nn.reduce sum %0 axes [1] : (tensor<4x8xf32>) -> tensor<4xf32>
  return %1, %2 : tensor<4x8xf32>, tensor<4xf32>
}

// A transcendental function of few values is not repeated for many.
// CHECK-LABEL: @expanded
// CHECK: linalg.generic
// CHECK: math.exp
// CHECK: linalg.generic
func.func @expanded(%x: tensor<4x1xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {nn.layer} {
  %0 = nn.unary exp %x : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %1 = nn.binary mul %y, %0 : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// What follows a product writes over it, past the reshape between them.
// CHECK-LABEL: @bias
// CHECK: %[[Y:.*]] = kern.matmul
// CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<16xf32>) outs(%[[Y]] : tensor<8x16xf32>)
func.func @bias(%x: tensor<2x4x8xf32>, %w: tensor<8x16xf32>, %b: tensor<16xf32>) -> tensor<2x4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %1 = nn.binary add %0, %b : (tensor<2x4x16xf32>, tensor<16xf32>) -> tensor<2x4x16xf32>
  return %1 : tensor<2x4x16xf32>
}

// Reshapes on both operands of an op come to rest.
// CHECK-LABEL: @reshapes
// CHECK: linalg.generic
func.func @reshapes(%x: tensor<3x5xf32>, %i: tensor<3x1xi64>, %l: tensor<3xi64>) -> tensor<3xf32> attributes {nn.layer} {
  %0 = nn.gather_elements %x, %i axis 1 : (tensor<3x5xf32>, tensor<3x1xi64>) -> tensor<3x1xf32>
  %1 = nn.reshape %0 : (tensor<3x1xf32>) -> tensor<3xf32>
  %2 = nn.label_weights %l : (tensor<3xi64>) -> tensor<3xf32>
  %3 = nn.binary mul %1, %2 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  return %3 : tensor<3xf32>
}

// A weight that is stored as bf16 is widened by each of its readers: no f32
// copy of it is kept.
// CHECK-LABEL: @narrow
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<4x8xf32>, tensor<4x8xbf16>)
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<4x8xf32>, tensor<4x8xbf16>)
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @narrow(%x: tensor<4x8xf32>, %w: tensor<4x8xbf16>) -> (tensor<4x8xf32>, tensor<4x8xf32>) attributes {nn.layer} {
  %0 = nn.cast %w : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %1 = nn.binary add %x, %0 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = nn.binary mul %x, %0 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %2 : tensor<4x8xf32>, tensor<4x8xf32>
}
