// RUN: mgq-opt %s --kern-mark-packable | FileCheck %s --check-prefix=MARK
// RUN: mgq-opt %s --kern-lower-matmul="cpu=x86-64-v3" | FileCheck %s --check-prefix=LOWER

nn.param @w frozen : tensor<128x64xf32> = "m"[0 : 32768]
nn.param @t trainable : tensor<128x64xf32> = "m"[0 : 32768]

// A frozen matrix in every call is packable; a trainable one in one call is not.
// MARK: func.func private @layer({{.*}}) -> tensor<4x128xf32> attributes {nn.layer, nn.packable = array<i64: 1>}
func.func private @layer(%x: tensor<4x64xf32>, %w: tensor<128x64xf32>, %t: tensor<128x64xf32>) -> tensor<4x128xf32> attributes {nn.layer}
func.func @model(%x: tensor<4x64xf32>) -> tensor<4x128xf32> {
  %w = nn.param_ref @w : tensor<128x64xf32>
  %t = nn.param_ref @t : tensor<128x64xf32>
  %0 = call @layer(%x, %w, %w) : (tensor<4x64xf32>, tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<4x128xf32>
  %1 = call @layer(%x, %w, %t) : (tensor<4x64xf32>, tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<4x128xf32>
  return %1 : tensor<4x128xf32>
}

// An argument that is only B of products is read packed; the function that
// packs it is named.
// LOWER: func.func @only_b({{.*}}) attributes {nn.layer, nn.packed = [unit, @pack.bt.64x128, unit]}
func.func @only_b(%x: memref<4x64xf32>, %w: memref<128x64xf32>, %y: memref<4x128xf32>) attributes {nn.layer, nn.packable = array<i64: 1>} {
  kern.matmul transpose_b ins(%x, %w : memref<4x64xf32>, memref<128x64xf32>) outs(%y : memref<4x128xf32>)
  return
}
// Used both ways round, it is read as it is.
// LOWER: func.func @both_ways({{.*}}) attributes {nn.layer} {
func.func @both_ways(%x: memref<4x64xf32>, %w: memref<128x64xf32>, %y: memref<4x128xf32>, %z: memref<4x64xf32>) attributes {nn.layer, nn.packable = array<i64: 1>} {
  kern.matmul transpose_b ins(%x, %w : memref<4x64xf32>, memref<128x64xf32>) outs(%y : memref<4x128xf32>)
  kern.matmul ins(%y, %w : memref<4x128xf32>, memref<128x64xf32>) outs(%z : memref<4x64xf32>)
  return
}
// LOWER: func.func @pack.bt.64x128(%[[W:.*]]: memref<128x64xf32>, %[[P:.*]]: memref<8192xf32>) attributes {nn.layer}
// LOWER: call @kern_pack(%[[W]], %[[P]])
// LOWER: llvm.call @mgq_gemm_np(
// LOWER: llvm.call @mgq_gemm_nt(
// LOWER: llvm.call @mgq_gemm_nn(
