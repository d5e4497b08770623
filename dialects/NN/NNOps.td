#ifndef MGQ_NN_OPS_TD
#define MGQ_NN_OPS_TD

include "dialects/NN/NNAttrs.td"
include "dialects/NN/NNDialect.td"
include "dialects/NN/NNInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

//===----------------------------------------------------------------------===//
// Base classes
//===----------------------------------------------------------------------===//

defvar NN_Tensor = AnyRankedTensor;
def NN_FloatTensor : RankedTensorOf<[F64, F32, F16, BF16]>;
def NN_IntTensor : RankedTensorOf<[AnyInteger]>;
def NN_IndexTensor : RankedTensorOf<[I64, I32]>;
def NN_BoolTensor : RankedTensorOf<[I1]>;
defvar NN_F64Attr = F64Attr;

/// A pure op. Cost comes with the interface; NNCosts.cpp implements it.
class NN_PureOp<string mnemonic, list<Trait> traits = []> :
    NN_Op<mnemonic, !listconcat([Pure, DeclareOpInterfaceMethods<NN_CostOpInterface>], traits)>;

/// A pure op whose result types follow from its operands and attributes
/// (NNTypes.cpp).
class NN_InferredOp<string mnemonic, list<Trait> traits = []> :
    NN_PureOp<mnemonic, !listconcat([InferTypeOpAdaptor], traits)>;

defvar NN_Differentiable = DeclareOpInterfaceMethods<NN_DifferentiableOpInterface>;

//===----------------------------------------------------------------------===//
// Parameters and constants
//===----------------------------------------------------------------------===//

