#ifndef MGQ_KERN_OPS_TD
#define MGQ_KERN_OPS_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Kern_Dialect : Dialect {
  let name = "kern";
  let cppNamespace = "::mgq::kern";
  let summary = "kernels between nn and loops";
  let description = [{
    `kern` holds what code generation for a target wants to see whole after
    bufferization: matrix products and attention, which have hand-made loop
    nests; code that is written on buffers from the start (`kern.loops`); and
    the call of an outlined loop nest on the compute threads (`kern.launch`).

    The first three are destination-style: on tensors they are pure and give
    the new value of each `outs` operand; on memrefs they write it.
  }];
}

class Kern_Op<string mnemonic, list<Trait> traits = []> :
    Op<Kern_Dialect, mnemonic, traits>;

def Kern_Shaped : AnyTypeOf<[AnyRankedTensor, AnyMemRef]>;

/// `ins` are read, `outs` are written (and may be read).
class Kern_DestinationOp<string mnemonic, list<Trait> traits = []> :
    Kern_Op<mnemonic, !listconcat([
      DestinationStyleOpInterface,
      DeclareOpInterfaceMethods<MemoryEffectsOpInterface>], traits)>;

def Kern_MatmulOp : Kern_DestinationOp<"matmul", [AttrSizedOperandSegments]> {
  let summary = "c = a b, each element one chain of FMAs over k";
  let description = [{
    Operands have rank 2 or 3; the last two dimensions are the matrix,
    transposed first where the flag says so; of rank 3, the first dimension is
    the batch. `c` has rank 3 if `a` or `b` has; an operand of rank 2 is then
    shared by the whole batch (matmul_c1).

    `c` is written, not read. Its element type is the one sums are computed in:
    `f64` for f64, `f32` for f32, f16 and bf16 operands (which may differ), else
    the integer type of both operands. An element is one chain from zero over
    k = 0, 1, ...: `c = fma(a[k], b[k], c)`, in every lowering.

    With an *epilogue* (on CUDA: cuda-fuse-epilogues) it is
    `c = gelu(alpha a b + addend + bias)`, computed in f32 (f64 for f64) and
    rounded once to the element type of `c`, which may then be that of `a` and
    `b`. `addend` is like `c`, `bias` has one element per column of `c`
    (matmul_c2), both of c's element type; `gelu` is the tanh approximation.
    The buffers of `c` and `addend` do not overlap.

    As memrefs, operands have a static layout; the last dimension need not be
    contiguous.

    Example:

    ```mlir
    %y = kern.matmul transpose_b ins(%x, %w : tensor<48x64xf32>, tensor<128x64xf32>) outs(%e : tensor<48x128xf32>) -> tensor<48x128xf32>
    kern.matmul transpose_b ins(%x, %w : memref<48x64xf32>, memref<128x64xf32>) outs(%c : memref<48x128xf32>)
    kern.matmul gelu ins(%x, %w : memref<4x8xf32>, memref<8x6xf32>) add(%r : memref<4x6xf32>) bias(%b : memref<6xf32>) outs(%c : memref<4x6xf32>) {alpha = 5.000000e-01 : f64}
    ```
  }];
  let arguments = (ins Kern_Shaped:$lhs, Kern_Shaped:$rhs,
                       Optional<Kern_Shaped>:$addend, Optional<Kern_Shaped>:$bias,
                       Kern_Shaped:$init, UnitAttr:$transpose_a, UnitAttr:$transpose_b,
                       UnitAttr:$gelu, DefaultValuedAttr<F64Attr, "1.0">:$alpha);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let builders = [
    // Without an epilogue.
    OpBuilder<(ins "::mlir::Type":$result, "::mlir::Value":$lhs, "::mlir::Value":$rhs,
                   "::mlir::Value":$init, "bool":$transposeA, "bool":$transposeB)>
  ];
  let assemblyFormat = [{
    (`transpose_a` $transpose_a^)? (`transpose_b` $transpose_b^)? (`gelu` $gelu^)?
    `ins` `(` $lhs `,` $rhs `:` type($lhs) `,` type($rhs) `)`
    (`add` `(` $addend^ `:` type($addend) `)`)? (`bias` `(` $bias^ `:` type($bias) `)`)?
    `outs` `(` $init `:` type($init) `)` attr-dict (`->` type($results)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::MutableOperandRange getDpsInitsMutable() { return getInitMutable(); }
    /// Sizes: batch 1 where there is none.
    struct Sizes { int64_t batch, m, n, k; };
    Sizes getSizes();
    /// Whether c is more than a b, or rounded.
    bool hasEpilogue();
  }];
}

def Kern_AttentionOp : Kern_DestinationOp<"attention"> {
  let summary = "nn.attention as a kernel of its own";
  let description = [{ Operands and attributes mean what nn.attention's do. }];
  let arguments = (ins Kern_Shaped:$q, Kern_Shaped:$k, Kern_Shaped:$v,
                       Optional<Kern_Shaped>:$mask, Kern_Shaped:$init,
                       F64Attr:$scale, UnitAttr:$causal, UnitAttr:$causal_from_end,
                       DefaultValuedAttr<F64Attr, "0.0">:$softcap);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = [{
    `ins` `(` $q `,` $k `,` $v (`mask` $mask^)? `:` type($q) `,` type($k) `,` type($v) (`mask` type($mask)^)? `)`
    `outs` `(` $init `:` type($init) `)` attr-dict (`->` type($results)^)?
  }];
  let extraClassDeclaration = [{
    ::mlir::MutableOperandRange getDpsInitsMutable() { return getInitMutable(); }
  }];
}

def Kern_AttentionGradOp : Kern_DestinationOp<"attention_grad", [AttrSizedOperandSegments]> {
  let summary = "nn.attention_grad as a kernel of its own";
  let description = [{ Operands and attributes mean what nn.attention_grad's do. }];
  let arguments = (ins Kern_Shaped:$q, Kern_Shaped:$k, Kern_Shaped:$v,
                       Kern_Shaped:$result, Kern_Shaped:$grad,
                       Optional<Kern_Shaped>:$mask, Variadic<Kern_Shaped>:$inits,
                       F64Attr:$scale, UnitAttr:$causal, UnitAttr:$causal_from_end,
                       DefaultValuedAttr<F64Attr, "0.0">:$softcap);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = [{
    `ins` `(` $q `,` $k `,` $v `,` $result `,` $grad (`mask` $mask^)?
      `:` type($q) `,` type($k) `,` type($v) `,` type($result) `,` type($grad) (`mask` type($mask)^)? `)`
    `outs` `(` $inits `:` type($inits) `)` attr-dict (`->` type($results)^)?
  }];
  let extraClassDeclaration = [{
    ::mlir::MutableOperandRange getDpsInitsMutable() { return getInitsMutable(); }
  }];
}

def Kern_DeviceAttentionOp : Kern_Op<"device_attention", [AttrSizedOperandSegments]> {
  let summary = "attention on a device, by a library or by kernels of the module";
  let description = [{
    Operands are buffers in the order of runtime/include/rt_cuda.h
    (mgq_cuda_attention_tensor): `backward` has scratch and gradients. `kernels`
    compute it, one after the other, on as many `blocks`; with `library`, the
    runtime may ask a library instead.
  }];
  let arguments = (ins AnyMemRef:$q, AnyMemRef:$k, AnyMemRef:$v, Optional<AnyMemRef>:$mask,
                       AnyMemRef:$result, Variadic<AnyMemRef>:$backward,
                       SymbolRefArrayAttr:$kernels, DenseI64ArrayAttr:$blocks,
                       F64Attr:$scale, UnitAttr:$causal, UnitAttr:$causal_from_end,
                       UnitAttr:$library);
  let assemblyFormat = [{
    (`library` $library^)? $kernels `on` $blocks
    `(` $q `,` $k `,` $v (`mask` $mask^)? `,` $result (`backward` $backward^)?
      `:` type($q) `,` type($k) `,` type($v) (`mask` type($mask)^)? `,` type($result) (`backward` type($backward)^)? `)`
    attr-dict
  }];
}

def Kern_LoopsOp : Kern_DestinationOp<"loops", [
    AttrSizedOperandSegments, IsolatedFromAbove, SingleBlock, NoTerminator]> {
  let summary = "loops on buffers, as one op among tensors";
  let description = [{
    The region's arguments are the buffers of `ins`, then of `outs`, in operand
    order, whatever the operands' own types; the region stores into the buffers
    of `outs` and accesses buffers by loads and stores only, so any layout
    fits. It runs once. `kern-lower-loops` puts it in the op's place.

    Example:

    ```mlir
    %r = kern.loops ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%in: memref<4xf32>, %out: memref<4xf32>):
      %c0 = arith.constant 0 : index
      %v = memref.load %in[%c0] : memref<4xf32>
      memref.store %v, %out[%c0] : memref<4xf32>
    } -> tensor<4xf32>
    ```
  }];
  let arguments = (ins Variadic<Kern_Shaped>:$inputs, Variadic<Kern_Shaped>:$inits);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    (`ins` `(` $inputs^ `:` type($inputs) `)`)? `outs` `(` $inits `:` type($inits) `)`
    $body attr-dict (`->` type($results)^)?
  }];
  let extraClassDeclaration = [{
    ::mlir::MutableOperandRange getDpsInitsMutable() { return getInitsMutable(); }
  }];
}

def Kern_LaunchOp : Kern_Op<"launch", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "runs an outlined loop nest, cut into chunks, on the compute threads";
  let description = [{
    Calls `callee(operands, begin, end)` for the chunks [0, chunk), [chunk, 2
    chunk), ... of [0, size), in any order and at the same time. The callee is a
    func.func of the module with the operands' types and two index arguments.

    Example:

    ```mlir
    kern.launch @f.0(%x, %y : memref<64x8xf32>, memref<64x8xf32>) size 64 chunk 16
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$callee, Variadic<AnyType>:$inputs,
                       I64Attr:$size, I64Attr:$chunk);
  let assemblyFormat = [{
    $callee `(` ($inputs^ `:` type($inputs))? `)` `size` $size `chunk` $chunk attr-dict
  }];
}

#endif // MGQ_KERN_OPS_TD
