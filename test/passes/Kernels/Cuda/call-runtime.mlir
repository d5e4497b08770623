// RUN: mgq-opt %s --split-input-file --cuda-call-runtime --verify-diagnostics | FileCheck %s

// The parameters of a launch lie in one array of the function; the address of
// the check is the runtime's to add.
// CHECK-LABEL: gpu.func @second
// CHECK-SAME: cuda.number = 1 : i32
// CHECK-LABEL: func.func @f
// CHECK: %[[VALUES:.*]] = llvm.alloca
// CHECK: %[[ADDRESSES:.*]] = llvm.alloca
// CHECK: memref.extract_aligned_pointer_as_index %arg0
// CHECK: llvm.store
// CHECK-NOT: memref.extract_aligned_pointer_as_index
// CHECK: %[[NUMBER:.*]] = llvm.mlir.constant(1 : i32)
// CHECK: llvm.call @mgq_cuda_launch(%[[NUMBER]], %{{.*}}, %[[ADDRESSES]]) : (i32, i64, !llvm.ptr) -> ()
module attributes {gpu.container_module} {
  gpu.module @cuda attributes {cuda.checks = []} {
    gpu.func @first(%x: memref<4xf32>) kernel attributes {cuda.threads = 32 : i32} {
      gpu.return
    }
    gpu.func @second(%x: memref<4xf32>, %check: !llvm.ptr) kernel attributes {cuda.reports, cuda.threads = 32 : i32} {
      gpu.return
    }
  }
  func.func @f(%x: memref<4xf32>) attributes {nn.layer} {
    %c1 = arith.constant 1 : index
    %c32 = arith.constant 32 : index
    %none = llvm.mlir.zero : !llvm.ptr
    gpu.launch_func @cuda::@second blocks in (%c1, %c1, %c1) threads in (%c32, %c1, %c1) args(%x : memref<4xf32>, %none : !llvm.ptr)
    return
  }
}

// -----

// A product is a constant table: types (1 is f32), flags, then batch, m, n, k, row
// pitches, matrix pitches, and alpha. Equal ones share it. Nothing is added.
// CHECK: llvm.mlir.global private constant @product.0({{\[}}dense<[1, 1, 1, 0, 1, 0]> : tensor<6xi32>, dense<[3, 4, 16, 8, 8, 8, 16, 0, 32, 0, 64, 0]> : tensor<12xi64>, 1.000000e+00])
// CHECK-NOT: @product.1
// CHECK-LABEL: func.func @g
// CHECK: %[[NONE:.*]] = llvm.mlir.zero
// CHECK: %[[NEITHER:.*]] = llvm.mlir.zero
// CHECK: llvm.call @mgq_cuda_matmul(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[NONE]], %[[NEITHER]])
// CHECK: llvm.call @mgq_cuda_matmul
func.func @g(%x: memref<3x4x8xf32>, %w: memref<16x8xf32>, %y: memref<3x4x16xf32>) attributes {nn.layer} {
  kern.matmul transpose_b ins(%x, %w : memref<3x4x8xf32>, memref<16x8xf32>) outs(%y : memref<3x4x16xf32>)
  kern.matmul transpose_b ins(%x, %w : memref<3x4x8xf32>, memref<16x8xf32>) outs(%y : memref<3x4x16xf32>)
  return
}

// -----

