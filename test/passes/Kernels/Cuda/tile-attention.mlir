// RUN: mgq-opt %s --split-input-file --cuda-tile-attention --canonicalize --cse --verify-diagnostics | FileCheck %s

// A block of 256 threads has 64 queries of a head; 16 x 2 x 8 tiles of them are
// as many blocks. 64 keys go by at a time, through shared memory; maxima, sums and
// the results of a thread's four rows are carried in registers. Rows are reduced
// by half a warp. Nothing has the size of queries times keys.
// CHECK-LABEL: gpu.func @attention_0
// CHECK-SAME: %[[Q:[^:]+]]: memref<2x8x1024x64xf32, strided<[524288, 65536, 64, 1]>> {llvm.align = 16 : i64}
// CHECK-SAME: %[[MASK:[^:]+]]: !llvm.ptr
// CHECK-SAME: llvm.noalias}) workgroup(%{{.*}} : memref<8448xf32, #gpu.address_space<workgroup>> {llvm.align = 16 : i64})
// CHECK-SAME: kernel attributes {cuda.threads = 256 : i32
// CHECK: scf.for %{{.*}} = %c0 to %c1024 step %c64
// CHECK: scf.for {{.*}} to %c64 step %c32
// CHECK: gpu.barrier
// CHECK: math.fma
// CHECK: gpu.barrier
// CHECK: nvvm.shfl.sync bfly {{.*}} %c8_i32
// CHECK: nvvm.shfl.sync bfly {{.*}} %c1_i32
// CHECK: math.exp
// CHECK: gpu.barrier
// CHECK: math.fma
// CHECK: gpu.barrier
// CHECK-NOT: memref.alloc
// CHECK-LABEL: func.func @f
// Equal attentions have the same kernel.
// CHECK-NOT: memref.alloc
// CHECK-COUNT-2: kern.device_attention [@cuda::@attention_0] on [256]
func.func @f(%x: memref<2x8x1024x64xf32>, %y: memref<2x8x1024x64xf32>) attributes {nn.layer} {
  kern.attention ins(%x, %x, %x : memref<2x8x1024x64xf32>, memref<2x8x1024x64xf32>, memref<2x8x1024x64xf32>) outs(%y : memref<2x8x1024x64xf32>) {scale = 0.125 : f64}
  kern.attention ins(%x, %x, %x : memref<2x8x1024x64xf32>, memref<2x8x1024x64xf32>, memref<2x8x1024x64xf32>) outs(%y : memref<2x8x1024x64xf32>) {scale = 0.125 : f64}
  return
}

// -----

// Gradients have three kernels, and scratch: three numbers of each row, its maximum
// and one over its sum of exponentials apart, as the logarithm of a sum is lost in a
// large maximum; and, as a library may compute them, room for a result. Causal blocks of queries end with the
// last key that they see.
// CHECK-LABEL: gpu.func @attention_statistics_0
// CHECK-NOT: math.log
// CHECK: arith.divf
// CHECK-LABEL: gpu.func @attention_grad_q_1
// CHECK: %[[BEHIND:.*]] = arith.addi %{{.*}}, %c32
// CHECK: %[[END:.*]] = arith.minsi %[[BEHIND]], %c9
// CHECK: scf.for %{{.*}} = %c0 to %[[END]] step %c16
// CHECK-LABEL: gpu.func @attention_grad_kv_2
// A block has 16 keys; the queries of the two heads that read them go by.
// CHECK: scf.for %{{.*}} = %c0 to %c2 step %c1
// CHECK-LABEL: func.func @g
// CHECK-DAG: memref.alloc() : memref<2x1x4x24xf32>
// CHECK-DAG: memref.alloc() : memref<1x4x24xf32>
// CHECK-DAG: memref.alloc() : memref<1x4x24x16xbf16>
// CHECK: kern.device_attention library [@cuda::@attention_statistics_0, @cuda::@attention_grad_q_1, @cuda::@attention_grad_kv_2] on [4, 4, 2]
func.func @g(%q: memref<1x4x24x16xbf16>, %k: memref<1x2x9x16xbf16>) attributes {nn.layer} {
  %dq = memref.alloc() : memref<1x4x24x16xbf16>
  %dk = memref.alloc() : memref<1x2x9x16xbf16>
  %dv = memref.alloc() : memref<1x2x9x16xbf16>
  kern.attention_grad ins(%q, %k, %k, %q, %q : memref<1x4x24x16xbf16>, memref<1x2x9x16xbf16>, memref<1x2x9x16xbf16>, memref<1x4x24x16xbf16>, memref<1x4x24x16xbf16>) outs(%dq, %dk, %dv : memref<1x4x24x16xbf16>, memref<1x2x9x16xbf16>, memref<1x2x9x16xbf16>) {causal, scale = 0.25 : f64}
  return
}

// -----

// A cap is nothing that a library has; a view is passed at its first element.
// CHECK-LABEL: gpu.func @attention_0
// CHECK-SAME: memref<1x1x4x8xf16, strided<[64, 64, 16, 1]>> {llvm.align = 2 : i64}
// CHECK: math.tanh
// CHECK-LABEL: func.func @h
// CHECK: kern.device_attention [@cuda::@attention_0] on [1]
func.func @h(%x: memref<1x1x4x16xf16>, %y: memref<1x1x4x8xf16>) attributes {nn.layer} {
  %v = memref.subview %x[0, 0, 0, 1] [1, 1, 4, 8] [1, 1, 1, 1] : memref<1x1x4x16xf16> to memref<1x1x4x8xf16, strided<[64, 64, 16, 1], offset: 1>>
  kern.attention ins(%v, %v, %v : memref<1x1x4x8xf16, strided<[64, 64, 16, 1], offset: 1>>, memref<1x1x4x8xf16, strided<[64, 64, 16, 1], offset: 1>>, memref<1x1x4x8xf16, strided<[64, 64, 16, 1], offset: 1>>) outs(%y : memref<1x1x4x8xf16>) {scale = 1.0 : f64, softcap = 5.0 : f64}
  return
}

// -----

func.func @i(%x: memref<1x1x4x8xf32>, %y: memref<1x1x4x8xf32, strided<[?, 32, 8, 1]>>) attributes {nn.layer} {
  // expected-error @below {{has an operand of type 'memref<1x1x4x8xf32, strided<[?, 32, 8, 1]>>', expected a static layout}}
  kern.attention ins(%x, %x, %x : memref<1x1x4x8xf32>, memref<1x1x4x8xf32>, memref<1x1x4x8xf32>) outs(%y : memref<1x1x4x8xf32, strided<[?, 32, 8, 1]>>) {scale = 1.0 : f64}
  return
}
