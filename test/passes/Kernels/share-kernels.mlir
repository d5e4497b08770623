// RUN: mgq-opt %s --kern-share-kernels=first=m4 --split-input-file | FileCheck %s

// The first program keeps its symbols; what another has in the same words, it
// takes from there, constants included. The rest gets a name of its own, also
// where the program calls it. What no code needs goes.

// CHECK-LABEL: module @m2
module @m2 {
  // CHECK: func.func private @same(
  func.func private @same(tensor<2xf32>) -> tensor<2xf32>
  // CHECK: func.func private @rows.m2(
  func.func private @rows(tensor<2xf32>) -> tensor<2xf32>
  func.func @train(%x: tensor<2xf32>) -> tensor<2xf32> {
    // CHECK: call @same
    %0 = call @same(%x) : (tensor<2xf32>) -> tensor<2xf32>
    // CHECK: call @rows.m2
    %1 = call @rows(%0) : (tensor<2xf32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
  pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 256, 0] {
    pipe.sequence forward chunk(0) {
      // CHECK: pipe.call @same
      pipe.call @same [#pipe.arena<0, 8>, #pipe.arena<64, 8>] results(1) scratch(#pipe.arena<0, 0>)
      // CHECK: pipe.call @rows.m2
      pipe.call @rows [#pipe.arena<0, 8>, #pipe.arena<64, 8>] results(1) scratch(#pipe.arena<0, 0>)
    }
  }
  // CHECK: module @kernels
  module @kernels {
    // CHECK-NOT: @three
    llvm.mlir.global private constant @three(3.0 : f32) : f32
    // CHECK: llvm.mlir.global private constant @four(4.0
    llvm.mlir.global private constant @four(4.0 : f32) : f32
    // CHECK-NOT: @same.part
    llvm.func internal @same.part() -> f32 {
      %0 = llvm.mlir.addressof @three : !llvm.ptr
      %1 = llvm.load %0 : !llvm.ptr -> f32
      llvm.return %1 : f32
    }
    // CHECK: llvm.func @same(!llvm.ptr, !llvm.ptr) attributes {nn.args = []}{{$}}
    llvm.func @same(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.args = []} {
      %0 = llvm.call @same.part() : () -> f32
      llvm.store %0, %args : f32, !llvm.ptr
      llvm.return
    }
    // The only user of it that has code here is @rows.m2.
    // CHECK: llvm.func @product(f32) -> f32{{$}}
    llvm.func internal @product(%x: f32) -> f32 {
      %0 = llvm.fmul %x, %x : f32
      llvm.return %0 : f32
    }
    // CHECK: llvm.func internal @rows.part() -> f32 {
    llvm.func internal @rows.part() -> f32 {
      %0 = llvm.mlir.addressof @four : !llvm.ptr
      %1 = llvm.load %0 : !llvm.ptr -> f32
      %2 = llvm.call @product(%1) : (f32) -> f32
      llvm.return %2 : f32
    }
    // CHECK: llvm.func @rows.m2({{.*}} {
    // CHECK-NEXT: llvm.call @rows.part
    llvm.func @rows(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.args = []} {
      %0 = llvm.call @rows.part() : () -> f32
      llvm.store %0, %args : f32, !llvm.ptr
      llvm.return
    }
    // The optimizer's kernels are the first program's.
    // CHECK-NOT: @mgq_adamw
    llvm.func @mgq_adamw(%args: !llvm.ptr) {
      llvm.return
    }
  }
}

// CHECK-LABEL: module @m4
module @m4 {
  // CHECK: func.func private @rows(
  func.func private @rows(tensor<1xf32>) -> tensor<1xf32>
  // CHECK: module @kernels
  module @kernels {
    llvm.mlir.global private constant @three(3.0 : f32) : f32
    llvm.mlir.global private constant @four(5.0 : f32) : f32
    // CHECK: llvm.func internal @same.part() -> f32 {
    llvm.func internal @same.part() -> f32 {
      %0 = llvm.mlir.addressof @three : !llvm.ptr
      %1 = llvm.load %0 : !llvm.ptr -> f32
      llvm.return %1 : f32
    }
    // CHECK: llvm.func @same({{.*}} {
    llvm.func @same(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.args = []} {
      %0 = llvm.call @same.part() : () -> f32
      llvm.store %0, %args : f32, !llvm.ptr
      llvm.return
    }
    // Another program needs it: it is seen from outside.
    // CHECK: llvm.func @product({{.*}} {
    llvm.func internal @product(%x: f32) -> f32 {
      %0 = llvm.fmul %x, %x : f32
      llvm.return %0 : f32
    }
    // CHECK: llvm.func internal @rows.part() -> f32 {
    llvm.func internal @rows.part() -> f32 {
      %0 = llvm.mlir.addressof @four : !llvm.ptr
      %1 = llvm.load %0 : !llvm.ptr -> f32
      %2 = llvm.call @product(%1) : (f32) -> f32
      llvm.return %2 : f32
    }
    // CHECK: llvm.func @rows({{.*}} {
    llvm.func @rows(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.args = []} {
      %0 = llvm.call @rows.part() : () -> f32
      llvm.store %0, %args : f32, !llvm.ptr
      llvm.return
    }
    // CHECK: llvm.func @mgq_adamw
    llvm.func @mgq_adamw(%args: !llvm.ptr) {
      llvm.return
    }
  }
}

// -----

// A module that holds no programs stays as it is.
// CHECK: module {
// CHECK-NEXT: llvm.func internal @alone
llvm.func internal @alone() {
  llvm.return
}
