// RUN: mgq-opt %s --pass-pipeline='builtin.module(gpu.module(cuda-expand-math))' | FileCheck %s

// Square roots are rounded correctly; other functions are libdevice's.
// CHECK-LABEL: gpu.func @f
// CHECK: llvm.call_intrinsic "llvm.sqrt.f32"(%arg0)
// CHECK: llvm.call_intrinsic "llvm.sqrt.f64"(%arg1)
// CHECK: math.exp
gpu.module @cuda {
  gpu.func @f(%x: f32, %y: f64, %out: memref<1xf32>) kernel {
    %c0 = arith.constant 0 : index
    %a = math.sqrt %x : f32
    %b = math.sqrt %y : f64
    %c = arith.truncf %b : f64 to f32
    %d = arith.addf %a, %c : f32
    %e = math.exp %d : f32
    memref.store %e, %out[%c0] : memref<1xf32>
    gpu.return
  }
}
