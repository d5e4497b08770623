// RUN: mgq-opt %s --kern-bf16-as-bits --split-input-file --verify-diagnostics | FileCheck %s

// CHECK-LABEL: llvm.func @f(%{{.*}}: !llvm.ptr, %{{.*}}: i16, %{{.*}}: i1)
// CHECK: llvm.mlir.constant(16256 : i16) : i16
// CHECK: llvm.select {{.*}} : i1, i16
// CHECK: llvm.store {{.*}} : i16, !llvm.ptr
llvm.func @f(%p: !llvm.ptr, %x: bf16, %c: i1) {
  %one = llvm.mlir.constant(1.0 : bf16) : bf16
  %y = llvm.select %c, %x, %one : i1, bf16
  llvm.store %y, %p : bf16, !llvm.ptr
  llvm.return
}

// -----

llvm.func @g(%x: bf16) -> bf16 {
  // expected-error @below {{'llvm.fadd' op computes with bf16 after kern-expand-math}}
  %y = llvm.fadd %x, %x : bf16
  llvm.return %y : bf16
}
