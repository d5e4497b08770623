// A model of three layers and a loss on three stages: the first is frozen, the
// other two share one trainable parameter. Read by several tests.
module {
  nn.param @frozen frozen : tensor<16xf32> = "m.onnx"[0 : 64]
  nn.param @w trainable : tensor<16xf32> = "m.onnx"[64 : 64]
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.scratch_bytes = 100 : i64} { llvm.return }
    llvm.func @loss(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
    llvm.func @loss_grad(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
    llvm.func @grad(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
    llvm.func @grad2(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @loss(tensor<16xf32>) -> tensor<f32> attributes {nn.layer}
  func.func private @loss_grad(tensor<f32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @grad(tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @grad2(tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) attributes {nn.layer}
  func.func @model(%x: tensor<16xf32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %0 = nn.param_ref @frozen : tensor<16xf32>
    %1 = nn.param_ref @w : tensor<16xf32>
    %a = call @f(%x, %0) {nn.instance = "one", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %b = call @f(%a, %1) {nn.instance = "two", pipe.chunk = 1 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %c = call @f(%b, %1) {nn.instance = "three", pipe.chunk = 2 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%c) {nn.instance = "loss", pipe.chunk = 2 : i64} : (tensor<16xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
  func.func @train(%x: tensor<16xf32> {nn.input = "x"}, %seed: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}, tensor<16xf32> {nn.gradient = @w}, tensor<16xf32> {nn.gradient = @w}) {
    %0 = nn.param_ref @frozen : tensor<16xf32>
    %1 = nn.param_ref @w : tensor<16xf32>
    %a = call @f(%x, %0) {nn.phase = "forward", nn.instance = "one", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %b = call @f(%a, %1) {nn.phase = "forward", nn.instance = "two", pipe.chunk = 1 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %c = call @f(%b, %1) {nn.phase = "forward", nn.instance = "three", pipe.chunk = 2 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%c) {nn.phase = "forward", nn.instance = "loss", pipe.chunk = 2 : i64} : (tensor<16xf32>) -> tensor<f32>
    %dc = call @loss_grad(%seed, %c) {nn.phase = "backward", nn.instance = "loss", pipe.chunk = 2 : i64} : (tensor<f32>, tensor<16xf32>) -> tensor<16xf32>
    %db, %dw2 = call @grad2(%dc, %b, %1) {nn.phase = "backward", nn.instance = "three", pipe.chunk = 2 : i64} : (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>)
    %dw1 = call @grad(%db, %a) {nn.phase = "backward", nn.instance = "two", pipe.chunk = 1 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    return %l, %dw1, %dw2 : tensor<f32>, tensor<16xf32>, tensor<16xf32>
  }
  pipe.plan one_f_one_b stages(3) replicas(1) micro_batches(4) {
    pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.1, 0.0] bytes [0, 0]
    pipe.chunk 1 on [1] seconds [1.0, 1.0, 0.0, 0.1, 0.0] bytes [64, 0] backward
    pipe.chunk 2 on [2] seconds [1.0, 2.0, 0.0, 0.0, 0.1] bytes [128, 0] backward sends_gradient
  }
}
