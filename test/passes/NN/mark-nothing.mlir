// RUN: mgq-opt %s --nn-mark --verify-diagnostics

// Neither option nor metadata.
// expected-error @below {{nothing is to be trained: give --trainable=GLOB[,...] or the model's metadata 'mgq.trainable'}}
module {
  func.func @model() {
    return
  }
}
