// RUN: mgq-opt %s --kern-pass-destinations --eliminate-empty-tensors --one-shot-bufferize --canonicalize | FileCheck %s

// Two sums that start from one filled tensor are each computed in their own
// destination: neither starts from, nor is copied from, the other's.
// CHECK-LABEL: func.func @two_sums
// CHECK-SAME: (%[[X:.*]]: memref<4x8xf32>, %[[Y:.*]]: memref<4x8xf32>, %[[A:.*]]: memref<8xf32>, %[[B:.*]]: memref<8xf32>)
// CHECK-DAG: linalg.fill {{.*}} outs(%[[A]]
// CHECK-DAG: linalg.fill {{.*}} outs(%[[B]]
// CHECK-NOT: memref.copy
// CHECK: linalg.reduce ins(%[[X]] {{.*}} outs(%[[A]]
// CHECK: linalg.reduce ins(%[[Y]] {{.*}} outs(%[[B]]
// CHECK-NOT: memref.copy
func.func @two_sums(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> (tensor<8xf32>, tensor<8xf32>) attributes {nn.layer} {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<8xf32>) -> tensor<8xf32>
  %a = linalg.reduce ins(%x : tensor<4x8xf32>) outs(%fill : tensor<8xf32>) dimensions = [0] (%in: f32, %out: f32) {
    %s = arith.addf %in, %out : f32
    linalg.yield %s : f32
  }
  %b = linalg.reduce ins(%y : tensor<4x8xf32>) outs(%fill : tensor<8xf32>) dimensions = [0] (%in: f32, %out: f32) {
    %s = arith.addf %in, %out : f32
    linalg.yield %s : f32
  }
  return %a, %b : tensor<8xf32>, tensor<8xf32>
}

// Tensors without elements keep their places among the arguments, flat, and
// nothing reads or writes them.
// CHECK-LABEL: func.func @no_elements
// CHECK-SAME: (%{{.*}}: memref<0xf32>, %{{.*}}: memref<0xf32>)
// CHECK-NEXT: return
func.func @no_elements(%x: tensor<2x0x4xf32>) -> tensor<2x0x4xf32> attributes {nn.layer} {
  return %x : tensor<2x0x4xf32>
}
