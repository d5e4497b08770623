// RUN: mgq-interpret %s --entry=f --input='dense<[1.0, -2.0]> : tensor<2xf32>' | FileCheck %s --check-prefix=CALL
// RUN: mgq-interpret %s --entry=narrow --input='dense<1.00390625> : tensor<1xf32>' | FileCheck %s --check-prefix=NARROW
// RUN: not mgq-interpret %s --entry=g 2>&1 | FileCheck %s --check-prefix=MISSING

// Functions call others of their module.
// CALL: dense<[2.000000e+00, 4.000000e+00]> : tensor<2xf32>
func.func private @double(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = nn.binary add %x, %x : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = nn.unary abs %x : (tensor<2xf32>) -> tensor<2xf32>
  %1 = call @double(%0) : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}

// Results are rounded to their type: a tie goes to the even neighbour.
// NARROW: dense<1.000000e+00> : tensor<1xbf16>
func.func @narrow(%x: tensor<1xf32>) -> tensor<1xbf16> {
  %0 = nn.cast %x : (tensor<1xf32>) -> tensor<1xbf16>
  return %0 : tensor<1xbf16>
}

// MISSING: has no function @g
