// RUN: mgq-opt %s --convert-kern-to-llvm=cpu=x86-64-v3 --split-input-file | FileCheck %s
// RUN: not mgq-opt %s --convert-kern-to-llvm=cpu=z80 2>&1 | FileCheck %s --check-prefix=CPU

// CPU: unknown CPU 'z80'; supported: native, x86-64-v3, x86-64-v4, x86-64-v4-bf16

// The kernel ABI: an array of pointers and scratch; nests take bare pointers.
// Several chunks go to the threads, one is a call.
// CHECK: llvm.func internal @f.0(%{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: i64, %{{.*}}: i64)
// CHECK-SAME: target_cpu = "x86-64-v3"
// CHECK-LABEL: llvm.func @f(%{{.*}}: !llvm.ptr, %{{.*}}: !llvm.ptr)
// CHECK-SAME: nn.args = [memref<64xf32>]
// CHECK: llvm.call @mgq_parallel_for
// CHECK: llvm.call @f.0(
// CHECK: llvm.func internal @f.0.chunk(%{{.*}}: !llvm.ptr, %{{.*}}: i64)
// CHECK: llvm.call @f.0(
func.func private @f.0(%x: memref<64xf32> {llvm.noalias}, %begin: index, %end: index) {
  return
}
func.func @f(%x: memref<64xf32>, %scratch: memref<0xi8>) attributes {nn.layer, nn.scratch_bytes = 0 : i64} {
  kern.launch @f.0(%x : memref<64xf32>) size 64 chunk 16
  kern.launch @f.0(%x : memref<64xf32>) size 64 chunk 64
  return
}
