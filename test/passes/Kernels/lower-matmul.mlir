// RUN: mgq-opt %s --kern-lower-matmul="cpu=x86-64-v4" --split-input-file | FileCheck %s

// Operands go to one function per shape, which calls the product that fits.
// CHECK-LABEL: func.func @linear(
// CHECK-SAME: %[[X:.*]]: memref<48x64xf32>, %[[W:.*]]: memref<128x64xf32>, %[[Y:.*]]: memref<48x128xf32>
// CHECK-NEXT: call @kern_matmul(%[[X]], %[[W]], %[[Y]])
// CHECK-NEXT: call @kern_matmul(%[[X]], %[[W]], %[[Y]])
// CHECK-NEXT: return
func.func @linear(%x: memref<48x64xf32>, %w: memref<128x64xf32>, %y: memref<48x128xf32>) {
  kern.matmul transpose_b ins(%x, %w : memref<48x64xf32>, memref<128x64xf32>) outs(%y : memref<48x128xf32>)
  kern.matmul transpose_b ins(%x, %w : memref<48x64xf32>, memref<128x64xf32>) outs(%y : memref<48x128xf32>)
  return
}
// m, n, k, lda, ldb, ldc, batch of 1, chunks.
// CHECK: llvm.mlir.global internal constant @kern_matmul_shape(dense<[48, 128, 64, 64, 64, 128, 1, 0, 0, 0, 48, 128]>
// CHECK: func.func private @kern_matmul(
// CHECK: llvm.call @mgq_gemm_nt(

// -----

// A batch that shares B is one product of more rows.
// CHECK-LABEL: func.func @shared
// CHECK: @kern_matmul_shape(dense<[96, 8, 64, 64, 8, 8, 1,
// CHECK: llvm.call @mgq_gemm_nn(
func.func @shared(%x: memref<2x48x64xf32>, %w: memref<64x8xf32>, %y: memref<2x48x8xf32>) {
  kern.matmul ins(%x, %w : memref<2x48x64xf32>, memref<64x8xf32>) outs(%y : memref<2x48x8xf32>)
  return
}

// -----

// Operands narrower than f32 are widened in the product, on either side.
// CHECK-LABEL: func.func @narrow
// CHECK-DAG: llvm.call @mgq_gemm_nt_b_bf16(
// CHECK-DAG: llvm.call @mgq_gemm_nn_a_f16(
// CHECK-DAG: llvm.call @mgq_gemm_nn_a_bf16_b_bf16(
func.func @narrow(%x: memref<48x64xf32>, %w: memref<8x64xbf16>, %h: memref<8x48xf16>, %n: memref<8x48xbf16>, %o: memref<48x64xbf16>, %y: memref<48x8xf32>, %z: memref<8x64xf32>) {
  kern.matmul transpose_b ins(%x, %w : memref<48x64xf32>, memref<8x64xbf16>) outs(%y : memref<48x8xf32>)
  kern.matmul ins(%h, %x : memref<8x48xf16>, memref<48x64xf32>) outs(%z : memref<8x64xf32>)
  kern.matmul ins(%n, %o : memref<8x48xbf16>, memref<48x64xbf16>) outs(%z : memref<8x64xf32>)
  return
}

// -----

// Contiguous columns are contiguous rows of the transposed matrix.
// CHECK-LABEL: func.func @columns
// CHECK: llvm.call @mgq_gemm_tn(
func.func @columns(%x: memref<48x64xf32, strided<[1, 48]>>, %w: memref<64x8xf32>, %y: memref<48x8xf32>) {
  kern.matmul ins(%x, %w : memref<48x64xf32, strided<[1, 48]>>, memref<64x8xf32>) outs(%y : memref<48x8xf32>)
  return
}

// -----

// C^T = B^T A^T.
// CHECK-LABEL: func.func @transposed_result
// CHECK: @kern_matmul_shape(dense<[8, 48, 64, 8, 64, 48,
// CHECK: llvm.call @mgq_gemm_tt(
func.func @transposed_result(%x: memref<48x64xf32>, %w: memref<64x8xf32>, %y: memref<48x8xf32, strided<[1, 48]>>) {
  kern.matmul ins(%x, %w : memref<48x64xf32>, memref<64x8xf32>) outs(%y : memref<48x8xf32, strided<[1, 48]>>)
  return
}

// -----

// Products of other types are left to loops.
// CHECK-LABEL: func.func @other_type
// CHECK: kern.matmul
func.func @other_type(%x: memref<48x64xf64>, %w: memref<64x8xf64>, %y: memref<48x8xf64>) {
  kern.matmul ins(%x, %w : memref<48x64xf64>, memref<64x8xf64>) outs(%y : memref<48x8xf64>)
  return
}
