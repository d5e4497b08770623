// RUN: mgq-opt %s --kern-lower-matmul="cpu=x86-64-v3" | FileCheck %s --check-prefix=LOWER

// Weights stored as bf16 or f16 have panels of that type.
// LOWER: func.func @narrow({{.*}}) attributes {nn.layer, nn.packed = [unit, @pack.bt.64x128.bf16, @pack.bt.64x128.f16, unit, unit]}
func.func @narrow(%x: memref<4x64xf32>, %w: memref<128x64xbf16>, %v: memref<128x64xf16>, %y: memref<4x128xf32>, %z: memref<4x128xf32>) attributes {nn.layer, nn.packable = array<i64: 1, 2>} {
  kern.matmul transpose_b ins(%x, %w : memref<4x64xf32>, memref<128x64xbf16>) outs(%y : memref<4x128xf32>)
  kern.matmul transpose_b ins(%x, %v : memref<4x64xf32>, memref<128x64xf16>) outs(%z : memref<4x128xf32>)
  return
}
// LOWER: func.func @pack.bt.64x128.bf16({{.*}}: memref<128x64xbf16>, {{.*}}: memref<8192xbf16>)
// LOWER: func.func @pack.bt.64x128.f16({{.*}}: memref<128x64xf16>, {{.*}}: memref<8192xf16>)
// LOWER: llvm.call @mgq_gemm_np_b_bf16(
// LOWER: llvm.call @mgq_gemm_np_b_f16(
