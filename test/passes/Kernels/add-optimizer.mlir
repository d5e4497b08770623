// RUN: mgq-opt %s --kern-add-optimizer | FileCheck %s

// The signatures of rt.h; buffers do not overlap.
// CHECK: llvm.func @mgq_adamw(%{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: i64)
// CHECK: llvm.func @mgq_sq_norm(%{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: i64) -> f64
// CHECK: llvm.func @mgq_accumulate(%{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: i64)
module {
}
