// RUN: not mgq-opt %s --nn-mark="trainable=w freeze=*" 2>&1 | FileCheck %s --check-prefix=ALL
// RUN: not mgq-opt %s --nn-mark="trainable=[w" 2>&1 | FileCheck %s --check-prefix=GLOB

// ALL: error: nothing is to be trained: --freeze takes out all that --trainable names
// GLOB: error: '[w' is not a glob: invalid glob pattern, unmatched '['
module {
  nn.param @w : tensor<4xf32> = "m"[0 : 16]
  func.func @model() {
    return
  }
}
