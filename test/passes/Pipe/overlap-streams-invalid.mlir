// RUN: mgq-opt %s --pipe-overlap-streams --verify-diagnostics

// expected-error @below {{has no pipe.plan}}
module {
}
