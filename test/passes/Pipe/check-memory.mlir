// RUN: mgq-opt %s --pipe-check-memory --split-input-file --verify-diagnostics

// A range that no call wrote is not read.
pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 256, 0] {
  pipe.sequence forward {
    // expected-error @below {{'pipe.call' op reads #pipe.arena<64, 64> of argument 0, which no call wrote or a later one wrote over}}
    pipe.call @f [#pipe.arena<64, 64>, #pipe.arena<128, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// A residual of forward is gone when a later call wrote over a part of it.
pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 256, 0] {
  pipe.sequence forward {
    pipe.call @f [#pipe.arena<0, 64>, #pipe.arena<64, 64>] results(1) scratch(#pipe.arena<0, 0>)
    pipe.call @g [#pipe.arena<0, 64>, #pipe.arena<96, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  pipe.sequence backward {
    // expected-error @below {{'pipe.call' op reads #pipe.arena<64, 64> of argument 0, which no call wrote or a later one wrote over}}
    pipe.call @h [#pipe.arena<64, 64>, #pipe.arena<192, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}

// -----

// Inputs, and what forward left for backward, are read without complaint.
pipe.rank @r0 stage(0) memory [0, 0, 0, 64, 256, 0] {
  pipe.sequence forward {
    pipe.call @f [#pipe.arena<0, 64>, #pipe.arena<64, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
  pipe.sequence backward {
    pipe.call @h [#pipe.arena<64, 64>, #pipe.arena<192, 64>] results(1) scratch(#pipe.arena<0, 0>)
  }
}
