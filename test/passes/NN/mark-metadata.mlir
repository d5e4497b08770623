// RUN: mgq-opt %s --nn-mark | FileCheck %s

// Without options the model's metadata says what trains; a backslash takes a
// comma or a star literally.
module attributes {nn.metadata = {mgq.trainable = "a\\,b,c\\*"}} {
  // CHECK: nn.param @"a,b" trainable
  nn.param @"a,b" : tensor<4xf32> = "m"[0 : 16]
  // CHECK: nn.param @"c*" trainable
  nn.param @"c*" : tensor<4xf32> = "m"[0 : 16]
  // CHECK: nn.param @cd frozen
  nn.param @cd : tensor<4xf32> = "m"[0 : 16]
  func.func @model(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<f32> {nn.output = "loss"}) {
    %a = nn.param_ref @"a,b" : tensor<4xf32>
    %b = nn.param_ref @"c*" : tensor<4xf32>
    %0 = nn.binary mul %x, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %1 = nn.binary sub %0, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = nn.reduce sum %1 axes [0] : (tensor<4xf32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
}
