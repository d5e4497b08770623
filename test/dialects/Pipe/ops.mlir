// RUN: mgq-opt %s --verify-roundtrip | FileCheck %s

// Every op of the dialect parses, prints and parses again.
nn.param @w trainable : tensor<4xf32> = "m.onnx"[0 : 16]
nn.param @frozen frozen : tensor<4xf32> = "m.onnx"[16 : 16]

// CHECK: pipe.plan interleaved stages(2) replicas(3) micro_batches(4) step_seconds(1.500000e+00) bubble(2.500000e-01) memory_limit [64, 128] {
pipe.plan interleaved stages(2) replicas(3) micro_batches(4) step_seconds(1.5) bubble(0.25) memory_limit [64, 128] {
  // CHECK: pipe.chunk 0 on [0, 1] seconds [1.000000e+00, 0.000000e+00, 0.000000e+00, 5.000000e-01, 0.000000e+00] bytes [0, 0]
  pipe.chunk 0 on [0, 1] seconds [1.0, 0.0, 0.0, 0.5, 0.0] bytes [0, 0]
  // CHECK: pipe.chunk 1 on [1] seconds {{.*}} bytes [64, 32] backward weight sends_gradient
  pipe.chunk 1 on [1] seconds [1.0, 1.0, 1.0, 0.0, 0.5] bytes [64, 32] backward weight sends_gradient
}
// CHECK: pipe.edge @activation0 activation from(0) to(1) value(3, 1) : tensor<4xf32>
pipe.edge @activation0 activation from(0) to(1) value(3, 1) : tensor<4xf32>
// CHECK: pipe.edge @parameter0 parameter from(1) to(0) value(-1, 0) param(@w) : tensor<4xf32>
pipe.edge @parameter0 parameter from(1) to(0) value(-1, 0) param(@w) : tensor<4xf32>

// CHECK-LABEL: pipe.rank @r0 stage(0) memory [64, 64, 128, 128, 128, 64]
pipe.rank @r0 stage(0) memory [64, 64, 128, 128, 128, 64] {
  // CHECK: pipe.place_param @w value(0) gradient(64) momentum(128) variance(192)
  pipe.place_param @w value(0) gradient(64) momentum(128) variance(192)
  // CHECK: pipe.place_use @w use 1 at 64
  pipe.place_use @w use 1 at 64
  // CHECK: pipe.place_slots chunk(1) at 384 bytes 64 count 2
  pipe.place_slots chunk(1) at 384 bytes 64 count 2
  // CHECK: pipe.place_output "loss" : tensor<f32> at 320
  pipe.place_output "loss" : tensor<f32> at 320
  // CHECK: pipe.place_gradient @w use 1 chunk(1) at #pipe.arena<384, 16> into 64 after 0 weight
  pipe.place_gradient @w use 1 chunk(1) at #pipe.arena<384, 16> into 64 after 0 weight
  // CHECK: pipe.place_loss chunk(1) #pipe.arena<320, 4> seed #pipe.arena<336, 4> evaluate #pipe.arena<340, 4>
  pipe.place_loss chunk(1) #pipe.arena<320, 4> seed #pipe.arena<336, 4> evaluate #pipe.arena<340, 4>
  // CHECK: pipe.place_count at 344
  pipe.place_count at 344
  // CHECK: pipe.sequence forward chunk(1)
  pipe.sequence forward chunk(1) {
    // CHECK: pipe.load "ids" : tensor<4xi64> at #pipe.arena<256, 32> limit(100) ignore(-100)
    pipe.load "ids" : tensor<4xi64> at #pipe.arena<256, 32> limit(100) ignore(-100)
    // CHECK: pipe.call @f [#pipe.arena<256, 32>, #pipe.weight<@frozen>, #pipe.slot<1, 0, 16>] results(1) scratch(<512, 64>) layer("llm.0")
    pipe.call @f [#pipe.arena<256, 32>, #pipe.weight<@frozen>, #pipe.slot<1, 0, 16>] results(1) scratch(#pipe.arena<512, 64>) layer("llm.0")
  }
  // CHECK: %[[R:.*]] = pipe.recv @activation0 micro_batch(0) slot(0) peer(1) at #pipe.slot<1, 16, 16>
  %r = pipe.recv @activation0 micro_batch(0) slot(0) peer(1) at #pipe.slot<1, 16, 16>
  // CHECK: %[[F:.*]] = pipe.forward chunk(1) micro_batch(0) slot(0) after(%[[R]])
  %f = pipe.forward chunk(1) micro_batch(0) slot(0) after(%r)
  // CHECK: %[[B:.*]] = pipe.backward chunk(1) micro_batch(0) slot(0) after(%[[F]])
  %b = pipe.backward chunk(1) micro_batch(0) slot(0) after(%f)
  // CHECK: %[[W:.*]] = pipe.weight_grad chunk(1) micro_batch(0) slot(0) after(%[[B]])
  %w = pipe.weight_grad chunk(1) micro_batch(0) slot(0) after(%b)
  // CHECK: %[[C:.*]] = pipe.combine after(%[[W]])
  %c = pipe.combine after(%w)
  // CHECK: %[[A:.*]] = pipe.all_reduce at #pipe.arena<64, 64> after(%[[C]])
  %a = pipe.all_reduce at #pipe.arena<64, 64> after(%c)
  // CHECK: %[[D:.*]] = pipe.all_reduce bucket(1) of [@w] room(<768, 64>) after(%[[B]], %[[A]]) call(2)
  %d = pipe.all_reduce bucket(1) of [@w] room(#pipe.arena<768, 64>) after(%b, %a) call(2)
  // CHECK: %[[O:.*]] = pipe.optimizer after(%[[A]], %[[D]])
  %o = pipe.optimizer after(%a, %d)
  // CHECK: pipe.send @parameter0 peer(0) after(%[[O]])
  %s = pipe.send @parameter0 peer(0) after(%o)
  // CHECK: pipe.evaluation {
  pipe.evaluation {
    // CHECK: pipe.evaluate chunk(1)
    %e = pipe.evaluate chunk(1)
  }
}
