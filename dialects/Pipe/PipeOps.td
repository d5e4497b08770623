#ifndef MGQ_PIPE_OPS_TD
#define MGQ_PIPE_OPS_TD

include "dialects/Pipe/PipeAttrs.td"
include "dialects/Pipe/PipeDialect.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Pipe_RankOp : Pipe_Op<"rank", [Symbol, IsolatedFromAbove, NoTerminator, SingleBlock]> {
  let summary = "what one rank does in one step";
  let description = [{
    The body holds, in this order: placements (`place_param`, `place_input`,
    `place_output`, `place_gradient`, `place_loss`), sequences, and the program
    (`forward`, `backward`, `optimizer`). The program comes from the schedule;
    placements and sequences from the memory plan. The six sizes of `memory`
    add up to the arena (rank_c1), in bytes: weights, gradients, optimizer,
    inputs, activations, scratch.

    Example:

    ```mlir
    pipe.rank @r0 stage(0) memory [64, 0, 0, 0, 128, 0] {
      pipe.sequence forward {
        pipe.call @f [#pipe.arena<64, 64>, #pipe.arena<128, 64>] results(1) scratch(#pipe.arena<192, 0>) layer("llm.0")
      }
      %0 = pipe.forward chunk(0) micro_batch(0) slot(0)
      %1 = pipe.backward chunk(0) micro_batch(0) slot(0) after(%0)
      %2 = pipe.optimizer after(%1)
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$stage, OptionalAttr<DenseI64ArrayAttr>:$memory);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `stage` `(` $stage `)` (`memory` $memory^)? attr-dict-with-keyword $body";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The sequence of this kind, or null.
    SequenceOp getSequence(SequenceKind kind);
    /// Bytes of the arena: the sum of `memory`.
    int64_t getArenaBytes();
  }];
}

//===----------------------------------------------------------------------===//
// Placements
//===----------------------------------------------------------------------===//

def Pipe_PlaceParamOp : Pipe_Op<"place_param", [HasParent<"RankOp">]> {
  let summary = "where a parameter's value, gradient and optimizer state live";
  let description = [{
    Offsets in the arena. A frozen parameter has at most `value` (a copy of
    bytes that the file holds unaligned, or a packed form); a trainable one has
    all four (place_param_c1).
  }];
  let arguments = (ins FlatSymbolRefAttr:$param, OptionalAttr<I64Attr>:$value, OptionalAttr<I64Attr>:$gradient, OptionalAttr<I64Attr>:$momentum, OptionalAttr<I64Attr>:$variance);
  let assemblyFormat = [{
    $param (`value` `(` $value^ `)`)? (`gradient` `(` $gradient^ `)`)? (`momentum` `(` $momentum^ `)`)?
    (`variance` `(` $variance^ `)`)? attr-dict
  }];
  let hasVerifier = 1;
}

def Pipe_PlaceInputOp : Pipe_Op<"place_input", [HasParent<"RankOp">]> {
  let summary = "where a graph input of one micro-batch is loaded";
  let description = [{
    `limit`: values must lie in [0, limit), or equal `ignore`; set for integer
    inputs that index a table.
  }];
  let arguments = (ins StrAttr:$name, TypeAttrOf<AnyRankedTensor>:$type, I64Attr:$offset, OptionalAttr<I64Attr>:$limit, OptionalAttr<I64Attr>:$ignore);
  let assemblyFormat = "$name `:` $type `at` $offset (`limit` `(` $limit^ `)`)? (`ignore` `(` $ignore^ `)`)? attr-dict";
}

def Pipe_PlaceOutputOp : Pipe_Op<"place_output", [HasParent<"RankOp">]> {
  let summary = "where a graph output is found after the evaluate sequence";
  let arguments = (ins StrAttr:$name, TypeAttrOf<AnyRankedTensor>:$type, I64Attr:$offset);
  let assemblyFormat = "$name `:` $type `at` $offset attr-dict";
}

def Pipe_PlaceGradientOp : Pipe_Op<"place_gradient", [HasParent<"RankOp">]> {
  let summary = "a gradient that a backward call leaves, and its accumulator";
  let description = [{
    One per use of a trainable parameter, in program order of the forward pass.
    When call number `after` of the backward sequence has run, the value at
    `offset` is added to `accumulator`.
  }];
  let arguments = (ins FlatSymbolRefAttr:$param, I64Attr:$offset, I64Attr:$accumulator, I64Attr:$after);
  let assemblyFormat = "$param `at` $offset `into` $accumulator `after` $after attr-dict";
}

def Pipe_PlaceLossOp : Pipe_Op<"place_loss", [HasParent<"RankOp">]> {
  let summary = "where loss, its label count and its gradient live";
  let description = [{
    f32 scalars. With `count` the loss is a sum over that count, else a mean;
    The forward, evaluate and count sequences all write `count`.
  }];
  let arguments = (ins I64Attr:$loss, OptionalAttr<I64Attr>:$count, I64Attr:$seed);
  let assemblyFormat = "$loss (`count` `(` $count^ `)`)? `seed` `(` $seed `)` attr-dict";
}

//===----------------------------------------------------------------------===//
// Sequences
//===----------------------------------------------------------------------===//

def Pipe_SequenceOp : Pipe_Op<"sequence", [HasParent<"RankOp">, NoTerminator, SingleBlock]> {
  let summary = "kernel calls that always run together, in order";
  let arguments = (ins Pipe_SequenceKindAttr:$kind);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "`` $kind attr-dict-with-keyword $body";
}

def Pipe_CallOp : Pipe_Op<"call", [HasParent<"SequenceOp">]> {
  let summary = "a layer function on ranges of the arena and on weights";
  let description = [{
    `args`: operands, then results; each a `#pipe.arena` or a `#pipe.weight`.
    The last `results` of them are written. Two ranges of one call overlap only
    if both are read (call_c1).
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel, ArrayAttr:$args, I64Attr:$results, Pipe_ArenaAttr:$scratch, OptionalAttr<StrAttr>:$layer);
  let assemblyFormat = "$kernel $args `results` `(` $results `)` `scratch` `(` $scratch `)` (`layer` `(` $layer^ `)`)? attr-dict";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Program
//===----------------------------------------------------------------------===//

class Pipe_StepOp<string mnemonic, dag extra> : Pipe_Op<mnemonic, [HasParent<"RankOp">]> {
  let arguments = !con(extra, (ins Variadic<Pipe_EventType>:$after));
  let results = (outs Pipe_EventType:$event);
}

def Pipe_ForwardOp : Pipe_StepOp<"forward", (ins I64Attr:$chunk, I64Attr:$micro_batch, I64Attr:$slot)> {
  let summary = "run the forward sequence of a chunk for one micro-batch";
  let assemblyFormat = "`chunk` `(` $chunk `)` `micro_batch` `(` $micro_batch `)` `slot` `(` $slot `)` (`after` `(` $after^ `)`)? attr-dict";
}

def Pipe_BackwardOp : Pipe_StepOp<"backward", (ins I64Attr:$chunk, I64Attr:$micro_batch, I64Attr:$slot)> {
  let summary = "run the backward sequence of a chunk and add its gradients";
  let assemblyFormat = "`chunk` `(` $chunk `)` `micro_batch` `(` $micro_batch `)` `slot` `(` $slot `)` (`after` `(` $after^ `)`)? attr-dict";
}

def Pipe_OptimizerOp : Pipe_StepOp<"optimizer", (ins)> {
  let summary = "clip, and update the parameters of this rank";
  let assemblyFormat = "(`after` `(` $after^ `)`)? attr-dict";
}

#endif // MGQ_PIPE_OPS_TD
