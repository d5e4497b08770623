// RUN: mgq-opt %s --kern-lower-loops --canonicalize --split-input-file --verify-diagnostics | FileCheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>
#t = affine_map<(d0, d1) -> (d1, d0)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>

// Dense operands are one dimension: one parallel loop, which is vectorised.
// CHECK-LABEL: @dense
// CHECK: scf.parallel (%{{.*}}) = (%c0) to (%c2048)
// CHECK-NOT: scf.for
func.func @dense(%x: memref<32x64xf32>, %y: memref<32x64xf32>) attributes {nn.layer} {
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : memref<32x64xf32>) outs(%y : memref<32x64xf32>) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.addf %a, %a : f32
    linalg.yield %0 : f32
  }
  return
}

// A sum along rows is carried in a register.
// CHECK-LABEL: @row_sum
// CHECK: scf.parallel (%{{.*}}) = (%c0) to (%c32)
// CHECK: scf.for {{.*}} iter_args
// CHECK-NOT: memref.store
// CHECK: scf.yield
// CHECK: memref.store
func.func @row_sum(%x: memref<32x64xf32>, %y: memref<32xf32>) attributes {nn.layer} {
  linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%x : memref<32x64xf32>) outs(%y : memref<32xf32>) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.addf %b, %a fastmath<reassoc> : f32
    linalg.yield %0 : f32
  }
  return
}

// A sum along columns runs over rows outside blocks of columns.
// CHECK-LABEL: @column_sum
// CHECK: scf.parallel (%{{.*}}) = (%c0) to (%c4)
// CHECK: scf.for %{{.*}} = %c0 to %c32
// CHECK: scf.for
func.func @column_sum(%x: memref<32x1024xf32>, %y: memref<1024xf32>) attributes {nn.layer} {
  linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : memref<32x1024xf32>) outs(%y : memref<1024xf32>) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.addf %b, %a fastmath<reassoc> : f32
    linalg.yield %0 : f32
  }
  return
}

// A transposition goes in blocks.
// CHECK-LABEL: @transpose
// CHECK: scf.parallel (%{{.*}}, %{{.*}}) = (%c0, %c0) to (%c2, %c4)
// CHECK: scf.for
// CHECK: scf.for
func.func @transpose(%x: memref<128x64xf32>, %y: memref<64x128xf32>) attributes {nn.layer} {
  linalg.generic {indexing_maps = [#t, #id], iterator_types = ["parallel", "parallel"]} ins(%x : memref<128x64xf32>) outs(%y : memref<64x128xf32>) {
  ^bb0(%a: f32, %b: f32):
    linalg.yield %a : f32
  }
  return
}

// A product that no generated kernel takes: one chain of FMAs per element.
// CHECK-LABEL: @matmul
// CHECK: scf.parallel
// CHECK: math.fma
func.func @matmul(%a: memref<4x8xf64>, %b: memref<8x6xf64>, %c: memref<4x6xf64>) attributes {nn.layer} {
  kern.matmul ins(%a, %b : memref<4x8xf64>, memref<8x6xf64>) outs(%c : memref<4x6xf64>)
  return
}

// -----

func.func @dynamic(%x: memref<4xf32, strided<[?]>>, %y: memref<4xf32>) attributes {nn.layer} {
  // expected-error @below {{'memref.copy' op copies a buffer whose layout is not static}}
  memref.copy %x, %y : memref<4xf32, strided<[?]>> to memref<4xf32>
  return
}

// -----

func.func @attention(%q: memref<1x1x4x4xf64>, %o: memref<1x1x4x4xf64>) attributes {nn.layer} {
  // expected-error @below {{'kern.attention' op was left by kern-lower-matmul: no kernel for these operands}}
  kern.attention ins(%q, %q, %q : memref<1x1x4x4xf64>, memref<1x1x4x4xf64>, memref<1x1x4x4xf64>) outs(%o : memref<1x1x4x4xf64>) {scale = 1.0 : f64}
  return
}
