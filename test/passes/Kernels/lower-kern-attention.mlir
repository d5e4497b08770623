// RUN: mgq-opt %s --kern-lower-matmul="cpu=x86-64-v3" --split-input-file | FileCheck %s

// Strides, sizes and the kind of mask are in the constant and the kernel's name.
// CHECK-LABEL: func.func @forward
// CHECK: call @kern_attention(%arg0, %arg1, %arg2, %arg3, %arg4)
// CHECK: @kern_attention_shape(dense<[2, 4, 2, 10, 12, 16, 8, 2, {{.*}}, 640, 160, 16, 384, 192, 16, 192, 96, 8, 320, 80, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0]>
// CHECK: llvm.call @mgq_attention_csb(
func.func @forward(%q: memref<2x4x10x16xf32>, %k: memref<2x2x12x16xf32>, %v: memref<2x2x12x8xf32>,
                   %mask: memref<2x1x1x12xi1>, %o: memref<2x4x10x8xf32>) {
  kern.attention ins(%q, %k, %v mask %mask : memref<2x4x10x16xf32>, memref<2x2x12x16xf32>, memref<2x2x12x8xf32> mask memref<2x1x1x12xi1>)
    outs(%o : memref<2x4x10x8xf32>) {scale = 0.25, causal, causal_from_end, softcap = 3.0}
  return
}

// -----

// Without a mask a null pointer stands in its place.
// CHECK-LABEL: func.func @backward
// CHECK: call @kern_attention_grad(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7)
// CHECK: %[[NULL:.*]] = llvm.mlir.zero
// CHECK: llvm.call @mgq_attention_n_grad({{[^,]*, [^,]*, [^,]*, [^,]*, [^,]*}}, %[[NULL]],
func.func @backward(%q: memref<1x1x4x8xf32>, %k: memref<1x1x5x8xf32>, %v: memref<1x1x5x8xf32>,
                    %o: memref<1x1x4x8xf32>, %g: memref<1x1x4x8xf32>,
                    %dq: memref<1x1x4x8xf32>, %dk: memref<1x1x5x8xf32>, %dv: memref<1x1x5x8xf32>) {
  kern.attention_grad ins(%q, %k, %v, %o, %g : memref<1x1x4x8xf32>, memref<1x1x5x8xf32>, memref<1x1x5x8xf32>, memref<1x1x4x8xf32>, memref<1x1x4x8xf32>)
    outs(%dq, %dk, %dv : memref<1x1x4x8xf32>, memref<1x1x5x8xf32>, memref<1x1x5x8xf32>) {scale = 0.25}
  return
}
