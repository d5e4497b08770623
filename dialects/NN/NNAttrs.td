#ifndef MGQ_NN_ATTRS_TD
#define MGQ_NN_ATTRS_TD

include "dialects/NN/NNDialect.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

class NN_Enum<string name, string summary, list<I32EnumAttrCase> cases> :
    I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::mgq::nn";
  let genSpecializedAttr = 0;
}

def NN_UnaryKind : NN_Enum<"UnaryKind", "elementwise function of one operand", [
  I32EnumAttrCase<"Abs", 0, "abs">,
  I32EnumAttrCase<"Neg", 1, "neg">,
  I32EnumAttrCase<"Sign", 2, "sign">,
  I32EnumAttrCase<"Ceil", 3, "ceil">,
  I32EnumAttrCase<"Floor", 4, "floor">,
  I32EnumAttrCase<"Round", 5, "round">,           // half to even
  I32EnumAttrCase<"Sqrt", 6, "sqrt">,
  I32EnumAttrCase<"Rsqrt", 7, "rsqrt">,
  I32EnumAttrCase<"Reciprocal", 8, "reciprocal">,
  I32EnumAttrCase<"Exp", 9, "exp">,
  I32EnumAttrCase<"Log", 10, "log">,
  I32EnumAttrCase<"Sin", 11, "sin">,
  I32EnumAttrCase<"Cos", 12, "cos">,
  I32EnumAttrCase<"Tan", 13, "tan">,
  I32EnumAttrCase<"Asin", 14, "asin">,
  I32EnumAttrCase<"Acos", 15, "acos">,
  I32EnumAttrCase<"Atan", 16, "atan">,
  I32EnumAttrCase<"Sinh", 17, "sinh">,
  I32EnumAttrCase<"Cosh", 18, "cosh">,
  I32EnumAttrCase<"Asinh", 19, "asinh">,
  I32EnumAttrCase<"Acosh", 20, "acosh">,
  I32EnumAttrCase<"Atanh", 21, "atanh">,
  I32EnumAttrCase<"Tanh", 22, "tanh">,
  I32EnumAttrCase<"Erf", 23, "erf">,
  I32EnumAttrCase<"Sigmoid", 24, "sigmoid">,
  I32EnumAttrCase<"Relu", 25, "relu">,
  I32EnumAttrCase<"Gelu", 26, "gelu">,            // x Phi(x), by erf
  I32EnumAttrCase<"GeluTanh", 27, "gelu_tanh">,   // tanh approximation
  I32EnumAttrCase<"Silu", 28, "silu">,            // x sigmoid(x)
  I32EnumAttrCase<"Softplus", 29, "softplus">,
  I32EnumAttrCase<"Not", 30, "not">,              // logical on i1, else bitwise
  I32EnumAttrCase<"IsNan", 31, "is_nan">,         // result i1
  I32EnumAttrCase<"IsInf", 32, "is_inf">          // result i1, either sign
]>;
def NN_UnaryKindAttr : EnumAttr<NN_Dialect, NN_UnaryKind, "unary">;

def NN_BinaryKind : NN_Enum<"BinaryKind", "elementwise function of two operands", [
  I32EnumAttrCase<"Add", 0, "add">,
  I32EnumAttrCase<"Sub", 1, "sub">,
  I32EnumAttrCase<"Mul", 2, "mul">,
  I32EnumAttrCase<"Div", 3, "div">,     // integers: toward zero
  I32EnumAttrCase<"Pow", 4, "pow">,     // exponent may have another type
  I32EnumAttrCase<"Max", 5, "max">,     // NaN wins
  I32EnumAttrCase<"Min", 6, "min">,
  I32EnumAttrCase<"Mod", 7, "mod">,     // sign of the divisor
  I32EnumAttrCase<"Rem", 8, "rem">,     // sign of the dividend (C fmod)
  I32EnumAttrCase<"And", 9, "and">,
  I32EnumAttrCase<"Or", 10, "or">,
  I32EnumAttrCase<"Xor", 11, "xor">,
  I32EnumAttrCase<"Shl", 12, "shl">,
  I32EnumAttrCase<"Shr", 13, "shr">     // signed: copies of the sign come in
]>;
def NN_BinaryKindAttr : EnumAttr<NN_Dialect, NN_BinaryKind, "binary">;

def NN_ComparePredicate : NN_Enum<"ComparePredicate", "comparison of two elements", [
  I32EnumAttrCase<"Eq", 0, "eq">,
  I32EnumAttrCase<"Ne", 1, "ne">,
  I32EnumAttrCase<"Lt", 2, "lt">,
  I32EnumAttrCase<"Le", 3, "le">,
  I32EnumAttrCase<"Gt", 4, "gt">,
  I32EnumAttrCase<"Ge", 5, "ge">
]>;
def NN_ComparePredicateAttr : EnumAttr<NN_Dialect, NN_ComparePredicate, "compare">;

def NN_ReduceKind : NN_Enum<"ReduceKind", "how elements are combined", [
  I32EnumAttrCase<"Sum", 0, "sum">,
  I32EnumAttrCase<"Prod", 1, "prod">,
  I32EnumAttrCase<"Max", 2, "max">,
  I32EnumAttrCase<"Min", 3, "min">
]>;
def NN_ReduceKindAttr : EnumAttr<NN_Dialect, NN_ReduceKind, "reduce">;

def NN_ScatterKind : NN_Enum<"ScatterKind", "how an update meets the element it hits", [
  I32EnumAttrCase<"Replace", 0, "replace">,
  I32EnumAttrCase<"Add", 1, "add">,
  I32EnumAttrCase<"Mul", 2, "mul">,
  I32EnumAttrCase<"Max", 3, "max">,
  I32EnumAttrCase<"Min", 4, "min">
]>;
def NN_ScatterKindAttr : EnumAttr<NN_Dialect, NN_ScatterKind, "scatter">;

def NN_PoolKind : NN_Enum<"PoolKind", "how a window is combined", [
  I32EnumAttrCase<"Max", 0, "max">,
  I32EnumAttrCase<"Average", 1, "average">
]>;
def NN_PoolKindAttr : EnumAttr<NN_Dialect, NN_PoolKind, "pool">;

def NN_Trainability : NN_Enum<"Trainability", "whether training changes a parameter", [
  I32EnumAttrCase<"Frozen", 0, "frozen">,
  I32EnumAttrCase<"Trainable", 1, "trainable">
]>;
def NN_TrainabilityAttr : EnumAttr<NN_Dialect, NN_Trainability, "trainability">;

#endif // MGQ_NN_ATTRS_TD
