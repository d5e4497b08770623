// RUN: mgq-opt %s --split-input-file --cuda-outline --canonicalize | FileCheck %s

// A row of up to 1024 elements is a warp's: each lane sums its part, vectors of
// 16 bytes, and the lanes exchange their sums. Lane 0 stores what all have.
// CHECK-LABEL: gpu.func @sum_0
// CHECK-SAME: %arg0: memref<64x100xf32> {llvm.align = 16 : i64, llvm.noalias}
// CHECK-SAME: kernel attributes {cuda.threads = 128 : i32
// CHECK: %[[THREAD:.*]] = gpu.thread_id x
// CHECK: %[[OWN:.*]] = arith.divui %[[THREAD]], %c32
// CHECK: %[[ROW:.*]] = arith.addi {{.*}}, %[[OWN]]
// CHECK: %[[LANE:.*]] = arith.remui %[[THREAD]], %c32
// CHECK: %[[BEGIN:.*]] = arith.muli %[[LANE]], %c4
// CHECK: %[[PART:.*]] = scf.for %[[J:.*]] = %[[BEGIN]] to %c100 step %c128
// CHECK: scf.for %[[K:.*]] = %c0 to %c4 step %c1
// CHECK: arith.addi %[[J]], %[[K]]
// CHECK: nvvm.shfl.sync bfly %c-1_i32, %[[PART]], %c16_i32, %c31_i32
// CHECK: nvvm.shfl.sync bfly %c-1_i32, %{{.*}}, %c1_i32, %c31_i32
// CHECK-NOT: gpu.barrier
// CHECK: %[[FIRST:.*]] = arith.cmpi eq, %[[LANE]], %c0
// CHECK: scf.if %[[FIRST]]
// CHECK-NEXT: memref.store %{{.*}}, %arg1[%[[ROW]]]
// CHECK-LABEL: func.func @sum
// CHECK-NOT: scf
// CHECK: gpu.launch_func @cuda::@sum_0 blocks in (%c16, %c1, %c1) threads in (%c128, %c1, %c1) args(%arg0 : memref<64x100xf32>, %arg1 : memref<64xf32>)
func.func @sum(%x: memref<64x100xf32>, %out: memref<64xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %c100 = arith.constant 100 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%c64) step (%c1) {
    %sum = scf.for %j = %c0 to %c100 step %c1 iter_args(%s = %zero) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<64x100xf32>
      %n = arith.addf %s, %v fastmath<reassoc> : f32
      scf.yield %n : f32
    }
    memref.store %sum, %out[%i] : memref<64xf32>
    scf.reduce
  }
  return
}

// -----

// A sum whose order is given stays with one thread.
// CHECK-LABEL: gpu.func @ordered_0
// CHECK-NOT: shfl
// CHECK: scf.for %{{.*}} = %c0 to %c100 step %c1
// CHECK-LABEL: func.func @ordered
func.func @ordered(%x: memref<64x100xf32>, %out: memref<64xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %c100 = arith.constant 100 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%c64) step (%c1) {
    %sum = scf.for %j = %c0 to %c100 step %c1 iter_args(%s = %zero) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<64x100xf32>
      %n = arith.addf %s, %v : f32
      scf.yield %n : f32
    }
    memref.store %sum, %out[%i] : memref<64xf32>
    scf.reduce
  }
  return
}

// -----

// A long row is a block's: warps meet in shared memory, after one barrier. The
// loop that reads what the same lane wrote needs none.
// CHECK-LABEL: gpu.func @long_0
// CHECK-SAME: workgroup(%[[SHARED:.*]] : memref<8xf32, #gpu.address_space<workgroup>> {llvm.align = 16 : i64})
// CHECK-SAME: cuda.threads = 256 : i32
// CHECK: scf.for %{{.*}} = %[[FIRST:.*]] to %c2000 step %c1024
// CHECK: memref.store %{{.*}}, %arg0
// CHECK: memref.store %{{.*}}, %[[SHARED]]
// CHECK: gpu.barrier
// CHECK: memref.load %[[SHARED]][%c0]
// CHECK: memref.load %[[SHARED]][%c7]
// CHECK-NOT: gpu.barrier
// CHECK: scf.for %{{.*}} to %c2000 step %c1024
// CHECK: gpu.launch_func @cuda::@long_0 blocks in (%c3,
func.func @long(%x: memref<3x2000xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c2000 = arith.constant 2000 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%c3) step (%c1) {
    %sum = scf.for %j = %c0 to %c2000 step %c1 iter_args(%s = %zero) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<3x2000xf32>
      %e = math.exp %v : f32
      memref.store %e, %x[%i, %j] : memref<3x2000xf32>
      %n = arith.addf %s, %e fastmath<reassoc> : f32
      scf.yield %n : f32
    }
    scf.for %j = %c0 to %c2000 step %c1 {
      %v = memref.load %x[%i, %j] : memref<3x2000xf32>
      %y = arith.divf %v, %sum : f32
      memref.store %y, %x[%i, %j] : memref<3x2000xf32>
    }
    scf.reduce
  }
  return
}

// -----

