// A model of five layers and a loss, one chunk on one stage of two replicas: the
// first layer is frozen, the last two share a parameter. Read by several tests.
module {
  nn.param @frozen frozen : tensor<16xf32> = "m.onnx"[0 : 64]
  nn.param @w1 trainable : tensor<16xf32> = "m.onnx"[64 : 64]
  nn.param @w2 trainable : tensor<16xf32> = "m.onnx"[128 : 64]
  nn.param @tied trainable : tensor<16xf32> = "m.onnx"[192 : 64]
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
    %1 = nn.param_ref @w1 : tensor<16xf32>
    %2 = nn.param_ref @w2 : tensor<16xf32>
    %3 = nn.param_ref @tied : tensor<16xf32>
    %a = call @f(%x, %0) {nn.instance = "one", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %b = call @f(%a, %1) {nn.instance = "two", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %c = call @f(%b, %2) {nn.instance = "three", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %d = call @f(%c, %3) {nn.instance = "four", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %e = call @f(%d, %3) {nn.instance = "five", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%e) {nn.instance = "loss", pipe.chunk = 0 : i64} : (tensor<16xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
  func.func @train(%x: tensor<16xf32> {nn.input = "x"}, %seed: tensor<f32> {nn.seed}) -> (tensor<f32> {nn.loss = "mean"}, tensor<16xf32> {nn.gradient = @w1}, tensor<16xf32> {nn.gradient = @w2}, tensor<16xf32> {nn.gradient = @tied}, tensor<16xf32> {nn.gradient = @tied}) {
    %0 = nn.param_ref @frozen : tensor<16xf32>
    %1 = nn.param_ref @w1 : tensor<16xf32>
    %2 = nn.param_ref @w2 : tensor<16xf32>
    %3 = nn.param_ref @tied : tensor<16xf32>
    %a = call @f(%x, %0) {nn.phase = "forward", nn.instance = "one", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %b = call @f(%a, %1) {nn.phase = "forward", nn.instance = "two", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %c = call @f(%b, %2) {nn.phase = "forward", nn.instance = "three", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %d = call @f(%c, %3) {nn.phase = "forward", nn.instance = "four", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %e = call @f(%d, %3) {nn.phase = "forward", nn.instance = "five", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %l = call @loss(%e) {nn.phase = "forward", nn.instance = "loss", pipe.chunk = 0 : i64} : (tensor<16xf32>) -> tensor<f32>
    %de = call @loss_grad(%seed, %e) {nn.phase = "backward", nn.instance = "loss", pipe.chunk = 0 : i64} : (tensor<f32>, tensor<16xf32>) -> tensor<16xf32>
    %dd, %dt2 = call @grad2(%de, %d, %3) {nn.phase = "backward", nn.instance = "five", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>)
    %dc, %dt1 = call @grad2(%dd, %c, %3) {nn.phase = "backward", nn.instance = "four", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>)
    %db, %dw2 = call @grad2(%dc, %b, %2) {nn.phase = "backward", nn.instance = "three", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>)
    %dw1 = call @grad(%db, %a) {nn.phase = "backward", nn.instance = "two", pipe.chunk = 0 : i64} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    return %l, %dw1, %dw2, %dt1, %dt2 : tensor<f32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>
  }
  pipe.plan one_f_one_b stages(1) replicas(2) micro_batches(2) {
    pipe.chunk 0 on [0] seconds [1.0, 2.0, 0.0, 0.0, 0.0] bytes [0, 0] backward
  }
}
