// RUN: mgq-opt %s --verify-roundtrip | FileCheck %s

// Destination-style ops exist on tensors and on memrefs.
// CHECK-LABEL: @matmul
func.func @matmul(%x: tensor<48x64xf32>, %w: tensor<128x64xf32>, %e: tensor<48x128xf32>,
                  %a: memref<3x8x4xbf16>, %b: memref<4x6xf32>, %c: memref<3x8x6xf32>,
                  %r: memref<3x8x6xf32>, %v: memref<6xf32>) -> tensor<48x128xf32> {
  // CHECK: kern.matmul transpose_b ins(%{{.*}}, %{{.*}} : tensor<48x64xf32>, tensor<128x64xf32>) outs(%{{.*}} : tensor<48x128xf32>) -> tensor<48x128xf32>
  %y = kern.matmul transpose_b ins(%x, %w : tensor<48x64xf32>, tensor<128x64xf32>) outs(%e : tensor<48x128xf32>) -> tensor<48x128xf32>
  // CHECK: kern.matmul ins(%{{.*}}, %{{.*}} : memref<3x8x4xbf16>, memref<4x6xf32>) outs(%{{.*}} : memref<3x8x6xf32>)
  kern.matmul ins(%a, %b : memref<3x8x4xbf16>, memref<4x6xf32>) outs(%c : memref<3x8x6xf32>)
  // CHECK: kern.matmul gelu ins(%{{.*}}) add(%{{.*}} : memref<3x8x6xf32>) bias(%{{.*}} : memref<6xf32>) outs(%{{.*}} : memref<3x8x6xf32>) {alpha = 5.000000e-01 : f64}
  kern.matmul gelu ins(%a, %b : memref<3x8x4xbf16>, memref<4x6xf32>) add(%r : memref<3x8x6xf32>) bias(%v : memref<6xf32>) outs(%c : memref<3x8x6xf32>) {alpha = 0.5 : f64}
  return %y : tensor<48x128xf32>
}

// The region of kern.loops is on buffers in both forms.
// CHECK-LABEL: @loops
func.func @loops(%x: tensor<4xf32>, %e: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: kern.loops ins(%{{.*}} : tensor<4xf32>) outs(%{{.*}} : tensor<4xf32>)
  // CHECK-NEXT: ^bb0(%[[IN:.*]]: memref<4xf32>, %[[OUT:.*]]: memref<4xf32>):
  %r = kern.loops ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%in: memref<4xf32>, %out: memref<4xf32>):
    %c0 = arith.constant 0 : index
    %v = memref.load %in[%c0] : memref<4xf32>
    memref.store %v, %out[%c0] : memref<4xf32>
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// A launch passes operands; the callee takes the range of a chunk besides.
// CHECK-LABEL: @launch
func.func @launch(%x: memref<64x8xf32>) {
  // CHECK: kern.launch @nest(%{{.*}} : memref<64x8xf32>) size 64 chunk 16
  kern.launch @nest(%x : memref<64x8xf32>) size 64 chunk 16
  return
}
func.func private @nest(memref<64x8xf32>, index, index)
