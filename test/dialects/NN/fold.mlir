// RUN: mgq-opt %s --canonicalize --split-input-file | FileCheck %s

// Integer arithmetic on shapes folds, element type by element type.
// CHECK-LABEL: @shape_arithmetic
func.func @shape_arithmetic(%x: tensor<4x6xf32>) -> (tensor<1xi64>, tensor<i64>) {
  // CHECK-DAG: %[[ROWS:.*]] = nn.constant dense<4> : tensor<1xi64>
  // CHECK-DAG: %[[HALF:.*]] = nn.constant dense<-3> : tensor<i64>
  // CHECK: return %[[ROWS]], %[[HALF]]
  %dims = nn.shape %x : (tensor<4x6xf32>) -> tensor<2xi64>
  %rows = nn.slice %dims [0] to [1] by [1] : (tensor<2xi64>) -> tensor<1xi64>
  %one = nn.constant dense<1> : tensor<i64>
  %columns = nn.gather %dims, %one axis 0 : (tensor<2xi64>, tensor<i64>) -> tensor<i64>
  %seven = nn.constant dense<-7> : tensor<i64>
  %less = nn.binary add %columns, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %negative = nn.binary sub %seven, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %minus = nn.binary add %negative, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %two = nn.constant dense<2> : tensor<i64>
  %half = nn.binary div %minus, %two : (tensor<i64>, tensor<i64>) -> tensor<i64>
  return %rows, %half : tensor<1xi64>, tensor<i64>
}

// -----

// Division is toward zero, mod has the sign of the divisor, rem of the dividend.
// CHECK-LABEL: @signs
func.func @signs() -> (tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) {
  // CHECK-DAG: nn.constant dense<-3> : tensor<2xi32>
  // CHECK-DAG: nn.constant dense<[1, -1]> : tensor<2xi32>
  // CHECK-DAG: nn.constant dense<[-1, 1]> : tensor<2xi32>
  %x = nn.constant dense<[-7, 7]> : tensor<2xi32>
  %y = nn.constant dense<[2, -2]> : tensor<2xi32>
  %d = nn.binary div %x, %y : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  %m = nn.binary mod %x, %y : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  %r = nn.binary rem %x, %y : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  return %d, %m, %r : tensor<2xi32>, tensor<2xi32>, tensor<2xi32>
}

// -----

// Nothing is divided by zero.
// CHECK-LABEL: @by_zero
func.func @by_zero() -> tensor<i32> {
  // CHECK: nn.binary div
  %x = nn.constant dense<7> : tensor<i32>
  %y = nn.constant dense<0> : tensor<i32>
  %d = nn.binary div %x, %y : (tensor<i32>, tensor<i32>) -> tensor<i32>
  return %d : tensor<i32>
}

// -----

// A causal mask folds; one that is true everywhere becomes a splat.
// CHECK-LABEL: @masks
func.func @masks() -> (tensor<2x2xi1>, tensor<2x2xi1>) {
  // CHECK-DAG: nn.constant dense<{{\[\[}}true, false], [true, true]]> : tensor<2x2xi1>
  // CHECK-DAG: nn.constant dense<true> : tensor<2x2xi1>
  %i = nn.constant dense<[[0], [1]]> : tensor<2x1xi64>
  %j = nn.constant dense<[[0, 1]]> : tensor<1x2xi64>
  %causal = nn.compare ge %i, %j : (tensor<2x1xi64>, tensor<1x2xi64>) -> tensor<2x2xi1>
  %minus = nn.constant dense<-1> : tensor<i64>
  %all = nn.compare gt %i, %minus : (tensor<2x1xi64>, tensor<i64>) -> tensor<2x1xi1>
  %wide = nn.broadcast %all : (tensor<2x1xi1>) -> tensor<2x2xi1>
  return %causal, %wide : tensor<2x2xi1>, tensor<2x2xi1>
}

// -----

