// A model of five layers and a loss on two stages: the first three are frozen, with
// packed weights, on both; the other two share one trainable parameter.
module {
  nn.param @p0 frozen : tensor<16xf32> = "m.onnx"[0 : 64]
  nn.param @p1 frozen : tensor<16xf32> = "m.onnx"[128 : 64]
  nn.param @p2 frozen : tensor<16xf32> = "m.onnx"[192 : 64]
  nn.param @w trainable : tensor<16xf32> = "m.onnx"[64 : 64]
  module @kernels {
    llvm.func @f(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.scratch_bytes = 100 : i64} { llvm.return }
    llvm.func @pack(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.args = [memref<16xf32>, memref<50xf32>]} { llvm.return }
    llvm.func @g(%args: !llvm.ptr, %scratch: !llvm.ptr) attributes {nn.packed = [unit, @pack, unit]} { llvm.return }
    llvm.func @loss(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
    llvm.func @loss_grad(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
    llvm.func @grad(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
    llvm.func @grad2(%args: !llvm.ptr, %scratch: !llvm.ptr) { llvm.return }
  }
  func.func private @f(tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @g(tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @loss(tensor<16xf32>) -> tensor<f32> attributes {nn.layer}
  func.func private @loss_grad(tensor<f32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @grad(tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32> attributes {nn.layer}
  func.func private @grad2(tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) attributes {nn.layer}
  func.func @model(%x: tensor<16xf32> {nn.input = "x"}) -> (tensor<f32> {nn.loss = "mean", nn.output = "loss"}) {
    %p0 = nn.param_ref @p0 : tensor<16xf32>
    %p1 = nn.param_ref @p1 : tensor<16xf32>
    %p2 = nn.param_ref @p2 : tensor<16xf32>
    %1 = nn.param_ref @w : tensor<16xf32>
    %a0 = call @g(%x, %p0) {nn.instance = "p0", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %a1 = call @g(%a0, %p1) {nn.instance = "p1", pipe.chunk = 1 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %a = call @g(%a1, %p2) {nn.instance = "p2", pipe.chunk = 2 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %b = call @f(%a, %1) {nn.instance = "two", pipe.chunk = 3 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %c = call @f(%b, %1) {nn.instance = "three", pipe.chunk = 4 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%c) {nn.instance = "loss", pipe.chunk = 4 : i64} : (tensor<16xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
  func.func @train(%x: tensor<16xf32> {nn.input = "x"}, %seed: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}, tensor<16xf32> {nn.gradient = @w}, tensor<16xf32> {nn.gradient = @w}) {
    %p0 = nn.param_ref @p0 : tensor<16xf32>
    %p1 = nn.param_ref @p1 : tensor<16xf32>
    %p2 = nn.param_ref @p2 : tensor<16xf32>
    %1 = nn.param_ref @w : tensor<16xf32>
    %a0 = call @g(%x, %p0) {nn.phase = "forward", nn.instance = "p0", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %a1 = call @g(%a0, %p1) {nn.phase = "forward", nn.instance = "p1", pipe.chunk = 1 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %a = call @g(%a1, %p2) {nn.phase = "forward", nn.instance = "p2", pipe.chunk = 2 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %b = call @f(%a, %1) {nn.phase = "forward", nn.instance = "two", pipe.chunk = 3 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %c = call @f(%b, %1) {nn.phase = "forward", nn.instance = "three", pipe.chunk = 4 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%c) {nn.phase = "forward", nn.instance = "loss", pipe.chunk = 4 : i64} : (tensor<16xf32>) -> tensor<f32>
    %dc = call @loss_grad(%seed, %c) {nn.phase = "backward", nn.instance = "loss", pipe.chunk = 4 : i64} : (tensor<f32>, tensor<16xf32>) -> tensor<16xf32>
    %db, %dw2 = call @grad2(%dc, %b, %1) {nn.phase = "backward", nn.instance = "three", pipe.chunk = 4 : i64} : (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>)
    %dw1 = call @grad(%db, %a) {nn.phase = "backward", nn.instance = "two", pipe.chunk = 3 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    return %l, %dw1, %dw2 : tensor<f32>, tensor<16xf32>, tensor<16xf32>
  }
  pipe.plan one_f_one_b stages(2) replicas(1) micro_batches(3) {
    pipe.chunk 0 on [0, 1] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
    pipe.chunk 1 on [0, 1] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
    pipe.chunk 2 on [0, 1] seconds [1.0, 0.0, 0.0, 0.0, 0.0] bytes [0, 0]
    pipe.chunk 3 on [0] seconds [1.0, 1.0, 0.0, 0.1, 0.0] bytes [64, 0] backward
    pipe.chunk 4 on [1] seconds [1.0, 2.0, 0.0, 0.0, 0.1] bytes [128, 0] backward sends_gradient
  }
}