// One element of a row that lanes wrote is written again: they wait first.
// CHECK-LABEL: gpu.func @again_0
// CHECK: scf.for
// CHECK: nvvm.bar.warp.sync %c-1_i32
// CHECK: scf.if
// CHECK: memref.store %{{.*}}, %arg0[%{{.*}}, %c5]
// CHECK-LABEL: func.func @again
func.func @again(%x: memref<64x100xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c5 = arith.constant 5 : index
  %c64 = arith.constant 64 : index
  %c100 = arith.constant 100 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  scf.parallel (%i) = (%c0) to (%c64) step (%c1) {
    scf.for %j = %c0 to %c100 step %c1 {
      memref.store %zero, %x[%i, %j] : memref<64x100xf32>
    }
    memref.store %one, %x[%i, %c5] : memref<64x100xf32>
    scf.reduce
  }
  return
}

// -----

// Iterations that may meet are not cut; those of halves, as of rotary embedding,
// do not meet.
// CHECK-LABEL: gpu.func @meet_0
// CHECK: scf.for %{{.*}} = %c0 to %c64 step %c1
// CHECK-LABEL: gpu.func @meet_1
// CHECK: scf.for %{{.*}} = %{{.*}} to %c64 step %c64
// CHECK-LABEL: func.func @meet
func.func @meet(%x: memref<8x128xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  scf.parallel (%i) = (%c0) to (%c8) step (%c1) {
    scf.for %j = %c0 to %c64 step %c1 {
      %k = arith.addi %j, %c32 : index
      %v = memref.load %x[%i, %j] : memref<8x128xf32>
      memref.store %v, %x[%i, %k] : memref<8x128xf32>
    }
    scf.reduce
  }
  scf.parallel (%i) = (%c0) to (%c8) step (%c1) {
    scf.for %j = %c0 to %c64 step %c1 {
      %k = arith.addi %j, %c64 : index
      %v = memref.load %x[%i, %j] : memref<8x128xf32>
      %w = memref.load %x[%i, %k] : memref<8x128xf32>
      memref.store %w, %x[%i, %j] : memref<8x128xf32>
      memref.store %v, %x[%i, %k] : memref<8x128xf32>
    }
    scf.reduce
  }
  return
}

// -----

// Equal nests share a kernel. Rows of one element are taken four by four; the
// last block has threads without a row.
// CHECK-LABEL: gpu.func @copies_0
// CHECK: %[[IS:.*]] = arith.cmpi ult, %[[ROW:.*]], %c250
// CHECK: scf.if %[[IS]]
// CHECK: %[[FIRST:.*]] = arith.muli %[[ROW]], %c4
// CHECK: scf.for %[[K:.*]] = %c0 to %c4 step %c1
// CHECK: %[[AT:.*]] = arith.addi %[[FIRST]], %[[K]]
// CHECK: memref.load %arg0[%[[AT]]]
// CHECK-NOT: gpu.func
// CHECK-LABEL: func.func @copies
// CHECK: gpu.launch_func @cuda::@copies_0 blocks in (%c2, {{.*}} args(%arg0 : memref<1000xf32>, %arg1 : memref<1000xf32>)
// CHECK: gpu.launch_func @cuda::@copies_0 blocks in (%c2, {{.*}} args(%arg1 : memref<1000xf32>, %arg0 : memref<1000xf32>)
func.func @copies(%x: memref<1000xf32>, %y: memref<1000xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c1000 = arith.constant 1000 : index
  scf.parallel (%i) = (%c0) to (%c1000) step (%c1) {
    %v = memref.load %x[%i] : memref<1000xf32>
    memref.store %v, %y[%i] : memref<1000xf32>
    scf.reduce
  }
  scf.parallel (%i) = (%c0) to (%c1000) step (%c1) {
    %v = memref.load %y[%i] : memref<1000xf32>
    memref.store %v, %x[%i] : memref<1000xf32>
    scf.reduce
  }
  return
}

// -----

// A failed check leaves the first index and what it is of; code outside loops is
// one row. Functions that are no layers stay.
// CHECK: gpu.module @cuda attributes {cuda.checks = ["node_a"]}
// CHECK-LABEL: gpu.func @check_0
// CHECK-SAME: %[[RECORD:[a-z0-9]+]]: !llvm.ptr) kernel
// CHECK-SAME: cuda.reports
// CHECK: llvm.cmpxchg %[[RECORD]]
// CHECK: llvm.store %{{.*}}, %{{.*}} : i64, !llvm.ptr
// CHECK: llvm.store %{{.*}}, %{{.*}} : i64, !llvm.ptr
// CHECK-NOT: node_name
// CHECK-LABEL: func.func @check
// CHECK: %[[NONE:.*]] = llvm.mlir.zero : !llvm.ptr
// CHECK: gpu.launch_func {{.*}} args(%arg0 : memref<4xf32>, %[[NONE]] : !llvm.ptr)
// CHECK-LABEL: func.func @other
// CHECK: memref.store
llvm.mlir.global private constant @node_name.0("node_a\00") : !llvm.array<7 x i8>
func.func private @mgq_index_error(!llvm.ptr, i64, i64)
func.func @check(%x: memref<4xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %bad = arith.constant 7 : i64
  %size = arith.constant 4 : i64
  %v = memref.load %x[%c0] : memref<4xf32>
  %zero = arith.constant 0.0 : f32
  %is = arith.cmpf olt, %v, %zero : f32
  scf.if %is {
    %name = llvm.mlir.addressof @node_name.0 : !llvm.ptr
    func.call @mgq_index_error(%name, %bad, %size) : (!llvm.ptr, i64, i64) -> ()
  }
  return
}
func.func @other(%x: memref<4xf32>, %v: f32) {
  %c0 = arith.constant 0 : index
  memref.store %v, %x[%c0] : memref<4xf32>
  return
}
