// RUN: mgq-opt %s --nn-bound-inputs | FileCheck %s

// Token ids index a table of 100 rows, seen through a reshape and beside a
// comparison; labels lie below the number of classes or are ignored; an input
// that is only compared has no limit.
// CHECK-LABEL: func.func @model
// CHECK-SAME: %{{.*}}: tensor<2x4xi64> {nn.input = "ids", nn.limit = 100 : i64}
// CHECK-SAME: %{{.*}}: tensor<2x4xi64> {nn.ignore = -100 : i64, nn.input = "labels", nn.limit = 7 : i64}
// CHECK-SAME: %{{.*}}: tensor<2x4xi64> {nn.input = "mask"}
func.func @model(%ids: tensor<2x4xi64> {nn.input = "ids"}, %labels: tensor<2x4xi64> {nn.input = "labels"}, %mask: tensor<2x4xi64> {nn.input = "mask"}, %table: tensor<100x7xf32>) -> (tensor<8xf32>, tensor<2x4xi1>, tensor<2x4xi1>) {
  %0 = nn.reshape %ids : (tensor<2x4xi64>) -> tensor<8xi64>
  %1 = nn.gather %table, %0 axis 0 : (tensor<100x7xf32>, tensor<8xi64>) -> tensor<8x7xf32>
  %2 = nn.compare eq %ids, %mask : (tensor<2x4xi64>, tensor<2x4xi64>) -> tensor<2x4xi1>
  %3 = nn.compare eq %mask, %mask : (tensor<2x4xi64>, tensor<2x4xi64>) -> tensor<2x4xi1>
  %4 = nn.reshape %labels : (tensor<2x4xi64>) -> tensor<8xi64>
  %5 = nn.cross_entropy %1, %4 {ignore_index = -100 : i64} : (tensor<8x7xf32>, tensor<8xi64>) -> tensor<8xf32>
  return %5, %2, %3 : tensor<8xf32>, tensor<2x4xi1>, tensor<2x4xi1>
}