def NN_ParamOp : NN_Op<"param", [Symbol]> {
  let summary = "a weight that lives in a file";
  let description = [{
    Declares a weight: its name (canonical, PyTorch's where known), type and
    home, `file[offset : length]` in bytes, the file relative to the model's
    folder. The bytes never enter the IR. `trainability` is set by `nn-mark`.

    `canonical_permutation`, when present, is the permutation that turns the
    stored tensor into the canonical one (exporters store some weights
    transposed). Several parameters may share one home (merged by the
    exporter). `length` is the byte size of the type (param_c1).

    The type is that of the file. The value of a trainable parameter stored as
    bf16 or f16 is f32: it is widened once, when training starts.

    Example:

    ```mlir
    nn.param @llm_proj.weight trainable : tensor<48x64xf32> = "model.onnx"[1024 : 12288]
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<AnyRankedTensor>:$type,
                       OptionalAttr<NN_TrainabilityAttr>:$trainability,
                       StrAttr:$file, I64Attr:$offset, I64Attr:$length,
                       OptionalAttr<DenseI64ArrayAttr>:$canonical_permutation);
  let assemblyFormat = [{
    $sym_name custom<Trainability>($trainability) `:` $type `=` $file `[` $offset `:` $length `]` attr-dict
  }];
  let extraClassDeclaration = [{
    /// As the file holds it.
    ::mlir::RankedTensorType getTensorType();
    /// Of its nn.param_ref: as stored, but f32 if it trains and is narrower.
    ::mlir::RankedTensorType getValueType();
    bool isTrainable();
  }];
  let hasVerifier = 1;
}

def NN_ParamRefOp : NN_Op<"param_ref", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the value of a parameter";
  let description = [{
    The result has the type of the parameter's value. Of a frozen parameter of
    f32 or f16 it may be bf16: the value rounded, once, when the weights are
    loaded (param_ref_c1).

    Example:

    ```mlir
    %w = nn.param_ref @llm_proj.weight : tensor<48x64xf32>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$param);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$param attr-dict `:` type($result)";
}

def NN_ConstantOp : NN_Op<"constant", [Pure, ConstantLike, AllTypesMatch<["value", "result"]>]> {
  let summary = "a tensor known at compile time";
  let arguments = (ins ElementsAttr:$value);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "attr-dict $value";
  let hasFolder = 1;
}

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

def NN_UnaryOp : NN_InferredOp<"unary", [NN_Differentiable]> {
  let summary = "elementwise function of one tensor";
  let arguments = (ins NN_UnaryKindAttr:$kind, NN_Tensor:$input);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_BinaryOp : NN_InferredOp<"binary", [NN_Differentiable]> {
  let summary = "elementwise function of two tensors, broadcast as in NumPy";
  let description = [{
    Element types are equal, but for the exponent of `pow` (binary_c1).

    Example:

    ```mlir
    %y = nn.binary add %x, %bias : (tensor<2x24x64xf32>, tensor<64xf32>) -> tensor<2x24x64xf32>
    ```
  }];
  let arguments = (ins NN_BinaryKindAttr:$kind, NN_Tensor:$lhs, NN_Tensor:$rhs);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
  let hasVerifier = 1;
}

def NN_CompareOp : NN_InferredOp<"compare"> {
  let summary = "elementwise comparison, broadcast as in NumPy";
  let arguments = (ins NN_ComparePredicateAttr:$predicate, NN_Tensor:$lhs, NN_Tensor:$rhs);
  let results = (outs NN_BoolTensor:$result);
  let assemblyFormat = "`` $predicate $lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_SelectOp : NN_InferredOp<"select", [NN_Differentiable]> {
  let summary = "elementwise choice, broadcast as in NumPy";
  let arguments = (ins NN_BoolTensor:$condition, NN_Tensor:$on_true, NN_Tensor:$on_false);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$condition `,` $on_true `,` $on_false attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_CastOp : NN_PureOp<"cast", [NN_Differentiable]> {
  let summary = "conversion of element type";
  let description = [{
    As ONNX's Cast: to a boolean is `x != 0`; float to integer truncates toward
    zero; to a narrower float rounds to nearest, ties to even.
  }];
  let arguments = (ins NN_Tensor:$input);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_DropoutOp : NN_InferredOp<"dropout", [NN_Differentiable]> {
  let summary = "zeroes elements at random, scales the others by 1 / (1 - ratio)";
  let description = [{
    `key` [4] is seed, step, sample and op. Randomness is counter-based: element
    e of sample s stays if Philox4x32-10 of key (seed, seed >> 32) and counter
    (e / 4, sample + s, step, op) has a word e mod 4 below (1 - ratio) 2^32. So
    dropping depends neither on the rank nor on who shares the micro-batch, and
    an op that is repeated drops the same. An op of -1 drops nothing, without
    scaling. The leading dimension holds `samples` samples (dropout_c1); 0 <
    `ratio` <= 1, and with 1 all is zero (dropout_c2).

    Example:

    ```mlir
    %y = nn.dropout %x, %key ratio 0.05 samples 2 : (tensor<2x24x64xf32>, tensor<4xi64>) -> tensor<2x24x64xf32>
    ```
  }];
  let arguments = (ins NN_FloatTensor:$input, RankedTensorOf<[I64]>:$key, NN_F64Attr:$ratio, I64Attr:$samples);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input `,` $key `ratio` $ratio `samples` $samples attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

def NN_MatmulOp : NN_InferredOp<"matmul", [NN_Differentiable]> {
  let summary = "product of matrices over broadcast leading dimensions";
  let description = [{
    Operands have rank 2 or more; their last two dimensions are the matrix,
    transposed first where the flag says so; leading dimensions broadcast as in
    NumPy. The importer reshapes operands of rank 1. Sums are of the result's
    type, which is that of the operands or a wider float; so too in `nn.conv`
    and its gradients and in attention.

    Example (a linear layer, weight [out, in]):

    ```mlir
    %y = nn.matmul %x, %w transpose_b : (tensor<2x24x64xf32>, tensor<128x64xf32>) -> tensor<2x24x128xf32>
    ```
  }];
  let arguments = (ins NN_Tensor:$lhs, NN_Tensor:$rhs, UnitAttr:$transpose_a, UnitAttr:$transpose_b);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs (`transpose_a` $transpose_a^)? (`transpose_b` $transpose_b^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    /// The result may be a wider float than the operands.
    static bool isCompatibleReturnTypes(::mlir::TypeRange inferred, ::mlir::TypeRange actual) {
      return areEqualOrWider(inferred, actual);
    }
  }];
}

class NN_ConvBase<string mnemonic, list<Trait> traits> : NN_PureOp<mnemonic, traits> {
  // Per spatial dimension (1 to 3 of them): pads are before and after.
  dag convAttrs = (ins DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$dilations,
                       DenseI64ArrayAttr:$pads_before, DenseI64ArrayAttr:$pads_after,
                       I64Attr:$groups);
}

def NN_ConvOp : NN_ConvBase<"conv", [InferTypeOpAdaptor, NN_Differentiable]> {
  let summary = "convolution, [batch, channels, spatial...]";
  let description = [{
    `weight` is [out channels, in channels / groups, spatial...]. A bias is a
    separate addition.
  }];
  let arguments = !con((ins NN_Tensor:$input, NN_Tensor:$weight), convAttrs);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $weight attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = [{
    /// The result may be a wider float than the operands.
    static bool isCompatibleReturnTypes(::mlir::TypeRange inferred, ::mlir::TypeRange actual) {
      return areEqualOrWider(inferred, actual);
    }
  }];
}

def NN_ConvGradInputOp : NN_ConvBase<"conv_grad_input", [NN_Differentiable]> {
  let summary = "gradient of a convolution's input (also: transposed convolution)";
  let arguments = !con((ins NN_Tensor:$grad, NN_Tensor:$weight), convAttrs);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$grad `,` $weight attr-dict `:` functional-type(operands, results)";
}

def NN_ConvGradWeightOp : NN_ConvBase<"conv_grad_weight", []> {
  let summary = "gradient of a convolution's weight";
  let arguments = !con((ins NN_Tensor:$input, NN_Tensor:$grad), convAttrs);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $grad attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// Shape and data movement
//===----------------------------------------------------------------------===//

def NN_ReshapeOp : NN_PureOp<"reshape", [NN_Differentiable]> {
  let summary = "same elements in row-major order, another shape";
  let arguments = (ins NN_Tensor:$input);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
  let hasVerifier = 1;
}

def NN_TransposeOp : NN_InferredOp<"transpose", [NN_Differentiable]> {
  let summary = "permutes dimensions: result dim i is input dim permutation[i]";
  let arguments = (ins NN_Tensor:$input, DenseI64ArrayAttr:$permutation);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input $permutation attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_BroadcastOp : NN_PureOp<"broadcast", [NN_Differentiable]> {
  let summary = "expands to the result's shape as in NumPy";
  let arguments = (ins NN_Tensor:$input);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
  let hasVerifier = 1;
}

def NN_SliceOp : NN_InferredOp<"slice", [NN_Differentiable]> {
  let summary = "strided part of a tensor";
  let description = [{
    Per dimension: elements start, start + stride, ... before `limit`. A
    negative stride walks down to, not including, `limit` (which may be -1).
    The importer has clamped all bounds.
  }];
  let arguments = (ins NN_Tensor:$input, DenseI64ArrayAttr:$starts, DenseI64ArrayAttr:$limits, DenseI64ArrayAttr:$strides);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input $starts `to` $limits `by` $strides attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_PadOp : NN_InferredOp<"pad", [NN_Differentiable]> {
  let summary = "surrounds a tensor with a scalar";
  let description = [{
    `before`, `after`: elements to add on each side of each dimension, none
    negative; `interior`: elements between neighbours (the gradient of a
    strided slice). `value` is a tensor of rank 0.
  }];
  let arguments = (ins NN_Tensor:$input, NN_Tensor:$value, DenseI64ArrayAttr:$before, DenseI64ArrayAttr:$after, DenseI64ArrayAttr:$interior);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $value $before `,` $after `interior` $interior attr-dict `:` functional-type(operands, results)";
}

def NN_ConcatOp : NN_InferredOp<"concat", [NN_Differentiable]> {
  let summary = "joins tensors along a dimension";
  let arguments = (ins Variadic<NN_Tensor>:$inputs, I64Attr:$axis);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$inputs `axis` $axis attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_GatherOp : NN_InferredOp<"gather", [NN_Differentiable]> {
  let summary = "slices of `input` along `axis`, picked by index";
  let description = [{
    Result shape: input[:axis] + indices + input[axis+1:]. A negative index
    counts from the end. An index out of range is a run-time error.
  }];
  let arguments = (ins NN_Tensor:$input, NN_IndexTensor:$indices, I64Attr:$axis);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $indices `axis` $axis attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_GatherGradOp : NN_PureOp<"gather_grad"> {
  let summary = "adds slices of `grad` where a gather along `axis` took them";
  let description = [{
    The result has the shape of the gather's input; equal indices add up in
    the order of `indices`.
  }];
  let arguments = (ins NN_Tensor:$grad, NN_IndexTensor:$indices, I64Attr:$axis);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$grad `,` $indices `axis` $axis attr-dict `:` functional-type(operands, results)";
}

def NN_GatherElementsOp : NN_InferredOp<"gather_elements", [NN_Differentiable]> {
  let summary = "one element of `input` per index, along `axis`";
  let arguments = (ins NN_Tensor:$input, NN_IndexTensor:$indices, I64Attr:$axis);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $indices `axis` $axis attr-dict `:` functional-type(operands, results)";
}

def NN_ScatterElementsOp : NN_InferredOp<"scatter_elements", [NN_Differentiable]> {
  let summary = "`input` with one element changed per index, along `axis`";
  let description = [{ Updates are applied in row-major order of `indices`. }];
  let arguments = (ins NN_ScatterKindAttr:$kind, NN_Tensor:$input, NN_IndexTensor:$indices, NN_Tensor:$updates, I64Attr:$axis);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $input `,` $indices `,` $updates `axis` $axis attr-dict `:` functional-type(operands, results)";
}

def NN_GatherNDOp : NN_InferredOp<"gather_nd", [NN_Differentiable]> {
  let summary = "slices of `input` picked by index tuples";
  let description = [{ As ONNX's GatherND: the last dimension of `indices` is the tuple. }];
  let arguments = (ins NN_Tensor:$input, NN_IndexTensor:$indices, I64Attr:$batch_dims);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $indices `batch_dims` $batch_dims attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_ScatterNDOp : NN_InferredOp<"scatter_nd", [NN_Differentiable]> {
  let summary = "`input` with slices changed that index tuples name";
  let description = [{
    As ONNX's ScatterND; updates are applied in row-major order. `batch_dims`
    leading dimensions are shared by all operands.
  }];
  let arguments = (ins NN_ScatterKindAttr:$kind, NN_Tensor:$input, NN_IndexTensor:$indices, NN_Tensor:$updates, DefaultValuedAttr<I64Attr, "0">:$batch_dims);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $input `,` $indices `,` $updates attr-dict `:` functional-type(operands, results)";
}

// The three ops below only carry torch's masked_scatter from the importer to
// `nn-simplify`; nn-check-static proves that none is left.

def NN_NonZeroOp : NN_InferredOp<"non_zero"> {
  let summary = "indices of the elements that are not zero, [rank, ?]";
  let arguments = (ins NN_Tensor:$input);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_ShapeOp : NN_InferredOp<"shape"> {
  let summary = "dimensions of a tensor, i64";
  let arguments = (ins NN_Tensor:$input);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_DynamicSliceOp : NN_PureOp<"dynamic_slice"> {
  let summary = "slice whose bounds are computed: ONNX's Slice, before bounds are known";
  let arguments = (ins NN_Tensor:$input, NN_IntTensor:$starts, NN_IntTensor:$ends, NN_IntTensor:$axes, NN_IntTensor:$steps);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $starts `,` $ends `,` $axes `,` $steps attr-dict `:` functional-type(operands, results)";
}

def NN_MaskedScatterOp : NN_InferredOp<"masked_scatter", [NN_Differentiable]> {
  let summary = "puts rows of `source`, in order, where `mask` is true";
  let description = [{
    `mask` covers the leading dimensions of `input`; the rest of a dimension
    list is a row. The i-th true element of `mask` (row-major) takes row i of
    `source`, [rows, row...]; more true elements than rows is a run-time error.
    Image features go into text embeddings this way (torch.masked_scatter).

    Example:

    ```mlir
    %e = nn.masked_scatter %text, %is_image, %image : (tensor<2x24x64xf32>, tensor<2x24xi1>, tensor<16x64xf32>) -> tensor<2x24x64xf32>
    ```
  }];
  let arguments = (ins NN_Tensor:$input, NN_BoolTensor:$mask, NN_Tensor:$source);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $mask `,` $source attr-dict `:` functional-type(operands, results)";
}

def NN_MaskedGatherOp : NN_PureOp<"masked_gather", [NN_Differentiable]> {
  let summary = "rows of `input` where `mask` is true, in order; the rest is zero";
  let description = [{
    The result is [rows, row...]; it is the gradient of masked_scatter's source.
  }];
  let arguments = (ins NN_Tensor:$input, NN_BoolTensor:$mask);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `,` $mask attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

def NN_ReduceOp : NN_InferredOp<"reduce", [NN_Differentiable]> {
  let summary = "combines the elements of some dimensions";
  let description = [{ `axes` are sorted; reduced dimensions stay as 1 with `keep_dims`. }];
  let arguments = (ins NN_ReduceKindAttr:$kind, NN_Tensor:$input, DenseI64ArrayAttr:$axes, UnitAttr:$keep_dims);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $input `axes` $axes (`keep_dims` $keep_dims^)? attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_ArgReduceOp : NN_InferredOp<"arg_reduce"> {
  let summary = "index of the largest or smallest element along `axis`, i64";
  let description = [{ `kind` is max or min. The axis stays as 1 with `keep_dims`. }];
  let arguments = (ins NN_ReduceKindAttr:$kind, NN_Tensor:$input, I64Attr:$axis, UnitAttr:$keep_dims, UnitAttr:$select_last);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $input `axis` $axis (`keep_dims` $keep_dims^)? (`select_last` $select_last^)? attr-dict `:` functional-type(operands, results)";
}

def NN_CumsumOp : NN_InferredOp<"cumsum", [NN_Differentiable]> {
  let summary = "running sum along `axis`";
  let arguments = (ins NN_Tensor:$input, I64Attr:$axis, UnitAttr:$exclusive, UnitAttr:$reverse);
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "$input `axis` $axis (`exclusive` $exclusive^)? (`reverse` $reverse^)? attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
}

def NN_PoolOp : NN_ConvBase<"pool", [NN_Differentiable]> {
  let summary = "maximum or average of windows, [batch, channels, spatial...]";
  let description = [{
    `groups` is unused (1). With `count_padding` an average divides by the
    window's size, else by the number of elements inside the tensor.
  }];
  let arguments = !con((ins NN_PoolKindAttr:$kind, NN_Tensor:$input, DenseI64ArrayAttr:$window), convAttrs, (ins UnitAttr:$count_padding));
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $input `window` $window attr-dict `:` functional-type(operands, results)";
}

def NN_PoolGradOp : NN_ConvBase<"pool_grad", []> {
  let summary = "gradient of pool's input; of equal maxima the first takes it";
  let arguments = !con((ins NN_PoolKindAttr:$kind, NN_Tensor:$input, NN_Tensor:$grad, DenseI64ArrayAttr:$window), convAttrs, (ins UnitAttr:$count_padding));
  let results = (outs NN_Tensor:$result);
  let assemblyFormat = "`` $kind $input `,` $grad `window` $window attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// Normalisation and softmax
//===----------------------------------------------------------------------===//

def NN_SoftmaxOp : NN_InferredOp<"softmax", [NN_Differentiable]> {
  let summary = "exp(x - max) / sum along `axis`";
  let arguments = (ins NN_FloatTensor:$input, I64Attr:$axis);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input `axis` $axis attr-dict `:` functional-type(operands, results)";
}

def NN_LogSoftmaxOp : NN_InferredOp<"log_softmax", [NN_Differentiable]> {
  let summary = "x - max - log(sum(exp(x - max))) along `axis`";
  let arguments = (ins NN_FloatTensor:$input, I64Attr:$axis);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input `axis` $axis attr-dict `:` functional-type(operands, results)";
}

def NN_LayerNormOp : NN_InferredOp<"layer_norm", [AttrSizedOperandSegments, NN_Differentiable]> {
  let summary = "(x - mean) / sqrt(variance + epsilon) over dimensions from `axis`, times scale, plus bias";
  let description = [{
    `scale` and `bias` broadcast to the input. Statistics are f32 or wider.
  }];
  let arguments = (ins NN_FloatTensor:$input, Optional<NN_FloatTensor>:$scale, Optional<NN_FloatTensor>:$bias, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input (`scale` $scale^)? (`bias` $bias^)? attr-dict `:` functional-type(operands, results)";
}

def NN_LayerNormGradOp : NN_InferredOp<"layer_norm_grad"> {
  let summary = "data gradient of layer_norm (grad is already times scale)";
  let arguments = (ins NN_FloatTensor:$input, NN_FloatTensor:$grad, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input `,` $grad attr-dict `:` functional-type(operands, results)";
}

def NN_RMSNormOp : NN_InferredOp<"rms_norm", [NN_Differentiable]> {
  let summary = "x / sqrt(mean(x^2) + epsilon) over dimensions from `axis`, times scale";
  let arguments = (ins NN_FloatTensor:$input, Optional<NN_FloatTensor>:$scale, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input (`scale` $scale^)? attr-dict `:` functional-type(operands, results)";
}

def NN_RMSNormGradOp : NN_InferredOp<"rms_norm_grad"> {
  let summary = "data gradient of rms_norm (grad is already times scale)";
  let arguments = (ins NN_FloatTensor:$input, NN_FloatTensor:$grad, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input `,` $grad attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// Transformers
//===----------------------------------------------------------------------===//

def NN_AttentionOp : NN_InferredOp<"attention", [NN_Differentiable]> {
  let summary = "softmax(scale q k^T, capped, masked) v";
  let description = [{
    q [batch, heads, Tq, D], k [batch, kv heads, Tk, D], v [batch, kv heads,
    Tk, Dv]; heads is a multiple of kv heads, query head h reads kv head
    h / (heads / kv heads). `mask` broadcasts to [batch, heads, Tq, Tk]: a
    boolean one attends where true, a float one is added to the scores.
    `causal`: query i sees keys 0..i + (Tk - Tq with causal_from_end, else 0).
    `softcap` c > 0: scores become c tanh(s / c) before the mask. A query that
    sees no key (boolean mask, causal, or -inf) gives zeros.
  }];
  let arguments = (ins NN_FloatTensor:$q, NN_FloatTensor:$k, NN_FloatTensor:$v, Optional<NN_Tensor>:$mask,
                       F64Attr:$scale, UnitAttr:$causal, UnitAttr:$causal_from_end, DefaultValuedAttr<F64Attr, "0.0">:$softcap);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$q `,` $k `,` $v (`mask` $mask^)? (`causal` $causal^)? attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = [{
    /// The result may be a wider float than the operands.
    static bool isCompatibleReturnTypes(::mlir::TypeRange inferred, ::mlir::TypeRange actual) {
      return areEqualOrWider(inferred, actual);
    }
  }];
}

def NN_AttentionGradOp : NN_InferredOp<"attention_grad"> {
  let summary = "gradients of q, k and v of attention";
  let description = [{
    `result` is attention's result (its rows give rowsum(dO o) of
    FlashAttention-2, arXiv 2307.08691, section 3.1).
  }];
  let arguments = (ins NN_FloatTensor:$q, NN_FloatTensor:$k, NN_FloatTensor:$v, NN_FloatTensor:$result, NN_FloatTensor:$grad, Optional<NN_Tensor>:$mask,
                       F64Attr:$scale, UnitAttr:$causal, UnitAttr:$causal_from_end, DefaultValuedAttr<F64Attr, "0.0">:$softcap);
  let results = (outs NN_FloatTensor:$grad_q, NN_FloatTensor:$grad_k, NN_FloatTensor:$grad_v);
  let assemblyFormat = "$q `,` $k `,` $v `,` $result `,` $grad (`mask` $mask^)? (`causal` $causal^)? attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = [{
    /// The result may be a wider float than the operands.
    static bool isCompatibleReturnTypes(::mlir::TypeRange inferred, ::mlir::TypeRange actual) {
      return areEqualOrWider(inferred, actual);
    }
  }];
}

def NN_RopeOp : NN_InferredOp<"rope", [NN_Differentiable]> {
  let summary = "rotary embedding: x cos + rotate(x) sin over the last dimension";
  let description = [{
    `cos`, `sin` broadcast to x. rotate(x) = concat(-x2, x1) of the halves, or
    of even/odd pairs with `interleaved`. With `transposed` it is the data
    gradient: x cos + rotate^T(x sin).
  }];
  let arguments = (ins NN_FloatTensor:$input, NN_FloatTensor:$cos, NN_FloatTensor:$sin, UnitAttr:$interleaved, UnitAttr:$transposed);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$input `,` $cos `,` $sin (`interleaved` $interleaved^)? (`transposed` $transposed^)? attr-dict `:` functional-type(operands, results)";
}

// The ops of the loss and the optimizer use the classes above.
include "dialects/NN/NNTrainingOps.td"

#endif // MGQ_NN_OPS_TD
