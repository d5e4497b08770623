// RUN: mgq-opt %s --pipe-check-hazards --split-input-file --verify-diagnostics

// A call must wait for what it reads.
pipe.rank @r0 stage(0) memory [0, 0, 0, 0, 256, 0] {
  pipe.place_slots chunk(0) at 0 bytes 128 count 2
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>, #pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  // expected-note @below {{the earlier op}}
  %0 = pipe.recv @a micro_batch(0) slot(1) peer(1) at #pipe.slot<0, 0, 64>
  // expected-error @below {{'pipe.forward' op may run while an earlier op uses bytes 128 to 192 of the arena}}
  %1 = pipe.forward chunk(0) micro_batch(0) slot(1)
}

// -----

// A send must wait for what it sends.
pipe.rank @r0 stage(0) memory [0, 0, 0, 0, 256, 0] {
  pipe.place_slots chunk(0) at 0 bytes 128 count 2
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>, #pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  // expected-note @below {{the earlier op}}
  %0 = pipe.forward chunk(0) micro_batch(0) slot(0)
  // expected-error @below {{'pipe.send' op may run while an earlier op uses bytes 64 to 128 of the arena}}
  %1 = pipe.send @a micro_batch(0) slot(0) peer(1) at #pipe.slot<0, 64, 64>
}

// -----

// What is being sent must not be written over: the slot is taken again.
pipe.rank @r0 stage(0) memory [0, 0, 0, 0, 256, 0] {
  pipe.place_slots chunk(0) at 0 bytes 128 count 2
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>, #pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  %0 = pipe.forward chunk(0) micro_batch(0) slot(0)
  // expected-note @below {{the earlier op}}
  %1 = pipe.send @a micro_batch(0) slot(0) peer(1) at #pipe.slot<0, 64, 64> after(%0)
  // expected-error @below {{'pipe.forward' op may run while an earlier op uses bytes 64 to 128 of the arena}}
  %2 = pipe.forward chunk(0) micro_batch(1) slot(0)
}

// -----

// Another slot is other memory, and the compute stream orders itself.
pipe.rank @r0 stage(0) memory [0, 0, 0, 0, 256, 0] {
  pipe.place_slots chunk(0) at 0 bytes 128 count 2
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>, #pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  %0 = pipe.forward chunk(0) micro_batch(0) slot(0)
  %1 = pipe.send @a micro_batch(0) slot(0) peer(1) at #pipe.slot<0, 64, 64> after(%0)
  %2 = pipe.forward chunk(0) micro_batch(1) slot(1)
  %3 = pipe.forward chunk(0) micro_batch(2) slot(0) after(%1)
}

// -----

// A parameter's new value must not arrive while a stage still uses the old one.
nn.param @w trainable : tensor<16xf32> = "m"[0 : 64]
pipe.rank @r0 stage(0) memory [64, 0, 0, 0, 128, 0] {
  pipe.place_param @w value(0)
  pipe.place_slots chunk(0) at 64 bytes 128 count 1
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.arena<0, 64>, #pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  // expected-note @below {{the earlier op}}
  %0 = pipe.forward chunk(0) micro_batch(0) slot(0)
  // expected-error @below {{'pipe.recv' op may run while an earlier op uses bytes 0 to 64 of the arena}}
  %1 = pipe.recv @p peer(1) at #pipe.arena<0, 64>
}

// -----

// A bucket begins within a backward op: what later calls add to must not be in
// it. @w is final after call 0, @v after call 1.
nn.param @w trainable : tensor<16xf32> = "m"[0 : 64]
nn.param @v trainable : tensor<16xf32> = "m"[64 : 64]
pipe.rank @r0 stage(0) memory [0, 128, 0, 0, 256, 64] {
  pipe.place_slots chunk(0) at 128 bytes 256 count 1
  pipe.place_gradient @w use 1 chunk(0) at #pipe.slot<0, 0, 64> into 0 after 0
  pipe.place_gradient @v use 2 chunk(0) at #pipe.slot<0, 64, 64> into 64 after 1
  pipe.sequence backward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>] results(1) scratch(#pipe.arena<0, 0>)
    pipe.call @f [#pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  %0 = pipe.backward chunk(0) micro_batch(0) slot(0)
  %1 = pipe.all_reduce at #pipe.arena<0, 64> room(<384, 64>) after(%0) call(0)
  %2 = pipe.all_reduce at #pipe.arena<64, 64> room(<384, 64>) after(%0, %1) call(1)
  %3 = pipe.optimizer after(%1, %2)
}

// -----

nn.param @w trainable : tensor<16xf32> = "m"[0 : 64]
nn.param @v trainable : tensor<16xf32> = "m"[64 : 64]
pipe.rank @r0 stage(0) memory [0, 128, 0, 0, 256, 64] {
  pipe.place_slots chunk(0) at 128 bytes 256 count 1
  pipe.place_gradient @w use 1 chunk(0) at #pipe.slot<0, 0, 64> into 0 after 0
  pipe.place_gradient @v use 2 chunk(0) at #pipe.slot<0, 64, 64> into 64 after 1
  pipe.sequence backward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>] results(1) scratch(#pipe.arena<0, 0>)
    pipe.call @f [#pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  // expected-note @below {{the earlier op}}
  %0 = pipe.backward chunk(0) micro_batch(0) slot(0)
  // expected-error @below {{'pipe.all_reduce' op may run while an earlier op uses bytes 64 to 128 of the arena}}
  %1 = pipe.all_reduce at #pipe.arena<0, 128> room(<384, 64>) after(%0) call(0)
}

// -----

// Room is not shared by all_reduces that are under way together.
pipe.rank @r0 stage(0) memory [0, 128, 0, 0, 0, 64] {
  %0 = pipe.combine
  // expected-note @below {{the earlier op}}
  %1 = pipe.all_reduce at #pipe.arena<0, 64> room(<128, 64>) after(%0)
  // expected-error @below {{'pipe.all_reduce' op may run while an earlier op uses bytes 128 to 192 of the arena}}
  %2 = pipe.all_reduce at #pipe.arena<64, 64> room(<128, 64>) after(%0)
}

// -----

// Nor is the scratch of calls.
pipe.rank @r0 stage(0) memory [0, 64, 0, 0, 64, 64] {
  pipe.place_slots chunk(0) at 64 bytes 64 count 1
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>] results(1) scratch(#pipe.arena<128, 64>)
  }
  // expected-note @below {{the earlier op}}
  %0 = pipe.all_reduce at #pipe.arena<0, 64> room(<128, 64>)
  // expected-error @below {{'pipe.forward' op may run while an earlier op uses bytes 128 to 192 of the arena}}
  %1 = pipe.forward chunk(0) micro_batch(0) slot(0)
}

// -----

// What runs ahead of its step is kept beyond evaluations.
pipe.rank @r0 stage(0) memory [0, 0, 0, 0, 128, 0] {
  pipe.place_slots chunk(0) at 0 bytes 64 count 1
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.slot<0, 0, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  pipe.sequence evaluate chunk(0) {
    // expected-error @below {{'pipe.call' op uses bytes of the arena in which a chunk that runs ahead keeps values for the next step}}
    pipe.call @f [#pipe.arena<0, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  %0 = pipe.send @a micro_batch(0) slot(0) peer(1) at #pipe.slot<0, 0, 64>
  %1 = pipe.forward chunk(0) micro_batch(0) slot(0) ahead after(%0)
}
