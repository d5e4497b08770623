// RUN: mgq-opt %s --pipe-partition-stages=stages=2 --verify-diagnostics

// More stages than one have to wait.
// expected-error @below {{not supported yet: 2 stages; supported: 1}}
module {
}
