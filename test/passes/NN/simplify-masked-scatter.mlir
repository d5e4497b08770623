// RUN: mgq-opt %s --nn-simplify --nn-check-static --split-input-file | FileCheck %s

// torch.masked_scatter as all exporters spell it.
// CHECK-LABEL: @masked_scatter
// CHECK-SAME: (%[[TEXT:.*]]: tensor<2x6x4xf32>, %[[M:.*]]: tensor<2x6xi1>, %[[IMAGE:.*]]: tensor<2x3x4xf32>)
// CHECK-NEXT: %[[ROWS:.*]] = nn.reshape %[[IMAGE]] : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
// CHECK-NEXT: nn.masked_scatter %[[TEXT]], %[[M]], %[[ROWS]]
// CHECK-NEXT: return
func.func @masked_scatter(%text: tensor<2x6x4xf32>, %m: tensor<2x6xi1>, %image: tensor<2x3x4xf32>) -> tensor<2x6x4xf32> {
  %zero = nn.constant dense<0> : tensor<1xi64>
  %one = nn.constant dense<1> : tensor<1xi64>
  %0 = nn.reshape %m : (tensor<2x6xi1>) -> tensor<2x6x1xi1>
  %1 = nn.broadcast %0 : (tensor<2x6x1xi1>) -> tensor<2x6x4xi1>
  %2 = nn.non_zero %1 : (tensor<2x6x4xi1>) -> tensor<3x?xi64>
  %3 = nn.transpose %2 [1, 0] : (tensor<3x?xi64>) -> tensor<?x3xi64>
  %4 = nn.reshape %image : (tensor<2x3x4xf32>) -> tensor<24xf32>
  %5 = nn.shape %3 : (tensor<?x3xi64>) -> tensor<2xi64>
  %6 = nn.gather %5, %zero axis 0 : (tensor<2xi64>, tensor<1xi64>) -> tensor<1xi64>
  %7 = nn.dynamic_slice %4, %zero, %6, %zero, %one : (tensor<24xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<?xf32>
  %8 = nn.scatter_nd replace %text, %3, %7 : (tensor<2x6x4xf32>, tensor<?x3xi64>, tensor<?xf32>) -> tensor<2x6x4xf32>
  return %8 : tensor<2x6x4xf32>
}

// -----

// Assignment by a boolean index: rows.
// CHECK-LABEL: @index_put
// CHECK-NEXT: nn.masked_scatter %arg0, %arg1, %arg2
func.func @index_put(%text: tensor<2x6x4xf32>, %m: tensor<2x6xi1>, %rows: tensor<6x4xf32>) -> tensor<2x6x4xf32> {
  %2 = nn.non_zero %m : (tensor<2x6xi1>) -> tensor<2x?xi64>
  %3 = nn.transpose %2 [1, 0] : (tensor<2x?xi64>) -> tensor<?x2xi64>
  %8 = nn.scatter_nd replace %text, %3, %rows : (tensor<2x6x4xf32>, tensor<?x2xi64>, tensor<6x4xf32>) -> tensor<2x6x4xf32>
  return %8 : tensor<2x6x4xf32>
}

// -----

// A mask of single elements stays one.
// CHECK-LABEL: @elements
// CHECK: nn.masked_scatter %arg0, %arg1, %arg2 : (tensor<2x6xf32>, tensor<2x6xi1>, tensor<12xf32>) -> tensor<2x6xf32>
func.func @elements(%x: tensor<2x6xf32>, %m: tensor<2x6xi1>, %source: tensor<12xf32>) -> tensor<2x6xf32> {
  %2 = nn.non_zero %m : (tensor<2x6xi1>) -> tensor<2x?xi64>
  %3 = nn.transpose %2 [1, 0] : (tensor<2x?xi64>) -> tensor<?x2xi64>
  %8 = nn.scatter_nd replace %x, %3, %source : (tensor<2x6xf32>, tensor<?x2xi64>, tensor<12xf32>) -> tensor<2x6xf32>
  return %8 : tensor<2x6xf32>
}
