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
