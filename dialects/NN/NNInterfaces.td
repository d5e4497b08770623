#ifndef MGQ_NN_INTERFACES_TD
#define MGQ_NN_INTERFACES_TD

include "mlir/IR/OpBase.td"

def NN_DifferentiableOpInterface : OpInterface<"DifferentiableOpInterface"> {
  let cppNamespace = "::mgq::nn";
  let description = [{
    An op with a vector-Jacobian product, written in `nn` ops. An op without
    this interface has no gradient (its results are integers, booleans or
    piecewise constant).
  }];
  let methods = [
    InterfaceMethod<[{
        Builds the gradients of the operands marked in `needed`.

        `resultGradients` has one value per result, null where nothing flows
        back. `operandGradients` has one slot per operand, null on entry; the
        implementation fills those that are needed, each with its operand's
        type. A slot left null means a gradient of zero. May use operands and
        results of the op: what it uses becomes a residual.
      }],
      "::llvm::LogicalResult", "buildGradient",
      (ins "::mlir::OpBuilder &":$builder,
           "::mlir::ValueRange":$resultGradients,
           "const ::llvm::BitVector &":$needed,
           "::llvm::MutableArrayRef<::mlir::Value>":$operandGradients)>
  ];
}

def NN_CostOpInterface : OpInterface<"CostOpInterface"> {
  let cppNamespace = "::mgq::nn";
  let description = [{
    Work of an op for the planner: a multiply-add is 2 FLOP, bytes are those of
    operands and results.
  }];
  let methods = [
    InterfaceMethod<"Floating-point operations.", "int64_t", "getFlops">,
    InterfaceMethod<"Bytes read and written.", "int64_t", "getBytes">
  ];
}

#endif // MGQ_NN_INTERFACES_TD
