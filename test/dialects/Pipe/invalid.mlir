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
    // expected-error @below {{'pipe.call' op has argument 7 : i64, expected #pipe.arena or #pipe.weight}}
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
