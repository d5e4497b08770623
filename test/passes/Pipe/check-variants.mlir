// RUN: mgq-opt %s --pipe-check-variants --split-input-file --verify-diagnostics

// Gradients, activations, scratch and messages may differ.
module @m2 {
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 64, 128, 64, 512, 64] {
    pipe.place_param @w value(0) gradient(64) momentum(128) variance(192)
    pipe.place_use @w use 0 at 64
    pipe.place_slots chunk(0) at 320 bytes 256 count 2
    pipe.sequence prepare_frozen {
      pipe.call @pack [#pipe.weight<@f>, #pipe.arena<0, 64>] results(1) scratch(#pipe.arena<832, 64>)
    }
  }
}
module @m4 {
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [0.5, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 64, 128, 64, 128, 64] {
    pipe.place_param @w value(0) gradient(96) momentum(128) variance(192)
    pipe.place_use @w use 0 at 96
    pipe.place_slots chunk(0) at 320 bytes 128 count 1
    pipe.sequence prepare_frozen {
      pipe.call @pack [#pipe.weight<@f>, #pipe.arena<0, 64>] results(1) scratch(#pipe.arena<448, 64>)
    }
  }
}

// -----

module @m2 {
  // expected-note @below {{compared with 2 micro-batches}}
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 64, 128, 64, 512, 64] {
    pipe.place_param @w value(0) gradient(64) momentum(128) variance(192)
  }
}
module @m4 {
  // expected-error @below {{not supported yet: with 4 micro-batches stage 0 keeps other parameters, or at other places}}
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [0.5, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 64, 128, 64, 128, 64] {
    pipe.place_param @w value(0) gradient(64) momentum(192) variance(128)
  }
}

// -----

// What compressed gradients keep lies as gradients do, which then may not differ.
module @m2 {
  // expected-note @below {{compared with 2 micro-batches}}
  pipe.plan one_f_one_b stages(1) replicas(2) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 128, 512, 64, 512, 64] {
    pipe.place_residuals of #pipe.arena<64, 128> worker [#pipe.arena<192, 128>, #pipe.arena<320, 128>] owner [#pipe.arena<448, 64>, #pipe.arena<512, 64>]
    %0 = pipe.all_reduce bucket(0) of [@v] at #pipe.arena<64, 64>
    %1 = pipe.all_reduce bucket(1) of [@w] at #pipe.arena<128, 64>
  }
}
module @m4 {
  // expected-error @below {{not supported yet: with 4 micro-batches stage 0 keeps other residuals of compressed gradients, or at other places}}
  pipe.plan one_f_one_b stages(1) replicas(2) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [0.5, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 128, 512, 64, 512, 64] {
    pipe.place_residuals of #pipe.arena<64, 128> worker [#pipe.arena<192, 128>, #pipe.arena<320, 128>] owner [#pipe.arena<448, 64>, #pipe.arena<512, 64>]
    %0 = pipe.all_reduce bucket(0) of [@w] at #pipe.arena<64, 64>
    %1 = pipe.all_reduce bucket(1) of [@v] at #pipe.arena<128, 64>
  }
}

// -----

// The code that packs must be the same, too.
module @m2 {
  // expected-note @below {{compared with 2 micro-batches}}
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 64, 128, 64, 512, 64] {
    pipe.sequence prepare_frozen {
      pipe.call @pack [#pipe.weight<@f>, #pipe.arena<0, 64>] results(1) scratch(#pipe.arena<832, 64>)
    }
  }
}
module @m4 {
  // expected-error @below {{not supported yet: with 4 micro-batches stage 0 keeps other packed weights, or at other places}}
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [0.5, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
  pipe.rank @r0 stage(0) memory [64, 64, 128, 64, 128, 64] {
    pipe.sequence prepare_frozen {
      pipe.call @pack.m4 [#pipe.weight<@f>, #pipe.arena<0, 64>] results(1) scratch(#pipe.arena<832, 64>)
    }
  }
}

// -----

module @m2 {
  // expected-note @below {{compared with 2 micro-batches}}
  pipe.plan one_f_one_b stages(2) replicas(1) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
    pipe.chunk 1 on [1] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
}
module @m4 {
  // expected-error @below {{not supported yet: with 4 micro-batches the model is cut into other stages}}
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
}

// -----

module @m4 {
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
}
module @m2 {
  // expected-error @below {{has 2 micro-batches, the program before 4; expected ascending numbers}}
  pipe.plan one_f_one_b stages(1) replicas(1) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
  }
}

// -----

module {
  // expected-error @below {{holds no pipe.plan}}
  module @m2 {
  }
}
