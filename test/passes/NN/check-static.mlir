// RUN: mgq-opt %s --nn-check-static --verify-diagnostics

// One error on the first op whose size depends on data, a note on the others.
func.func @f(%m: tensor<2x6xi1>) -> tensor<?x2xi64> {
  // expected-error @below {{not supported yet: NonZero makes a size depend on data; supported: NonZero of a mask whose elements ScatterND replaces (torch.masked_scatter)}}
  %0 = nn.non_zero %m : (tensor<2x6xi1>) -> tensor<2x?xi64>
  // expected-note @below {{so does transpose}}
  %1 = nn.transpose %0 [1, 0] : (tensor<2x?xi64>) -> tensor<?x2xi64>
  return %1 : tensor<?x2xi64>
}
