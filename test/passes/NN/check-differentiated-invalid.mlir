// RUN: mgq-opt %s --nn-check-differentiated --split-input-file --verify-diagnostics

// expected-error @below {{has no @train}}
module {
}

// -----

// expected-error @below {{'nn.param' op is trainable but has no gradient}}
nn.param @w trainable : tensor<4xf32> = "m"[0 : 16]
func.func @train(%x: tensor<f32>, %seed: tensor<f32> {nn.seed}) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

nn.param @w frozen : tensor<f32> = "m"[0 : 4]
// expected-error @below {{'func.func' op has a gradient of @w, which is not a trainable parameter}}
func.func @train(%x: tensor<f32>, %seed: tensor<f32> {nn.seed}) -> (tensor<f32>, tensor<f32> {nn.gradient = @w}) {
  return %x, %seed : tensor<f32>, tensor<f32>
}

// -----

// expected-note @below {{parameter declared here}}
nn.param @w trainable : tensor<4xf32> = "m"[0 : 16]
// expected-error @below {{'func.func' op has a gradient of type 'tensor<f32>', expected 'tensor<4xf32>'}}
func.func @train(%x: tensor<f32>, %seed: tensor<f32> {nn.seed}) -> (tensor<f32>, tensor<f32> {nn.gradient = @w}) {
  return %x, %seed : tensor<f32>, tensor<f32>
}

// -----

func.func @train(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{'nn.unary' op stands in @train, expected calls only}}
  %0 = nn.unary exp %x : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{'func.call' op has no phase, expected forward, backward or weight}}
  %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{'func.call' op has no instance of a layer}}
  %0 = call @f(%x) {nn.phase = "forward"} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  // expected-note @below {{backward call here}}
  %0 = call @f(%x) {nn.phase = "backward", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  // expected-error @below {{'func.call' op is a forward call after a backward call}}
  %1 = call @f(%x) {nn.phase = "forward", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}

// -----

func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{'func.call' op is a backward call that no trainable parameter needs}}
  %0 = call @f(%x) {nn.phase = "backward", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  return %x : tensor<f32>
}

// -----

func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  // expected-note @below {{weight call here}}
  %0 = call @f(%x) {nn.phase = "weight", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  // expected-error @below {{'func.call' op is a forward call after a weight call}}
  %1 = call @f(%x) {nn.phase = "forward", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}

// -----

func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{'func.call' op is a weight call that no trainable parameter needs}}
  %0 = call @f(%x) {nn.phase = "weight", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  return %x : tensor<f32>
}

// -----

// Another layer's call stands between.
func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  // expected-note @below {{backward call here}}
  %0 = call @f(%x) {nn.phase = "backward", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  %1 = call @f(%0) {nn.phase = "backward", nn.instance = "g"} : (tensor<f32>) -> tensor<f32>
  // expected-error @below {{'func.call' op is a weight call apart from the backward call of its instance}}
  %2 = call @f(%x) {nn.phase = "weight", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  return %1, %2 : tensor<f32>, tensor<f32>
}

// -----

// The weight call comes first.
func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  // expected-error @below {{'func.call' op is a weight call apart from the backward call of its instance}}
  %0 = call @f(%x) {nn.phase = "weight", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  // expected-note @below {{backward call here}}
  %1 = call @f(%x) {nn.phase = "backward", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}

// -----

func.func private @f(tensor<f32>) -> tensor<f32>
func.func @train(%x: tensor<f32>) -> tensor<f32> {
  // expected-note @below {{weight call here}}
  %0 = call @f(%x) {nn.phase = "weight", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  // expected-error @below {{'func.call' op takes a result of a weight call}}
  %1 = call @f(%0) {nn.phase = "backward", nn.instance = "g"} : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

nn.param @w trainable : tensor<f32> = "m"[0 : 4]
// expected-error @below {{'func.func' op has a gradient of @w that no backward or weight call gives}}
func.func @train(%x: tensor<f32>, %seed: tensor<f32> {nn.seed}) -> (tensor<f32>, tensor<f32> {nn.gradient = @w}) {
  return %x, %seed : tensor<f32>, tensor<f32>
}

// -----

nn.param @v trainable : tensor<f32> = "m"[0 : 4]
nn.param @w trainable : tensor<f32> = "m"[4 : 4]
func.func private @f(tensor<f32>) -> tensor<f32>
// expected-error @below {{'func.func' op returns one value as gradients of @v and @w}}
func.func @train(%x: tensor<f32>) -> (tensor<f32> {nn.gradient = @v}, tensor<f32> {nn.gradient = @w}) {
  %0 = call @f(%x) {nn.phase = "weight", nn.instance = "f"} : (tensor<f32>) -> tensor<f32>
  return %0, %0 : tensor<f32>, tensor<f32>
}