// The last flags are 1: adds a matrix, 2: a bias, 4: GELU. Products that differ in
// their epilogue only differ.
// CHECK: @product.1({{\[}}dense<[1, 1, 1, 0, 0, 5]>
// CHECK-SAME: 5.000000e-01])
// CHECK: @product.0({{\[}}dense<[1, 1, 1, 0, 0, 3]> : tensor<6xi32>, dense<[1, 4, 16, 8, 8, 16, 16, 20, 0, 0, 0, 0]> : tensor<12xi64>, 1.000000e+00])
// CHECK-LABEL: func.func @epilogues
// CHECK: memref.extract_aligned_pointer_as_index %arg3
// CHECK: memref.extract_aligned_pointer_as_index %arg4
// CHECK: llvm.call @mgq_cuda_matmul
func.func @epilogues(%x: memref<4x8xf32>, %w: memref<8x16xf32>, %y: memref<4x16xf32>, %r: memref<4x16xf32, strided<[20, 1]>>, %b: memref<16xf32>) attributes {nn.layer} {
  kern.matmul ins(%x, %w : memref<4x8xf32>, memref<8x16xf32>) add(%r : memref<4x16xf32, strided<[20, 1]>>) bias(%b : memref<16xf32>) outs(%y : memref<4x16xf32>)
  kern.matmul gelu ins(%x, %w : memref<4x8xf32>, memref<8x16xf32>) add(%r : memref<4x16xf32, strided<[20, 1]>>) outs(%y : memref<4x16xf32>) {alpha = 0.5 : f64}
  return
}

// -----

func.func @h(%x: memref<4x8xi32>, %w: memref<8x16xi32>, %y: memref<4x16xi32>) attributes {nn.layer} {
  // expected-error @below {{'kern.matmul' op was left by kern-lower-loops: no kernel for these operands}}
  kern.matmul ins(%x, %w : memref<4x8xi32>, memref<8x16xi32>) outs(%y : memref<4x16xi32>)
  return
}

// -----

// Attention is a table, too: type (3 is bf16), what is seen, backward, bias; scale;
// sizes, strides of q, k, v and the result, the bias; whether a library may compute
// it, then kernels and blocks. Its tensors are addresses on the stack.
// CHECK: llvm.mlir.global private constant @attention.0({{\[}}dense<[3, 1, 0, 1]> : tensor<4xi32>, 2.500000e-01, dense<[2, 4, 2, 8, 8, 16, 16, 512, 128, 16, 1, 256, 128, 16, 1, 256, 128, 16, 1, 512, 128, 16, 1, 1, 4, 8, 8, 256, 64, 8, 1]> : tensor<31xi64>, dense<[1, 1, 1, 0, 0, 0]> : tensor<6xi32>, dense<[4, 0, 0]> : tensor<3xi64>])
// CHECK-NOT: @attention.1
// CHECK-LABEL: func.func @attend
// CHECK: %[[TENSORS:.*]] = llvm.alloca %{{.*}} x !llvm.ptr
// CHECK-COUNT-5: llvm.store
// CHECK: %[[TABLE:.*]] = llvm.mlir.addressof @attention.0
// CHECK: llvm.call @mgq_cuda_attention(%[[TABLE]], %[[TENSORS]]) : (!llvm.ptr, !llvm.ptr) -> ()
// CHECK: llvm.call @mgq_cuda_attention
module attributes {gpu.container_module} {
  gpu.module @cuda attributes {cuda.checks = []} {
    gpu.func @first(%x: memref<4xf32>) kernel attributes {cuda.threads = 32 : i32} {
      gpu.return
    }
    gpu.func @second(%x: memref<4xf32>) kernel attributes {cuda.threads = 256 : i32} {
      gpu.return
    }
  }
  func.func @attend(%q: memref<2x4x8x16xbf16>, %k: memref<2x2x8x16xbf16>, %bias: memref<4x8x8xbf16>) attributes {nn.layer} {
    kern.device_attention library [@cuda::@second] on [4] (%q, %k, %k mask %bias, %q : memref<2x4x8x16xbf16>, memref<2x2x8x16xbf16>, memref<2x2x8x16xbf16> mask memref<4x8x8xbf16>, memref<2x4x8x16xbf16>) {causal, scale = 0.25 : f64}
    kern.device_attention library [@cuda::@second] on [4] (%q, %k, %k mask %bias, %q : memref<2x4x8x16xbf16>, memref<2x2x8x16xbf16>, memref<2x2x8x16xbf16> mask memref<4x8x8xbf16>, memref<2x4x8x16xbf16>) {causal, scale = 0.25 : f64}
    return
  }
}
