// Gradients of data movement.

func.func private @reshape(%x: tensor<2x3x4xf64>) -> tensor<4x6xf64> attributes {nn.layer} {
  %r = nn.reshape %x : (tensor<2x3x4xf64>) -> tensor<4x6xf64>
  return %r : tensor<4x6xf64>
}

func.func private @transpose(%x: tensor<2x3x4xf64>) -> tensor<4x2x3xf64> attributes {nn.layer} {
  %r = nn.transpose %x [2, 0, 1] : (tensor<2x3x4xf64>) -> tensor<4x2x3xf64>
  return %r : tensor<4x2x3xf64>
}

func.func private @broadcast(%x: tensor<3x1xf64>) -> tensor<2x3x4xf64> attributes {nn.layer} {
  %r = nn.broadcast %x : (tensor<3x1xf64>) -> tensor<2x3x4xf64>
  return %r : tensor<2x3x4xf64>
}

func.func private @broadcast_scalar(%x: tensor<f64>) -> tensor<2x1x3xf64> attributes {nn.layer} {
  %r = nn.broadcast %x : (tensor<f64>) -> tensor<2x1x3xf64>
  return %r : tensor<2x1x3xf64>
}

func.func private @slice(%x: tensor<2x3x4xf64>) -> tensor<2x2x2xf64> attributes {nn.layer} {
  %r = nn.slice %x [0, 1, 0] to [2, 3, 4] by [1, 1, 3] : (tensor<2x3x4xf64>) -> tensor<2x2x2xf64>
  return %r : tensor<2x2x2xf64>
}

// Strides that walk down.
func.func private @slice_negative(%x: tensor<5x7xf64>) -> tensor<4x3xf64> attributes {nn.layer} {
  %r = nn.slice %x [4, 5] to [0, -1] by [-1, -2] : (tensor<5x7xf64>) -> tensor<4x3xf64>
  return %r : tensor<4x3xf64>
}

func.func private @slice_empty(%x: tensor<5xf64>) -> tensor<0xf64> attributes {nn.layer} {
  %r = nn.slice %x [2] to [2] by [1] : (tensor<5xf64>) -> tensor<0xf64>
  return %r : tensor<0xf64>
}

func.func private @pad(%x: tensor<2x3xf64>, %v: tensor<f64>) -> tensor<3x7xf64> attributes {nn.layer} {
  %r = nn.pad %x, %v [1, 0], [0, 2] interior [0, 1] : (tensor<2x3xf64>, tensor<f64>) -> tensor<3x7xf64>
  return %r : tensor<3x7xf64>
}

func.func private @concat(%a: tensor<2x1xf64>, %b: tensor<2x3xf64>, %c: tensor<2x0xf64>) -> tensor<2x4xf64> attributes {nn.layer} {
  %r = nn.concat %a, %b, %c axis 1 : (tensor<2x1xf64>, tensor<2x3xf64>, tensor<2x0xf64>) -> tensor<2x4xf64>
  return %r : tensor<2x4xf64>
}

// Indices that repeat, and one from the end.
func.func private @gather(%x: tensor<2x3x2xf64>) -> tensor<2x2x2x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -1]]> : tensor<2x2xi64>
  %r = nn.gather %x, %i axis 1 : (tensor<2x3x2xf64>, tensor<2x2xi64>) -> tensor<2x2x2x2xf64>
  return %r : tensor<2x2x2x2xf64>
}

func.func private @gather_rows(%x: tensor<4x3xf64>) -> tensor<5x3xf64> attributes {nn.layer} {
  %i = nn.constant dense<[3, 1, 1, 0, -2]> : tensor<5xi32>
  %r = nn.gather %x, %i axis 0 : (tensor<4x3xf64>, tensor<5xi32>) -> tensor<5x3xf64>
  return %r : tensor<5x3xf64>
}

func.func private @gather_elements(%x: tensor<3x2xf64>) -> tensor<2x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -1]]> : tensor<2x2xi64>
  %r = nn.gather_elements %x, %i axis 0 : (tensor<3x2xf64>, tensor<2x2xi64>) -> tensor<2x2xf64>
  return %r : tensor<2x2xf64>
}

func.func private @gather_nd(%x: tensor<3x3x2xf64>) -> tensor<2x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -1]]> : tensor<2x2xi64>
  %r = nn.gather_nd %x, %i batch_dims 0 : (tensor<3x3x2xf64>, tensor<2x2xi64>) -> tensor<2x2xf64>
  return %r : tensor<2x2xf64>
}

func.func private @gather_nd_batch(%x: tensor<2x3x2xf64>) -> tensor<2x4x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[[0], [2], [2], [1]], [[1], [1], [-1], [0]]]> : tensor<2x4x1xi64>
  %r = nn.gather_nd %x, %i batch_dims 1 : (tensor<2x3x2xf64>, tensor<2x4x1xi64>) -> tensor<2x4x2xf64>
  return %r : tensor<2x4x2xf64>
}

