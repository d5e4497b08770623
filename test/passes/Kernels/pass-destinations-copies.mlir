// RUN: mgq-opt %s --kern-pass-destinations | FileCheck %s
// RUN: mgq-opt %s --kern-pass-destinations --eliminate-empty-tensors --one-shot-bufferize --canonicalize | FileCheck %s --check-prefix=BUFFER

// Results become arguments; a reshape at the end is done on the destination,
// which the op before it then writes without a copy.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[X:.*]]: memref<2x4xf32>, %[[OUT:.*]]: memref<8xf32>) attributes {nn.layer}
// CHECK: %[[VIEW:.*]] = memref.expand_shape %[[OUT]]
// CHECK: bufferization.materialize_in_destination %{{.*}} in restrict writable %[[VIEW]]
// BUFFER-LABEL: @f
// BUFFER-NOT: memref.alloc
// BUFFER-NOT: memref.copy
// BUFFER: linalg.fill
func.func @f(%x: tensor<2x4xf32>) -> tensor<8xf32> attributes {nn.layer} {
  %c = arith.constant 1.0 : f32
  %e = tensor.empty() : tensor<2x4xf32>
  %0 = linalg.fill ins(%c : f32) outs(%e : tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = tensor.collapse_shape %0 [[0, 1]] : tensor<2x4xf32> into tensor<8xf32>
  return %1 : tensor<8xf32>
}
