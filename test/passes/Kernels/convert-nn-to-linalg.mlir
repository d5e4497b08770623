// RUN: mgq-opt %s --kern-convert-nn-to-linalg | FileCheck %s

// A result without elements is not computed, and a sum of no elements is zero.
// CHECK-LABEL: func.func @no_elements
// CHECK-NOT: linalg.generic
// CHECK: %[[SUM:.*]] = linalg.fill
// CHECK-NOT: linalg.generic
// CHECK: return %{{.*}} : tensor<2x1x4xf32>
func.func @no_elements(%x: tensor<2x0x4xf32>) -> tensor<2x1x4xf32> attributes {nn.layer} {
  %0 = nn.unary exp %x : (tensor<2x0x4xf32>) -> tensor<2x0x4xf32>
  %1 = nn.reduce sum %0 axes [1] keep_dims : (tensor<2x0x4xf32>) -> tensor<2x1x4xf32>
  return %1 : tensor<2x1x4xf32>
}

// What has no elements takes no part in a concatenation.
// CHECK-LABEL: func.func @concat
// CHECK-SAME: %{{.*}}: tensor<2x0xf32>, %[[Y:.*]]: tensor<2x3xf32>
// CHECK: kern.loops ins(%[[Y]] : tensor<2x3xf32>)
func.func @concat(%x: tensor<2x0xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> attributes {nn.layer} {
  %0 = nn.concat %x, %y axis 1 : (tensor<2x0xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
