// RUN: mgq-opt %s --nn-outline --verify-diagnostics

// expected-error @below {{the module has no function @model}}
module {
}