// Unique indices: of several updates each counts, as in PyTorch.
func.func private @scatter_elements_replace(%x: tensor<3x2xf64>, %u: tensor<2x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -2]]> : tensor<2x2xi64>
  %r = nn.scatter_elements replace %x, %i, %u axis 0 : (tensor<3x2xf64>, tensor<2x2xi64>, tensor<2x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_nd_replace(%x: tensor<3x2xf64>, %u: tensor<2x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0], [2]]> : tensor<2x1xi64>
  %r = nn.scatter_nd replace %x, %i, %u : (tensor<3x2xf64>, tensor<2x1xi64>, tensor<2x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_elements_add(%x: tensor<3x2xf64>, %u: tensor<2x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -1]]> : tensor<2x2xi64>
  %r = nn.scatter_elements add %x, %i, %u axis 0 : (tensor<3x2xf64>, tensor<2x2xi64>, tensor<2x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_nd_add(%x: tensor<3x2xf64>, %u: tensor<3x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0], [2], [-1]]> : tensor<3x1xi64>
  %r = nn.scatter_nd add %x, %i, %u : (tensor<3x2xf64>, tensor<3x1xi64>, tensor<3x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_elements_mul(%x: tensor<3x2xf64>, %u: tensor<2x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -1]]> : tensor<2x2xi64>
  %r = nn.scatter_elements mul %x, %i, %u axis 0 : (tensor<3x2xf64>, tensor<2x2xi64>, tensor<2x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_nd_mul(%x: tensor<3x2xf64>, %u: tensor<3x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0], [2], [-1]]> : tensor<3x1xi64>
  %r = nn.scatter_nd mul %x, %i, %u : (tensor<3x2xf64>, tensor<3x1xi64>, tensor<3x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_elements_max(%x: tensor<3x2xf64>, %u: tensor<2x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -1]]> : tensor<2x2xi64>
  %r = nn.scatter_elements max %x, %i, %u axis 0 : (tensor<3x2xf64>, tensor<2x2xi64>, tensor<2x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_nd_max(%x: tensor<3x2xf64>, %u: tensor<3x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0], [2], [-1]]> : tensor<3x1xi64>
  %r = nn.scatter_nd max %x, %i, %u : (tensor<3x2xf64>, tensor<3x1xi64>, tensor<3x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_elements_min(%x: tensor<3x2xf64>, %u: tensor<2x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0, 2], [2, -1]]> : tensor<2x2xi64>
  %r = nn.scatter_elements min %x, %i, %u axis 0 : (tensor<3x2xf64>, tensor<2x2xi64>, tensor<2x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_nd_min(%x: tensor<3x2xf64>, %u: tensor<3x2xf64>) -> tensor<3x2xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[0], [2], [-1]]> : tensor<3x1xi64>
  %r = nn.scatter_nd min %x, %i, %u : (tensor<3x2xf64>, tensor<3x1xi64>, tensor<3x2xf64>) -> tensor<3x2xf64>
  return %r : tensor<3x2xf64>
}

func.func private @scatter_nd_batch(%x: tensor<2x3xf64>, %u: tensor<2x2xf64>) -> tensor<2x3xf64> attributes {nn.layer} {
  %i = nn.constant dense<[[[0], [0]], [[2], [1]]]> : tensor<2x2x1xi64>
  %r = nn.scatter_nd add %x, %i, %u {batch_dims = 1 : i64} : (tensor<2x3xf64>, tensor<2x2x1xi64>, tensor<2x2xf64>) -> tensor<2x3xf64>
  return %r : tensor<2x3xf64>
}

// The last row of the source has no place.
func.func private @masked_scatter(%x: tensor<2x3x2xf64>, %s: tensor<4x2xf64>) -> tensor<2x3x2xf64> attributes {nn.layer} {
  %m = nn.constant dense<[[true, false, true], [false, true, false]]> : tensor<2x3xi1>
  %r = nn.masked_scatter %x, %m, %s : (tensor<2x3x2xf64>, tensor<2x3xi1>, tensor<4x2xf64>) -> tensor<2x3x2xf64>
  return %r : tensor<2x3x2xf64>
}

func.func private @masked_gather(%x: tensor<2x3x2xf64>) -> tensor<4x2xf64> attributes {nn.layer} {
  %m = nn.constant dense<[[true, false, true], [false, true, false]]> : tensor<2x3xi1>
  %r = nn.masked_gather %x, %m : (tensor<2x3x2xf64>, tensor<2x3xi1>) -> tensor<4x2xf64>
  return %r : tensor<4x2xf64>
}
