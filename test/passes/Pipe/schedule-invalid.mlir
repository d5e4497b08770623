// RUN: mgq-opt %s --pipe-schedule --verify-diagnostics

// A schedule needs a plan.
// expected-error @below {{has no pipe.plan}}
module {
}
