// RUN: mgq-opt %s --split-input-file --verify-diagnostics

// The arena has six parts.
// expected-error @below {{'pipe.rank' op has 2 memory sizes, expected 6}}
pipe.rank @r0 stage(0) memory [64, 64] {
}

// -----

// A call stays inside the arena.
pipe.rank @r0 stage(0) memory [64, 0, 0, 0, 0, 0] {
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op uses bytes 32 to 96 of an arena of 64}}
    pipe.call @f [#pipe.arena<32, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// A parameter trains with all of its state or with none.
pipe.rank @r0 stage(0) {
  // expected-error @below {{'pipe.place_param' op of a trainable parameter needs a value, a gradient, a momentum and a variance}}
  pipe.place_param @w value(0) gradient(64)
}

// -----

// No more results than arguments.
pipe.rank @r0 stage(0) {
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op has 2 results among 1 arguments}}
    pipe.call @f [#pipe.arena<0, 4>] results(2) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// Arguments are places.
pipe.rank @r0 stage(0) {
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op has argument 7 : i64, expected #pipe.arena, #pipe.slot or #pipe.weight}}
    pipe.call @f [7] results(0) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// A frozen weight is never written.
pipe.rank @r0 stage(0) {
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op writes to #pipe.weight<@w>}}
    pipe.call @f [#pipe.weight<@w>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// A result never overlaps another range of its call.
pipe.rank @r0 stage(0) {
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op writes #pipe.arena<32, 64> over #pipe.arena<0, 64>}}
    pipe.call @f [#pipe.arena<0, 64>, #pipe.arena<32, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// Nor in a slot.
pipe.rank @r0 stage(0) {
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op writes #pipe.slot<0, 32, 64> over #pipe.slot<0, 0, 64>}}
    pipe.call @f [#pipe.slot<0, 0, 64>, #pipe.slot<0, 32, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// A call stays inside the slot of its chunk.
pipe.rank @r0 stage(0) memory [0, 0, 0, 0, 64, 0] {
  pipe.place_slots chunk(0) at 0 bytes 64 count 1
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op uses bytes 32 to 96 of a slot of 64}}
    pipe.call @f [#pipe.slot<0, 32, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// Slots lie in the arena.
pipe.rank @r0 stage(0) memory [0, 0, 0, 0, 64, 0] {
  // expected-error @below {{'pipe.place_slots' op leave the arena of 64 bytes}}
  pipe.place_slots chunk(0) at 0 bytes 64 count 2
}

// -----

// A plan has chunks.
// expected-error @below {{'pipe.plan' op has no chunk}}
pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
}

// -----

// A step has at least one micro-batch.
// expected-error @below {{'pipe.plan' op needs at least one stage, replica and micro-batch}}
pipe.plan gpipe stages(1) replicas(1) micro_batches(0) {
  pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
}

// -----

// Chunks are counted from 0.
pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
  // expected-error @below {{'pipe.chunk' op has index 1, expected 0}}
  pipe.chunk 1 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
}

// -----

// A chunk is on a stage that there is.
pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
  // expected-error @below {{'pipe.chunk' op is on stage 1, there are 1}}
  pipe.chunk 0 on [1] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
}

// -----

// A chunk is somewhere.
pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
  // expected-error @below {{'pipe.chunk' op is on no stage}}
  pipe.chunk 0 on [] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
}

// -----

// All costs are there.
pipe.plan gpipe stages(1) replicas(1) micro_batches(1) {
  // expected-error @below {{'pipe.chunk' op needs five seconds and two numbers of bytes}}
  pipe.chunk 0 on [0] seconds [1.0] bytes [0, 0]
}

// -----

// What has a backward pass is on one stage: its gradients are summed there.
pipe.plan gpipe stages(2) replicas(1) micro_batches(1) {
  // expected-error @below {{'pipe.chunk' op with a backward pass is on more than one stage}}
  pipe.chunk 0 on [0, 1] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
}

// -----

// Only backward and weight ops have calls at which an all_reduce begins.
pipe.rank @r0 stage(0) {
  %0 = pipe.combine
  // expected-error @below {{'pipe.all_reduce' op begins at call 3 of no backward or weight op}}
  %1 = pipe.all_reduce after(%0) call(3)
}
