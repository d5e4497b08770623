// RUN: mgq-opt %s --pipe-schedule --split-input-file | FileCheck %s

// 1F1B: the first stage runs one micro-batch ahead of the last, which alternates;
// so it has two slots and the last one has one.
module {
  pipe.plan one_f_one_b stages(2) replicas(1) micro_batches(3) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward
    pipe.chunk 1 on [1] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward sends_gradient
  }
}
// CHECK-LABEL: pipe.rank @r0
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(0) slot(0)
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(1) slot(1)
// CHECK-NEXT: pipe.backward chunk(0) micro_batch(0) slot(0)
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(2) slot(0)
// CHECK-NEXT: pipe.backward chunk(0) micro_batch(1) slot(1)
// CHECK-NEXT: pipe.backward chunk(0) micro_batch(2) slot(0)
// CHECK-NEXT: pipe.combine
// CHECK-NEXT: pipe.optimizer
// CHECK-LABEL: pipe.rank @r1
// CHECK-NEXT: pipe.forward chunk(1) micro_batch(0) slot(0)
// CHECK-NEXT: pipe.backward chunk(1) micro_batch(0) slot(0)
// CHECK-NEXT: pipe.forward chunk(1) micro_batch(1) slot(0)
// CHECK-NEXT: pipe.backward chunk(1) micro_batch(1) slot(0)

// -----

// GPipe: all forward passes, then all backward passes, a slot for each.
module {
  pipe.plan gpipe stages(1) replicas(1) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward
  }
}
// CHECK-LABEL: pipe.rank @r0
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(0) slot(0)
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(1) slot(1)
// CHECK-NEXT: pipe.backward chunk(0) micro_batch(0) slot(0)
// CHECK-NEXT: pipe.backward chunk(0) micro_batch(1) slot(1)

// -----

// A frozen stage only runs forward; its slots turn over when the stage that
// reads them has begun.
module {
  pipe.plan one_f_one_b stages(2) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
    pipe.chunk 1 on [1] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward
  }
}
// CHECK-LABEL: pipe.rank @r0
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(0) slot(0)
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(1)
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(2)
// CHECK-NEXT: pipe.forward chunk(0) micro_batch(3)
// CHECK-NEXT: pipe.combine
// CHECK-LABEL: pipe.rank @r1

// -----

// zero_bubble: each weight gradient is an op of its own, after its backward.
module {
  pipe.plan zero_bubble stages(2) replicas(1) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 1.0, 0.0, 0.0] bytes [8, 4] backward weight
    pipe.chunk 1 on [1] seconds [1.0, 1.0, 1.0, 0.0, 0.0] bytes [8, 4] backward weight sends_gradient
  }
}
// CHECK-LABEL: pipe.rank @r0
// CHECK: pipe.backward chunk(0) micro_batch(0) slot([[S:[0-9]]])
// CHECK: pipe.weight_grad chunk(0) micro_batch(0) slot([[S]])
// CHECK: pipe.weight_grad chunk(0) micro_batch(1)
// CHECK-NEXT: pipe.combine
// CHECK-LABEL: pipe.rank @r1

// -----

// interleaved: a rank has several chunks. With replicas gradients are summed
// over them before the optimizer.
module {
  pipe.plan interleaved stages(2) replicas(2) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward
    pipe.chunk 1 on [1] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward sends_gradient
    pipe.chunk 2 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward sends_gradient
    pipe.chunk 3 on [1] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward sends_gradient
  }
}
// CHECK-LABEL: pipe.rank @r0
// CHECK: pipe.forward chunk(2) micro_batch(0)
// CHECK: pipe.backward chunk(0) micro_batch(1)
// CHECK: pipe.combine
// CHECK-NEXT: pipe.all_reduce
// CHECK-NEXT: pipe.optimizer

// -----

// A frozen prefix that several stages run by turns.
module {
  pipe.plan interleaved stages(2) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0, 1] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
    pipe.chunk 1 on [0] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward
    pipe.chunk 2 on [1] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward sends_gradient
  }
}
// CHECK-LABEL: pipe.rank @r0
// CHECK-NOT: pipe.forward chunk(0) micro_batch({{[13]}})
// CHECK-LABEL: pipe.rank @r1
// CHECK-NOT: pipe.forward chunk(0) micro_batch({{[02]}})
// CHECK: pipe.optimizer
