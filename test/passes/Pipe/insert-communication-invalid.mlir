// RUN: mgq-opt %s --pipe-insert-communication --verify-diagnostics

// Communication needs a plan.
// expected-error @below {{has no pipe.plan}}
module {
}
