// RUN: mgq-opt %s --split-input-file --verify-diagnostics

// matmul_c1: c has rank 3 if an operand has.
func.func @rank(%a: memref<2x4x8xf32>, %b: memref<8x6xf32>, %c: memref<4x6xf32>) {
  // expected-error @below {{'kern.matmul' op operands have ranks 3, 2 and 2, expected 2 or 3 and the larger of both}}
  kern.matmul ins(%a, %b : memref<2x4x8xf32>, memref<8x6xf32>) outs(%c : memref<4x6xf32>)
  return
}

// -----

// The inner sizes agree.
func.func @depth(%a: memref<4x8xf32>, %b: memref<7x6xf32>, %c: memref<4x6xf32>) {
  // expected-error @below {{'kern.matmul' op shapes 'memref<4x8xf32>', 'memref<7x6xf32>' and 'memref<4x6xf32>' do not fit}}
  kern.matmul ins(%a, %b : memref<4x8xf32>, memref<7x6xf32>) outs(%c : memref<4x6xf32>)
  return
}

// -----

func.func @missing(%a: memref<4xf32>) {
  // expected-error @below {{'kern.launch' op calls nest, which is no function}}
  kern.launch @nest(%a : memref<4xf32>) size 4 chunk 4
  return
}

// -----

func.func private @nest(memref<4xf32>)
func.func @range(%a: memref<4xf32>) {
  // expected-error @below {{'kern.launch' op passes 1 operands to a function of 1 arguments, expected two less}}
  kern.launch @nest(%a : memref<4xf32>) size 4 chunk 4
  return
}

// -----

// matmul_c2: what is added fits the result.
func.func @addend(%a: memref<4x8xf32>, %b: memref<8x6xf32>, %c: memref<4x6xf32>, %r: memref<4x6xbf16>) {
  // expected-error @below {{'kern.matmul' op adds 'memref<4x6xbf16>', expected the shape and element type of 'memref<4x6xf32>'}}
  kern.matmul ins(%a, %b : memref<4x8xf32>, memref<8x6xf32>) add(%r : memref<4x6xbf16>) outs(%c : memref<4x6xf32>)
  return
}

// -----

func.func @bias(%a: memref<4x8xf32>, %b: memref<8x6xf32>, %c: memref<4x6xf32>, %v: memref<4xf32>) {
  // expected-error @below {{'kern.matmul' op has a bias of type 'memref<4xf32>', expected 6 elements of type 'f32'}}
  kern.matmul ins(%a, %b : memref<4x8xf32>, memref<8x6xf32>) bias(%v : memref<4xf32>) outs(%c : memref<4x6xf32>)
  return
}

// -----

func.func @integers(%a: memref<4x8xi32>, %b: memref<8x6xi32>, %c: memref<4x6xi32>) {
  // expected-error @below {{'kern.matmul' op of elements of type 'i32' has an epilogue, which floats have only}}
  kern.matmul ins(%a, %b : memref<4x8xi32>, memref<8x6xi32>) outs(%c : memref<4x6xi32>) {alpha = 2.0 : f64}
  return
}