// Casts: to boolean is not zero, to integer truncates, to bf16 rounds to even.
// CHECK-LABEL: @casts
func.func @casts() -> (tensor<3xi1>, tensor<3xi8>, tensor<1xbf16>, tensor<2xf32>) {
  // CHECK-DAG: nn.constant dense<[true, false, true]> : tensor<3xi1>
  // CHECK-DAG: nn.constant dense<[2, 0, -1]> : tensor<3xi8>
  // CHECK-DAG: nn.constant dense<1.000000e+00> : tensor<1xbf16>
  // CHECK-DAG: nn.constant dense<[0.000000e+00, 1.844{{[0-9]+}}E+19]> : tensor<2xf32>
  %x = nn.constant dense<[2.5, -0.0, -1.9]> : tensor<3xf32>
  %b = nn.cast %x : (tensor<3xf32>) -> tensor<3xi1>
  %i = nn.cast %x : (tensor<3xf32>) -> tensor<3xi8>
  %tie = nn.constant dense<1.00390625> : tensor<1xf32>
  %h = nn.cast %tie : (tensor<1xf32>) -> tensor<1xbf16>
  %u = nn.constant dense<[0, 18446744073709551615]> : tensor<2xui64>
  %f = nn.cast %u : (tensor<2xui64>) -> tensor<2xf32>
  return %b, %i, %h, %f : tensor<3xi1>, tensor<3xi8>, tensor<1xbf16>, tensor<2xf32>
}

// -----

// Data moves without change: NaN keeps its bits.
// CHECK-LABEL: @movement
func.func @movement() -> (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>) {
  // CHECK-DAG: nn.constant dense<{{\[\[}}1.000000e+00, 4.000000e+00], [0x7FC00001, 5.000000e+00], [3.000000e+00, 6.000000e+00]]>
  // CHECK-DAG: nn.constant dense<[6.000000e+00, 4.000000e+00]>
  // CHECK-DAG: nn.constant dense<[5.000000e+00, 1.000000e+00]>
  %x = nn.constant dense<[[1.0, 0x7FC00001, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %t = nn.transpose %x [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %s = nn.slice %x [1, 2] to [2, -1] by [1, -2] : (tensor<2x3xf32>) -> tensor<1x2xf32>
  %r = nn.reshape %s : (tensor<1x2xf32>) -> tensor<2xf32>
  %n = nn.constant dense<[[1, -2], [0, 0]]> : tensor<2x2xi64>
  %g = nn.gather_nd %x, %n batch_dims 0 : (tensor<2x3xf32>, tensor<2x2xi64>) -> tensor<2xf32>
  return %t, %r, %g : tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>
}

// -----

// Concat of constants; an index out of range is left to the run time.
// CHECK-LABEL: @join
func.func @join() -> (tensor<2x3xi64>, tensor<i64>) {
  // CHECK-DAG: nn.constant dense<{{\[\[}}1, 2, 5], [3, 4, 6]]> : tensor<2x3xi64>
  // CHECK-DAG: nn.gather
  %a = nn.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>
  %b = nn.constant dense<[[5], [6]]> : tensor<2x1xi64>
  %c = nn.concat %a, %b axis 1 : (tensor<2x2xi64>, tensor<2x1xi64>) -> tensor<2x3xi64>
  %v = nn.constant dense<[1, 2]> : tensor<2xi64>
  %i = nn.constant dense<2> : tensor<i64>
  %g = nn.gather %v, %i axis 0 : (tensor<2xi64>, tensor<i64>) -> tensor<i64>
  return %c, %g : tensor<2x3xi64>, tensor<i64>
}

// -----

// Integer reductions and running sums.
// CHECK-LABEL: @sums
func.func @sums() -> (tensor<2xi64>, tensor<3xi64>) {
  // CHECK-DAG: nn.constant dense<[6, 15]> : tensor<2xi64>
  // CHECK-DAG: nn.constant dense<[5, 3, 0]> : tensor<3xi64>
  %x = nn.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi64>
  %p = nn.reduce sum %x axes [1] : (tensor<2x3xi64>) -> tensor<2xi64>
  %v = nn.constant dense<[1, 2, 3]> : tensor<3xi64>
  %c = nn.cumsum %v axis 0 exclusive reverse : (tensor<3xi64>) -> tensor<3xi64>
  return %p, %c : tensor<2xi64>, tensor<3xi64>
}

// -----

// A key of -1 drops nothing; any other stays for the run.
// CHECK-LABEL: @dropout(%arg0: tensor<2x3xf32>)
func.func @dropout(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  // CHECK: %[[Y:.*]] = nn.dropout
  // CHECK: return %arg0, %[[Y]]
  %off = nn.constant dense<[0, 0, 0, -1]> : tensor<4xi64>
  %on = nn.constant dense<[0, 0, 0, 1]> : tensor<4xi64>
  %0 = nn.dropout %x, %off ratio 0.5 samples 2 : (tensor<2x3xf32>, tensor<4xi64>) -> tensor<2x3xf32>
  %1 = nn.dropout %x, %on ratio 0.5 samples 2 : (tensor<2x3xf32>, tensor<4xi64>) -> tensor<2x3xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<2x3xf32>
}
