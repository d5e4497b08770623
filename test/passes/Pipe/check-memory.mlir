// RUN: mgq-opt %s --pipe-check-memory --split-input-file --verify-diagnostics

// A range that no call wrote is not read.
pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 256, 0] {
  pipe.place_slots chunk(0) at 64 bytes 128 count 1
  pipe.sequence forward chunk(0) {
    // expected-error @below {{'pipe.call' op reads #pipe.arena<192, 64> of argument 0, which no call wrote or a later one wrote over}}
    pipe.call @f [#pipe.arena<192, 64>, #pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// A residual of forward is gone when a later call wrote over a part of it.
pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 256, 0] {
  pipe.place_slots chunk(0) at 64 bytes 256 count 1
  pipe.sequence forward chunk(0) {
    pipe.call @f [#pipe.arena<0, 64>, #pipe.slot<0, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
    pipe.call @g [#pipe.arena<0, 64>, #pipe.slot<0, 96, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  pipe.sequence backward chunk(0) {
    // expected-error @below {{'pipe.call' op reads #pipe.slot<0, 64, 64> of argument 0, which no call wrote or a later one wrote over}}
    pipe.call @h [#pipe.slot<0, 64, 64>, #pipe.slot<0, 192, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// Inputs, what arrived, and what forward left for backward and weight, are read
// without complaint.
pipe.edge @activation0 activation from(0) to(1) value(0, 0) : tensor<16xf32>
pipe.edge @gradient0 gradient from(2) to(1) value(5, 0) : tensor<16xf32>
pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 512, 0] {
  pipe.place_slots chunk(1) at 64 bytes 256 count 1
  pipe.sequence forward chunk(1) {
    pipe.load "x" : tensor<16xf32> at #pipe.arena<320, 64>
    pipe.call @f [#pipe.arena<0, 64>, #pipe.arena<320, 64>, #pipe.slot<1, 0, 64>, #pipe.slot<1, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  pipe.sequence backward chunk(1) {
    pipe.call @h [#pipe.slot<1, 64, 64>, #pipe.slot<1, 128, 64>, #pipe.slot<1, 192, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  pipe.sequence weight chunk(1) {
    pipe.call @h [#pipe.slot<1, 128, 64>, #pipe.slot<1, 192, 64>, #pipe.arena<384, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  %0 = pipe.recv @activation0 micro_batch(0) slot(0) peer(0) at #pipe.slot<1, 0, 64>
  %1 = pipe.recv @gradient0 micro_batch(0) slot(0) peer(2) at #pipe.slot<1, 128, 64>
}

// -----

// What arrives for backward does not help forward.
pipe.edge @gradient0 gradient from(2) to(1) value(5, 0) : tensor<16xf32>
pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 256, 0] {
  pipe.place_slots chunk(1) at 64 bytes 256 count 1
  pipe.sequence forward chunk(1) {
    // expected-error @below {{'pipe.call' op reads #pipe.slot<1, 128, 64> of argument 0, which no call wrote or a later one wrote over}}
    pipe.call @f [#pipe.slot<1, 128, 64>, #pipe.slot<1, 64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  %1 = pipe.recv @gradient0 micro_batch(0) slot(0) peer(2) at #pipe.slot<1, 128, 64>
}
