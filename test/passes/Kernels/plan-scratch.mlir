// RUN: mgq-opt %s --kern-plan-scratch --split-input-file --verify-diagnostics | FileCheck %s

// %a and %c do not live at the same time and share bytes; %b lives with both.
// CHECK-LABEL: func.func @f(%arg0: memref<64xf32>,
// CHECK-SAME: %[[SCRATCH:[^ ]*]]: memref<320xi8>) attributes {nn.layer, nn.scratch_bytes = 320 : i64}
// CHECK: %[[A:.*]] = arith.constant 0 : index
// CHECK: memref.view %[[SCRATCH]][%[[A]]][] : memref<320xi8> to memref<64xf32>
// CHECK: %[[B:.*]] = arith.constant 256 : index
// CHECK: memref.view %[[SCRATCH]][%[[B]]][] : memref<320xi8> to memref<5xf32>
// CHECK: %[[C:.*]] = arith.constant 0 : index
// CHECK: memref.view %[[SCRATCH]][%[[C]]][] : memref<320xi8> to memref<64xf32>
func.func @f(%out: memref<64xf32>) attributes {nn.layer} {
  %a = memref.alloc() : memref<64xf32>
  %va = memref.expand_shape %a [[0, 1]] output_shape [8, 8] : memref<64xf32> into memref<8x8xf32>
  %b = memref.alloc() : memref<5xf32>
  func.call @use(%va, %b) : (memref<8x8xf32>, memref<5xf32>) -> ()
  %c = memref.alloc() : memref<64xf32>
  func.call @use2(%b, %c, %out) : (memref<5xf32>, memref<64xf32>, memref<64xf32>) -> ()
  return
}
func.func private @use(memref<8x8xf32>, memref<5xf32>)
func.func private @use2(memref<5xf32>, memref<64xf32>, memref<64xf32>)

// -----

func.func @dynamic(%n: index) attributes {nn.layer} {
  // expected-error @below {{'memref.alloc' op has no static size}}
  %a = memref.alloc(%n) : memref<?xf32>
  return
}
