// RUN: mgq-opt %s --split-input-file --sparsify-gradients | FileCheck %s
// RUN: mgq-opt %s --split-input-file --sparsify-gradients=compression=sparse24-int8 | FileCheck %s --check-prefix=INT8
// RUN: mgq-opt %s --split-input-file --sparsify-gradients=compression=bf16 | FileCheck %s --check-prefix=BF16
// RUN: not mgq-opt %s --split-input-file --sparsify-gradients=compression=topk 2>&1 | FileCheck %s --check-prefix=ERROR
// ERROR: sparsify-gradients: compression is 'topk', expected bf16, sparse24 or sparse24-int8

// Every sum over replicas is compressed, and its rank keeps residuals. Other
// ops, and their events, stay.
module {
  pipe.plan one_f_one_b stages(2) replicas(2) micro_batches(1) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
    pipe.chunk 1 on [1] seconds [1.0, 1.0, 0.0, 0.0, 0.0] bytes [8, 0] backward
  }
  // A stage without a sum keeps nothing.
  // CHECK-LABEL: pipe.rank @r0
  // CHECK-NEXT: pipe.forward chunk(0)
  // CHECK-NOT: place_residuals
  pipe.rank @r0 stage(0) {
    %0 = pipe.forward chunk(0) micro_batch(0) slot(0)
    %1 = pipe.combine
    %2 = pipe.optimizer
  }
  // CHECK-LABEL: pipe.rank @r1
  // CHECK-NEXT: pipe.place_residuals{{$}}
  // CHECK-NEXT: pipe.forward chunk(1)
  // CHECK: %[[C:.*]] = pipe.combine
  // CHECK-NEXT: %[[A:.*]] = pipe.all_reduce after(%[[C]]) compress sparse24
  // CHECK-NEXT: pipe.all_reduce at #pipe.arena<64, 64> compress sparse24
  // CHECK-NEXT: pipe.optimizer after(%[[A]])
  // INT8-COUNT-2: pipe.all_reduce {{.*}} compress sparse24_int8
  // BF16-COUNT-2: pipe.all_reduce {{.*}} compress bf16
  pipe.rank @r1 stage(1) {
    %0 = pipe.forward chunk(1) micro_batch(0) slot(0)
    %1 = pipe.backward chunk(1) micro_batch(0) slot(0)
    %2 = pipe.combine
    %3 = pipe.all_reduce after(%2)
    %4 = pipe.all_reduce at #pipe.arena<64, 64>
    %5 = pipe.optimizer after(%3)
  }
}

// -----

// One replica sums nothing: nothing changes.
module {
  // CHECK-LABEL: pipe.rank @r0
  // CHECK-NEXT: pipe.combine
  // CHECK-NEXT: pipe.optimizer
  // CHECK-NEXT: }
  pipe.rank @r0 stage(0) {
    %0 = pipe.combine
    %1 = pipe.optimizer
  }
}
