// RUN: mgq-opt %s --nn-differentiate --split-input-file --verify-diagnostics

// An op without a gradient is named where one is needed.
nn.param @w trainable : tensor<4xf32> = "m"[0 : 16]
func.func private @loss(%w: tensor<4xf32>, %labels: tensor<2xi64>) -> tensor<f32> attributes {nn.layer} {
  // expected-error @below {{not supported yet: gradient of nn.label_weights}}
  %0 = nn.label_weights %labels weight %w : (tensor<2xi64>, tensor<4xf32>) -> tensor<2xf32>
  %1 = nn.reduce sum %0 axes [0] : (tensor<2xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func @model(%labels: tensor<2xi64>) -> (tensor<f32> {nn.loss = "mean"}) {
  %w = nn.param_ref @w : tensor<4xf32>
  %0 = call @loss(%w, %labels) : (tensor<4xf32>, tensor<2xi64>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @model(%x: tensor<f32>) -> (tensor<f32> {nn.loss = "mean"}) {
  // expected-error @below {{'nn.unary' op stands in @model, expected calls of layer functions only}}
  %0 = nn.unary exp %x : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error @below {{has no @model with a loss to differentiate}}
module {
}
