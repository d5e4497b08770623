// RUN: mgq-opt %s --kern-isolate-kernels | FileCheck %s

// A called layer leaves a declaration with its work (2 x 4 x 8 x 16 FLOP) and
// moves into @kernels, where it is public; a layer that nothing calls goes.
// CHECK: func.func private @linear(tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32> attributes {nn.flops = 1024 : i64, nn.layer}
// CHECK-NOT: @unused
// CHECK: func.func @model
// CHECK: call @linear
// CHECK: module @kernels
// CHECK: func.func @linear
// CHECK: nn.matmul
// CHECK-NOT: @unused
func.func private @linear(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>) -> tensor<4x16xf32> attributes {nn.layer} {
  %0 = nn.matmul %x, %w transpose_b : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}
func.func private @unused(%x: tensor<4xf32>) -> tensor<4xf32> attributes {nn.layer} {
  return %x : tensor<4xf32>
}
func.func @model(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>) -> tensor<4x16xf32> {
  %0 = call @linear(%x, %w) : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}
