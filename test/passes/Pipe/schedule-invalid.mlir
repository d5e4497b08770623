// RUN: mgq-opt %s --pipe-schedule=micro-batches=0 --verify-diagnostics

// A step has at least one micro-batch.
// expected-error @below {{has 0 micro-batches a step, expected 1 or more}}
module {
}
