// A warp has a block: eight of them in each block of threads. A lane with all of its
// values, aligned, goes over words of 16 bytes, the others over bytes.
// RUN: mgq-opt %s --cuda-add-compression=format=bf16 | FileCheck %s --check-prefixes=CHECK,BF16
// RUN: mgq-opt %s --cuda-add-compression=format=sparse24 | FileCheck %s --check-prefixes=CHECK,SPARSE
// RUN: mgq-opt %s --cuda-add-compression=format=sparse24-int8 | FileCheck %s --check-prefixes=CHECK,INT8

// Adding again changes nothing.
// RUN: mgq-opt %s --cuda-add-compression=format=bf16 --cuda-add-compression=format=bf16 | FileCheck %s --check-prefix=ONCE
// ONCE: gpu.func @mgq_encode(
// ONCE-NOT: gpu.func @mgq_encode(

// RUN: not mgq-opt %s --cuda-add-compression=format=topk 2>&1 | FileCheck %s --check-prefix=FORMAT
// FORMAT: error: cuda-add-compression: format is 'topk', expected bf16, sparse24 or sparse24-int8

// Nothing may be fused: x = values * factor + residual is rounded twice, as on the host.
// CHECK-LABEL: gpu.func @mgq_encode(
// CHECK-SAME: known_block_size = array<i32: 256, 1, 1>
// CHECK: llvm.load {{.*}} {alignment = 16 : i64} : !llvm.ptr -> vector<4xf32>
// CHECK: arith.mulf %{{.*}}, %arg4 : f32
// CHECK: arith.addf %{{.*}} : f32
// Only a scale needs other lanes.
// BF16-NOT: nvvm.shfl
// BF16: llvm.store {{.*}} {alignment = 16 : i64} : vector<4xi32>
// SPARSE-NOT: nvvm.shfl
// SPARSE: llvm.store {{.*}} {alignment = 8 : i64} : vector<2xi32>
// INT8-COUNT-5: nvvm.shfl.sync bfly
// INT8: arith.divf
// INT8: arith.fptosi
// CHECK: llvm.store {{.*}} {alignment = 1 : i64} : i8
// CHECK: arith.subf %{{.*}} : f32
// CHECK-LABEL: gpu.func @mgq_combine(
// CHECK: scf.for
// CHECK-LABEL: gpu.func @mgq_decode(
// CHECK-LABEL: llvm.func @mgq_cuda_encode(
// CHECK: arith.addi %{{.*}}, %{{.*}} : i64
// CHECK: gpu.launch_func @cuda::@mgq_encode
// CHECK-LABEL: llvm.func @mgq_cuda_combine(
// CHECK: gpu.launch_func @cuda::@mgq_combine
// CHECK-LABEL: llvm.func @mgq_cuda_decode(
// CHECK: gpu.launch_func @cuda::@mgq_decode
module {
}
