// RUN: mgq-opt %s --verify-roundtrip | FileCheck %s

// Every op of the dialect parses, prints and parses again.
nn.param @w trainable : tensor<4xf32> = "m.onnx"[0 : 16]
nn.param @frozen frozen : tensor<4xf32> = "m.onnx"[16 : 16]

// CHECK-LABEL: pipe.rank @r0 stage(0) memory [64, 64, 128, 128, 128, 64]
pipe.rank @r0 stage(0) memory [64, 64, 128, 128, 128, 64] {
  // CHECK: pipe.place_param @w value(0) gradient(64) momentum(128) variance(192)
  pipe.place_param @w value(0) gradient(64) momentum(128) variance(192)
  // CHECK: pipe.place_input "ids" : tensor<4xi64> at 256 limit(100) ignore(-100)
  pipe.place_input "ids" : tensor<4xi64> at 256 limit(100) ignore(-100)
  // CHECK: pipe.place_output "loss" : tensor<f32> at 320
  pipe.place_output "loss" : tensor<f32> at 320
  // CHECK: pipe.place_gradient @w at 384 into 64 after 0
  pipe.place_gradient @w at 384 into 64 after 0
  // CHECK: pipe.place_loss 320 count(328) seed(336)
  pipe.place_loss 320 count(328) seed(336)
  // CHECK: pipe.sequence forward
  pipe.sequence forward {
    // CHECK: pipe.call @f [#pipe.arena<256, 32>, #pipe.weight<@frozen>, #pipe.arena<384, 16>] results(1) scratch(<512, 64>) layer("llm.0")
    pipe.call @f [#pipe.arena<256, 32>, #pipe.weight<@frozen>, #pipe.arena<384, 16>] results(1) scratch(#pipe.arena<512, 64>) layer("llm.0")
  }
  // CHECK: %[[F:.*]] = pipe.forward chunk(0) micro_batch(0) slot(0)
  %f = pipe.forward chunk(0) micro_batch(0) slot(0)
  // CHECK: %[[B:.*]] = pipe.backward chunk(0) micro_batch(0) slot(0) after(%[[F]])
  %b = pipe.backward chunk(0) micro_batch(0) slot(0) after(%f)
  // CHECK: pipe.optimizer after(%[[B]])
  %o = pipe.optimizer after(%b)
}
