// RUN: mgq-opt %s --cuda-prepare-products --kern-lower-loops=keep-products=true | FileCheck %s

// The narrower operand is widened into a buffer.
// CHECK-LABEL: func.func @mixed
// CHECK: %[[WIDE:.*]] = memref.alloc() : memref<8x16xf32>
// CHECK: arith.extf
// CHECK: kern.matmul ins(%arg0, %[[WIDE]] : memref<4x8xf32>, memref<8x16xf32>)
func.func @mixed(%x: memref<4x8xf32>, %w: memref<8x16xbf16>, %y: memref<4x16xf32>) attributes {nn.layer} {
  kern.matmul ins(%x, %w : memref<4x8xf32>, memref<8x16xbf16>) outs(%y : memref<4x16xf32>)
  return
}

// Equal types stay as they are.
// CHECK-LABEL: func.func @narrow
// CHECK-NOT: alloc
// CHECK: kern.matmul ins(%arg0, %arg1 : memref<4x8xbf16>, memref<8x16xbf16>)
func.func @narrow(%x: memref<4x8xbf16>, %w: memref<8x16xbf16>, %y: memref<4x16xf32>) attributes {nn.layer} {
  kern.matmul ins(%x, %w : memref<4x8xbf16>, memref<8x16xbf16>) outs(%y : memref<4x16xf32>)
  return
}

// A constant is copied: it has no address on the host.
// CHECK-LABEL: func.func @constant
// CHECK: %[[COPY:.*]] = memref.alloc() : memref<2x2xf32>
// CHECK: kern.matmul ins(%arg0, %[[COPY]] : memref<2x2xf32>, memref<2x2xf32>)
memref.global "private" constant @weights : memref<2x2xf32> = dense<[[1.0, 2.0], [3.0, 4.0]]>
func.func @constant(%x: memref<2x2xf32>, %y: memref<2x2xf32>) attributes {nn.layer} {
  %w = memref.get_global @weights : memref<2x2xf32>
  kern.matmul ins(%x, %w : memref<2x2xf32>, memref<2x2xf32>) outs(%y : memref<2x2xf32>)
  return
}

// Integers and columns that are not contiguous become loops.
// CHECK-LABEL: func.func @integers
// CHECK-NOT: kern.matmul
// CHECK: scf.parallel
func.func @integers(%x: memref<4x8xi32>, %w: memref<8x16xi32>, %y: memref<4x16xi32>) attributes {nn.layer} {
  kern.matmul ins(%x, %w : memref<4x8xi32>, memref<8x16xi32>) outs(%y : memref<4x16xi32>)
  return
}
// CHECK-LABEL: func.func @strided
// CHECK-NOT: kern.matmul
// CHECK: scf.parallel
func.func @strided(%x: memref<4x8xf32, strided<[16, 2]>>, %w: memref<8x16xf32>, %y: memref<4x16xf32>) attributes {nn.layer} {
  kern.matmul ins(%x, %w : memref<4x8xf32, strided<[16, 2]>>, memref<8x16xf32>) outs(%y : memref<4x16xf32>)
  return
}

// What is added may be a constant, too.
// CHECK-LABEL: func.func @added
// CHECK: %[[SUM:.*]] = memref.alloc() : memref<2x2xf32>
// CHECK: %[[BIAS:.*]] = memref.alloc() : memref<2xf32>
// CHECK: kern.matmul ins(%arg0, %arg1 : {{.*}}) add(%[[SUM]] : memref<2x2xf32>) bias(%[[BIAS]] : memref<2xf32>)
memref.global "private" constant @shift : memref<2xf32> = dense<[1.0, 2.0]>
func.func @added(%x: memref<2x2xf32>, %w: memref<2x2xf32>, %y: memref<2x2xf32>) attributes {nn.layer} {
  %r = memref.get_global @weights : memref<2x2xf32>
  %b = memref.get_global @shift : memref<2xf32>
  kern.matmul ins(%x, %w : memref<2x2xf32>, memref<2x2xf32>) add(%r : memref<2x2xf32>) bias(%b : memref<2xf32>) outs(%y : memref<2x2xf32>)
  return
}

// A bias that is not aligned, an addend whose columns are not contiguous, and a
// narrow result of wide factors become loops.
// CHECK-LABEL: func.func @unaligned
// CHECK-NOT: kern.matmul
// CHECK: arith.mulf
// CHECK: arith.addf
func.func @unaligned(%x: memref<4x8xf32>, %w: memref<8x16xf32>, %v: memref<20xf32>, %y: memref<4x16xf32>) attributes {nn.layer} {
  %b = memref.subview %v[2] [16] [1] : memref<20xf32> to memref<16xf32, strided<[1], offset: 2>>
  kern.matmul ins(%x, %w : memref<4x8xf32>, memref<8x16xf32>) bias(%b : memref<16xf32, strided<[1], offset: 2>>) outs(%y : memref<4x16xf32>) {alpha = 2.0 : f64}
  return
}
// CHECK-LABEL: func.func @scattered
// CHECK-NOT: kern.matmul
// CHECK: math.tanh
func.func @scattered(%x: memref<4x8xf32>, %w: memref<8x16xf32>, %r: memref<4x16xf32, strided<[1, 4]>>, %y: memref<4x16xf32>) attributes {nn.layer} {
  kern.matmul gelu ins(%x, %w : memref<4x8xf32>, memref<8x16xf32>) add(%r : memref<4x16xf32, strided<[1, 4]>>) outs(%y : memref<4x16xf32>)
  return
}
// CHECK-LABEL: func.func @rounded
// CHECK-NOT: kern.matmul
// CHECK: math.fma {{.*}} : f32
// CHECK: arith.truncf
func.func @rounded(%x: memref<4x8xf32>, %w: memref<8x16xbf16>, %y: memref<4x16xbf16>) attributes {nn.layer} {
  kern.matmul ins(%x, %w : memref<4x8xf32>, memref<8x16xbf16>) outs(%y : memref<4x16xbf16>)
  return
}

// An aligned part of a vector, and a narrow result of narrow factors, stay.
// CHECK-LABEL: func.func @aligned
// CHECK: kern.matmul {{.*}} bias
func.func @aligned(%x: memref<4x8xbf16>, %w: memref<8x16xbf16>, %v: memref<24xbf16>, %y: memref<4x16xbf16>) attributes {nn.layer} {
  %b = memref.subview %v[8] [16] [1] : memref<24xbf16> to memref<16xbf16, strided<[1], offset: 8>>
  kern.matmul ins(%x, %w : memref<4x8xbf16>, memref<8x16xbf16>) bias(%b : memref<16xbf16, strided<[1], offset: 8>>) outs(%y : memref<4x16xbf16>)
  return
}
