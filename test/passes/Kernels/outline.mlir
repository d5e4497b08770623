// RUN: mgq-opt %s --kern-outline | FileCheck %s

// A nest becomes a function of its roots; views are made inside; two
// dimensions become one range, cut into chunks by the work inside.
// CHECK: func.func private @f.loop.0(%[[X:.*]]: memref<4096xf32> {llvm.noalias}, %[[Y:.*]]: memref<64x64xf32> {llvm.noalias}, %[[BEGIN:.*]]: index, %[[END:.*]]: index)
// CHECK: memref.expand_shape %[[X]]
// CHECK: scf.for %[[I:.*]] = %[[BEGIN]] to %[[END]]
// CHECK: arith.remui %[[I]]
// CHECK: arith.divui %[[I]]
// CHECK: func.func @f
// CHECK: kern.launch @f.loop.0(%{{.*}}, %{{.*}} : memref<4096xf32>, memref<64x64xf32>) size 4096 chunk 1366
func.func @f(%x: memref<4096xf32>, %y: memref<64x64xf32>) attributes {nn.layer} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %v = memref.expand_shape %x [[0, 1]] output_shape [64, 64] : memref<4096xf32> into memref<64x64xf32>
  scf.parallel (%i, %j) = (%c0, %c0) to (%c64, %c64) step (%c1, %c1) {
    %a = memref.load %v[%i, %j] : memref<64x64xf32>
    %b = math.exp %a : f32
    %c = math.exp %b : f32
    %d = math.exp %c : f32
    memref.store %d, %y[%i, %j] : memref<64x64xf32>
    scf.reduce
  }
  return
}
