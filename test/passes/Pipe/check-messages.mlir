// RUN: mgq-opt %s --pipe-check-messages --split-input-file --verify-diagnostics

// A send without a receive is an error.
pipe.rank @r0 stage(0) {
  // expected-error @below {{'pipe.send' op of @a has no receive on stage 1}}
  %0 = pipe.send @a micro_batch(0) slot(0) peer(1)
}
pipe.rank @r1 stage(1) {
}

// -----

// So is a receive without a send: here of another micro-batch.
pipe.rank @r0 stage(0) {
  // expected-error @below {{'pipe.send' op of @a has no receive on stage 1}}
  %0 = pipe.send @a micro_batch(0) slot(0) peer(1)
}
pipe.rank @r1 stage(1) {
  %0 = pipe.recv @a micro_batch(1) slot(0) peer(0)
}

// -----

// A message is sent once.
pipe.rank @r0 stage(0) {
  %0 = pipe.send @a micro_batch(0) slot(0) peer(1)
  // expected-error @below {{'pipe.send' op is a second one of @a for micro-batch 0}}
  %1 = pipe.send @a micro_batch(0) slot(0) peer(1)
}
pipe.rank @r1 stage(1) {
  %0 = pipe.recv @a micro_batch(0) slot(0) peer(0)
}

// -----

// Two ranks that each wait for the other before they send wait for ever.
pipe.rank @r0 stage(0) {
  %0 = pipe.recv @b micro_batch(0) slot(0) peer(1)
  // expected-error @below {{'pipe.forward' op of stage 0 waits for ever}}
  %1 = pipe.forward chunk(0) micro_batch(0) slot(0) after(%0)
  %2 = pipe.send @a micro_batch(0) slot(0) peer(1) after(%1)
}
pipe.rank @r1 stage(1) {
  %0 = pipe.recv @a micro_batch(0) slot(0) peer(0)
  %1 = pipe.forward chunk(1) micro_batch(0) slot(0) after(%0)
  %2 = pipe.send @b micro_batch(0) slot(0) peer(0) after(%1)
}

// -----

// Where each sends first, both come to the end; a rank may send to itself.
pipe.rank @r0 stage(0) {
  %0 = pipe.recv @b micro_batch(0) slot(0) peer(1)
  %1 = pipe.recv @c micro_batch(0) slot(0) peer(0)
  %2 = pipe.send @a micro_batch(0) slot(0) peer(1)
  %3 = pipe.send @c micro_batch(0) slot(0) peer(0)
  %4 = pipe.forward chunk(0) micro_batch(0) slot(0) after(%0, %1)
}
pipe.rank @r1 stage(1) {
  %0 = pipe.recv @a micro_batch(0) slot(0) peer(0)
  %1 = pipe.send @b micro_batch(0) slot(0) peer(0)
  %2 = pipe.forward chunk(1) micro_batch(0) slot(0) after(%0)
}

// -----

// All stages gather the same in one order.
pipe.rank @r0 stage(0) {
  %0 = pipe.all_gather chunk(0)
  %1 = pipe.all_gather chunk(1)
}
pipe.rank @r1 stage(1) {
  // expected-error @below {{'pipe.all_gather' op is number 0, but stages 0 and 1 do not gather the same in the same order}}
  %0 = pipe.all_gather chunk(1)
  %1 = pipe.all_gather chunk(0)
}

// -----

// A stage that does not take part is an error.
pipe.rank @r0 stage(0) {
  // expected-error @below {{'pipe.all_gather' op is number 0, but stages 0 and 1 do not gather the same in the same order}}
  %0 = pipe.all_gather chunk(0)
}
pipe.rank @r1 stage(1) {
}

// -----

// A gather needs all stages: one waits for a message before it, the other sends that after it.
pipe.rank @r0 stage(0) {
  %0 = pipe.recv @a micro_batch(0) slot(0) peer(1)
  // expected-error @below {{'pipe.forward' op of stage 0 waits for ever}}
  %1 = pipe.forward chunk(1) micro_batch(0) slot(0) after(%0)
  %2 = pipe.all_gather chunk(0)
}
pipe.rank @r1 stage(1) {
  %0 = pipe.all_gather chunk(0)
  %1 = pipe.forward chunk(0) micro_batch(0) slot(0) after(%0)
  %2 = pipe.send @a micro_batch(0) slot(0) peer(0) after(%1)
}

// -----

// Where it has begun on all, they come to the end.
pipe.rank @r0 stage(0) {
  %0 = pipe.all_gather chunk(0)
  %1 = pipe.recv @a micro_batch(0) slot(0) peer(1)
  %2 = pipe.forward chunk(1) micro_batch(0) slot(0) after(%1)
}
pipe.rank @r1 stage(1) {
  %0 = pipe.all_gather chunk(0)
  %1 = pipe.forward chunk(0) micro_batch(0) slot(0) after(%0)
  %2 = pipe.send @a micro_batch(0) slot(0) peer(0) after(%1)
}
