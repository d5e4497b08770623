// RUN: mgq-opt %s --kern-expand-math | FileCheck %s

// f32 functions are arithmetic, which LLVM vectorises.
// CHECK-LABEL: @f32
// CHECK-NOT: math.{{exp|tanh|erf|log}}
// CHECK: return
func.func @f32(%x: f32) -> f32 {
  %0 = math.exp %x : f32
  %1 = math.tanh %0 : f32
  %2 = math.erf %1 : f32
  %3 = math.log %2 : f32
  return %3 : f32
}

// f64 functions without an LLVM intrinsic are calls of libm.
// CHECK-LABEL: @f64
// CHECK: call @erf
func.func @f64(%x: f64) -> f64 {
  %0 = math.erf %x : f64
  return %0 : f64
}

// No conversion of bf16 is left to a library.
// CHECK-LABEL: @bf16
// CHECK-NOT: arith.extf
// CHECK-NOT: arith.truncf
// CHECK-NOT: to bf16
// CHECK: arith.bitcast %{{.*}} : i16 to bf16
func.func @bf16(%x: bf16, %i: i32) -> (bf16, bf16) {
  %0 = arith.extf %x : bf16 to f32
  %1 = arith.truncf %0 : f32 to bf16
  %2 = arith.sitofp %i : i32 to bf16
  return %1, %2 : bf16, bf16
}
