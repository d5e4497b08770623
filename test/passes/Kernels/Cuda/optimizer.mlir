// RUN: mgq-opt %s --cuda-add-optimizer | FileCheck %s

// Host functions launch a thread for each element, or a block of threads for
// each block of the norm; adding again changes nothing.
// RUN: mgq-opt %s --cuda-add-optimizer --cuda-add-optimizer | FileCheck %s --check-prefix=ONCE
// ONCE: gpu.func @mgq_adamw(
// ONCE-NOT: gpu.func @mgq_adamw(

// CHECK-LABEL: gpu.func @mgq_adamw(
// CHECK: arith.cmpi slt
// CHECK: math.sqrt
// CHECK-LABEL: gpu.func @mgq_accumulate(
// CHECK-LABEL: gpu.func @mgq_sq_norm_blocks(
// CHECK-SAME: memref<8xf64, #gpu.address_space<workgroup>>
// CHECK: step %c256
// CHECK: gpu.barrier
// CHECK-LABEL: gpu.func @mgq_sq_norm_sum(
// CHECK-LABEL: gpu.func @mgq_scale(
// CHECK: arith.extf
// CHECK: arith.mulf %{{.*}} : f64
// CHECK: arith.truncf
// CHECK-LABEL: llvm.func @mgq_adamw(
// CHECK-COUNT-9: llvm.load
// CHECK: gpu.launch_func @cuda::@mgq_adamw
// CHECK-LABEL: llvm.func @mgq_accumulate(
// CHECK: gpu.launch_func @cuda::@mgq_accumulate
// CHECK-LABEL: llvm.func @mgq_cuda_sq_norm(
// CHECK: gpu.launch_func @cuda::@mgq_sq_norm_blocks
// CHECK: gpu.launch_func @cuda::@mgq_sq_norm_sum blocks in (%c1
// CHECK-LABEL: llvm.func @mgq_cuda_scale(
// CHECK: gpu.launch_func @cuda::@mgq_scale
module {
}
