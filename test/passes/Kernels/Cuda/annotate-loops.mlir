// RUN: mgq-opt %s --pass-pipeline='builtin.module(gpu.module(convert-scf-to-cf,convert-gpu-to-nvvm,cuda-annotate-loops))' | FileCheck %s

// What a loop says of its unrolling reaches the branch back to its start, where
// translation to LLVM IR reads it; a loop that says nothing has no annotation.
// CHECK-DAG: #[[OFF:.*]] = #llvm.loop_unroll<disable = true>
// CHECK-DAG: #[[FOUR:.*]] = #llvm.loop_unroll<count = 4 : i32>
// CHECK-DAG: #[[INNER:.*]] = #llvm.loop_annotation<unroll = #[[FOUR]]>
// CHECK-DAG: #[[OUTER:.*]] = #llvm.loop_annotation<unroll = #[[OFF]]>
// CHECK-LABEL: llvm.func @f
// CHECK: llvm.br ^[[FIRST:bb[0-9]+]]({{[^{]*$}}
// CHECK: llvm.br ^[[SECOND:bb[0-9]+]]({{[^{]*$}}
// CHECK: llvm.br ^[[SECOND]]({{.*}}) {loop_annotation = #[[INNER]]}
// CHECK: llvm.br ^[[FIRST]]({{.*}}) {loop_annotation = #[[OUTER]]}
// CHECK: llvm.br ^[[THIRD:bb[0-9]+]]({{[^{]*$}}
// CHECK: llvm.br ^[[THIRD]]({{[^{]*$}}
#off = #llvm.loop_unroll<disable = true>
#four = #llvm.loop_unroll<count = 4 : i32>
#outer = #llvm.loop_annotation<unroll = #off>
#inner = #llvm.loop_annotation<unroll = #four>
gpu.module @cuda {
  gpu.func @f(%x: f32, %out: memref<1xf32>) kernel {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %0 = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %x) -> f32 {
      %1 = scf.for %j = %c0 to %c8 step %c1 iter_args(%t = %s) -> f32 {
        %2 = arith.addf %t, %x : f32
        scf.yield %2 : f32
      } {llvm.loop_annotation = #inner}
      scf.yield %1 : f32
    } {llvm.loop_annotation = #outer}
    %3 = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %0) -> f32 {
      %4 = arith.mulf %s, %x : f32
      scf.yield %4 : f32
    }
    memref.store %3, %out[%c0] : memref<1xf32>
    gpu.return
  }
}
