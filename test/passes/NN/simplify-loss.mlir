// RUN: mgq-opt %s --nn-simplify --split-input-file | FileCheck %s

// torch's decomposition of cross_entropy: labels made safe, masked, summed,
// divided by the number of labels that count.
// CHECK-LABEL: @decomposed
// CHECK-SAME: (%[[X:.*]]: tensor<3x7xf32>, %[[LABELS:.*]]: tensor<3xi64>)
// CHECK-NEXT: %[[L:.*]] = nn.cross_entropy %[[X]], %[[LABELS]] {ignore_index = -100 : i64}
// CHECK-NEXT: %[[W:.*]] = nn.label_weights %[[LABELS]] {ignore_index = -100 : i64}
// CHECK-NEXT: %[[S:.*]] = nn.reduce sum %[[L]]
// CHECK-NEXT: %[[N:.*]] = nn.reduce sum %[[W]]
// CHECK-NEXT: %[[M:.*]] = nn.binary div %[[S]], %[[N]]
// CHECK-NEXT: return %[[M]]
func.func @decomposed(%x: tensor<3x7xf32>, %labels: tensor<3xi64>) -> tensor<f32> {
  %ignored = nn.constant dense<-100> : tensor<i64>
  %zero = nn.constant dense<0> : tensor<i64>
  %none = nn.constant dense<0.0> : tensor<f32>
  %p = nn.log_softmax %x axis 1 : (tensor<3x7xf32>) -> tensor<3x7xf32>
  %m = nn.compare ne %labels, %ignored : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
  %safe = nn.select %m, %labels, %zero : (tensor<3xi1>, tensor<3xi64>, tensor<i64>) -> tensor<3xi64>
  %i = nn.reshape %safe : (tensor<3xi64>) -> tensor<3x1xi64>
  %g = nn.gather_elements %p, %i axis 1 : (tensor<3x7xf32>, tensor<3x1xi64>) -> tensor<3x1xf32>
  %r = nn.reshape %g : (tensor<3x1xf32>) -> tensor<3xf32>
  %neg = nn.unary neg %r : (tensor<3xf32>) -> tensor<3xf32>
  %l = nn.select %m, %neg, %none : (tensor<3xi1>, tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
  %s = nn.reduce sum %l axes [0] : (tensor<3xf32>) -> tensor<f32>
  %mi = nn.cast %m : (tensor<3xi1>) -> tensor<3xi64>
  %n = nn.reduce sum %mi axes [0] : (tensor<3xi64>) -> tensor<i64>
  %nf = nn.cast %n : (tensor<i64>) -> tensor<f32>
  %loss = nn.binary div %s, %nf : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// Another mask, as a product, over [batch, length]: labels that it hides are
// ignored.
// CHECK-LABEL: @masked
// CHECK: %[[L:.*]] = nn.select %arg2, %arg1, %{{.*}} : (tensor<2x3xi1>, tensor<2x3xi64>, tensor<i64>) -> tensor<2x3xi64>
// CHECK: %[[R:.*]] = nn.reshape %[[L]] : (tensor<2x3xi64>) -> tensor<6xi64>
// CHECK: nn.cross_entropy %{{.*}}, %[[R]] {ignore_index = -100 : i64} : (tensor<6x7xf32>, tensor<6xi64>) -> tensor<6xf32>
func.func @masked(%x: tensor<2x3x7xf32>, %labels: tensor<2x3xi64>, %m: tensor<2x3xi1>) -> tensor<f32> {
  %one = nn.constant dense<1.0> : tensor<f32>
  %p = nn.log_softmax %x axis 2 : (tensor<2x3x7xf32>) -> tensor<2x3x7xf32>
  %i = nn.reshape %labels : (tensor<2x3xi64>) -> tensor<2x3x1xi64>
  %g = nn.gather_elements %p, %i axis 2 : (tensor<2x3x7xf32>, tensor<2x3x1xi64>) -> tensor<2x3x1xf32>
  %r = nn.reshape %g : (tensor<2x3x1xf32>) -> tensor<2x3xf32>
  %f = nn.cast %m : (tensor<2x3xi1>) -> tensor<2x3xf32>
  %l = nn.binary mul %r, %f : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %s = nn.reduce sum %l axes [0, 1] : (tensor<2x3xf32>) -> tensor<f32>
  %neg = nn.unary neg %s : (tensor<f32>) -> tensor<f32>
  %n = nn.reduce sum %f axes [0, 1] : (tensor<2x3xf32>) -> tensor<f32>
  %clamped = nn.binary max %n, %one : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %loss = nn.binary div %neg, %clamped : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// A plain mean over all rows.
// CHECK-LABEL: @mean
// CHECK: nn.cross_entropy %arg0, %arg1 : (tensor<4x7xf32>, tensor<4xi64>) -> tensor<4xf32>
// CHECK: nn.label_weights %arg1 : (tensor<4xi64>) -> tensor<4xf32>
func.func @mean(%x: tensor<4x7xf32>, %labels: tensor<4xi64>) -> tensor<f32> {
  %n = nn.constant dense<0.25> : tensor<f32>
  %p = nn.log_softmax %x axis 1 : (tensor<4x7xf32>) -> tensor<4x7xf32>
  %i = nn.reshape %labels : (tensor<4xi64>) -> tensor<4x1xi64>
  %g = nn.gather_elements %p, %i axis 1 : (tensor<4x7xf32>, tensor<4x1xi64>) -> tensor<4x1xf32>
  %neg = nn.unary neg %g : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %s = nn.reduce sum %neg axes [0, 1] : (tensor<4x1xf32>) -> tensor<f32>
  %loss = nn.binary mul %s, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// Divided by the count of another mask it is no mean.
// CHECK-LABEL: @other_count
// CHECK-NOT: nn.cross_entropy
func.func @other_count(%x: tensor<3x7xf32>, %labels: tensor<3xi64>, %m: tensor<3xi1>, %o: tensor<3xi1>) -> tensor<f32> {
  %p = nn.log_softmax %x axis 1 : (tensor<3x7xf32>) -> tensor<3x7xf32>
  %i = nn.reshape %labels : (tensor<3xi64>) -> tensor<3x1xi64>
  %g = nn.gather_elements %p, %i axis 1 : (tensor<3x7xf32>, tensor<3x1xi64>) -> tensor<3x1xf32>
  %r = nn.reshape %g : (tensor<3x1xf32>) -> tensor<3xf32>
  %neg = nn.unary neg %r : (tensor<3xf32>) -> tensor<3xf32>
  %f = nn.cast %m : (tensor<3xi1>) -> tensor<3xf32>
  %l = nn.binary mul %neg, %f : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %s = nn.reduce sum %l axes [0] : (tensor<3xf32>) -> tensor<f32>
  %of = nn.cast %o : (tensor<3xi1>) -> tensor<3xf32>
  %n = nn.reduce sum %of axes [0] : (tensor<3xf32>) -> tensor<f32>
  %loss = nn.binary div %s, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
