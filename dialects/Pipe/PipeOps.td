#ifndef MGQ_PIPE_OPS_TD
#define MGQ_PIPE_OPS_TD

include "dialects/Pipe/PipeAttrs.td"
include "dialects/Pipe/PipeDialect.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

//===----------------------------------------------------------------------===//
// The plan
//===----------------------------------------------------------------------===//

def Pipe_PlanOp : Pipe_Op<"plan", [NoTerminator, SingleBlock]> {
  let summary = "how a model is cut, and what the planner expects of it";
  let description = [{
    One per module. `stages` ranks work on each of `replicas` copies of the
    model. The body holds the chunks, in the order of the model.
    `step_seconds` and `bubble` are predictions.

    Example:

    ```mlir
    pipe.plan one_f_one_b stages(2) replicas(1) micro_batches(4) {
      pipe.chunk 0 on [0] seconds [1.0, 0.0, 0.0, 0.1, 0.0] bytes [0, 0]
      pipe.chunk 1 on [1] seconds [1.0, 2.0, 0.0, 0.0, 0.1] bytes [4096, 0] backward
    }
    ```
  }];
  let arguments = (ins Pipe_ScheduleKindAttr:$schedule, I64Attr:$stages, I64Attr:$replicas,
                       I64Attr:$micro_batches, OptionalAttr<F64Attr>:$step_seconds,
                       OptionalAttr<F64Attr>:$bubble, OptionalAttr<DenseI64ArrayAttr>:$memory_limit);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $schedule `stages` `(` $stages `)` `replicas` `(` $replicas `)` `micro_batches` `(` $micro_batches `)`
    (`step_seconds` `(` $step_seconds^ `)`)? (`bubble` `(` $bubble^ `)`)? (`memory_limit` $memory_limit^)?
    attr-dict-with-keyword $body
  }];
  let hasVerifier = 1;
}

def Pipe_ChunkOp : Pipe_Op<"chunk", [HasParent<"PlanOp">]> {
  let summary = "consecutive layers that run together, and their costs";
  let description = [{
    Micro-batch i runs on stage `ranks[i % size]`. `seconds`, of one
    micro-batch: forward, backward, weight, and the hops after forward and after
    backward. `bytes`: kept from forward to backward, and from backward to
    weight.
  }];
  let arguments = (ins I64Attr:$index, DenseI64ArrayAttr:$ranks, DenseF64ArrayAttr:$seconds,
                       DenseI64ArrayAttr:$bytes, UnitAttr:$backward, UnitAttr:$weight,
                       UnitAttr:$sends_gradient);
  let assemblyFormat = [{
    $index `on` $ranks `seconds` $seconds `bytes` $bytes (`backward` $backward^)? (`weight` $weight^)?
    (`sends_gradient` $sends_gradient^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Pipe_EdgeOp : Pipe_Op<"edge", [Symbol]> {
  let summary = "a value that one chunk makes and another reads";
  let description = [{
    Activations and gradients: result `result` of call number `call` of @train
    (@model for evaluations) goes from chunk `from` to chunk `to`, once per
    micro-batch. Accumulators and parameters of tied `param`: `from` and `to`
    are stages; `call` is the number of the gradient among the results of
    @train, -1 for a parameter.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Pipe_EdgeKindAttr:$kind, I64Attr:$from, I64Attr:$to,
                       I64Attr:$call, I64Attr:$result, OptionalAttr<FlatSymbolRefAttr>:$param,
                       TypeAttrOf<AnyRankedTensor>:$type);
  let assemblyFormat = [{
    $sym_name $kind `from` `(` $from `)` `to` `(` $to `)` `value` `(` $call `,` $result `)`
    (`param` `(` $param^ `)`)? `:` $type attr-dict
  }];
}

def Pipe_RankOp : Pipe_Op<"rank", [Symbol, IsolatedFromAbove, NoTerminator, SingleBlock]> {
  let summary = "what one stage does in one step";
  let description = [{
    The body holds, in this order: placements, sequences, and the program. The
    program comes from the schedule and from communication; placements and
    sequences from the memory plan. The six sizes of `memory` add up to the
    arena (rank_c1), in bytes: weights, gradients, optimizer, inputs,
    activations, scratch. Ops of the compute stream run one after the other;
    sends, receives and all_reduces run beside them, from the moment when all of
    `after` has happened.

    Example:

    ```mlir
    pipe.rank @r1 stage(1) memory [64, 0, 0, 0, 256, 0] {
      pipe.place_slots chunk(1) at 64 bytes 128 count 2
      pipe.sequence forward chunk(1) {
        pipe.call @f [#pipe.slot<1, 0, 64>, #pipe.slot<1, 64, 64>] results(1) scratch(#pipe.arena<320, 0>) layer("llm.0")
      }
      %0 = pipe.recv @activation0 micro_batch(0) slot(0) peer(0)
      %1 = pipe.forward chunk(1) micro_batch(0) slot(0) after(%0)
      %2 = pipe.backward chunk(1) micro_batch(0) slot(0)
      %3 = pipe.send @gradient0 micro_batch(0) slot(0) peer(0) after(%2)
      %4 = pipe.combine
      %5 = pipe.optimizer
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$stage, OptionalAttr<DenseI64ArrayAttr>:$memory);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `stage` `(` $stage `)` (`memory` $memory^)? attr-dict-with-keyword $body";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The sequence of this kind (and chunk, where it has one), or null.
    SequenceOp getSequence(SequenceKind kind, int64_t chunk = -1);
    /// The slots of a chunk, or null.
    PlaceSlotsOp getSlots(int64_t chunk);
    /// Bytes of the arena: the sum of `memory`.
    int64_t getArenaBytes();
  }];
}

//===----------------------------------------------------------------------===//
// Placements
//===----------------------------------------------------------------------===//

def Pipe_PlaceParamOp : Pipe_Op<"place_param", [ParentOneOf<["RankOp", "ShardOp"]>]> {
  let summary = "where a parameter's value, gradient and optimizer state live";
  let description = [{
    Offsets in the arena. A frozen parameter has at most `value`: a copy, of
    bytes that the file holds unaligned, or for a device that cannot read files;
    then there is one for each element type in which it is read (`as`, which
    differs from the stored type where values are rounded once, when they are
    loaded). A trainable one has all four on the stage that owns it, and the
    value alone where it is only used (place_param_c1).
  }];
  let arguments = (ins FlatSymbolRefAttr:$param, OptionalAttr<I64Attr>:$value, OptionalAttr<TypeAttr>:$as, OptionalAttr<I64Attr>:$gradient, OptionalAttr<I64Attr>:$momentum, OptionalAttr<I64Attr>:$variance);
  let assemblyFormat = [{
    $param (`value` `(` $value^ `)`)? (`as` `(` $as^ `)`)? (`gradient` `(` $gradient^ `)`)?
    (`momentum` `(` $momentum^ `)`)? (`variance` `(` $variance^ `)`)? attr-dict
  }];
  let hasVerifier = 1;
}

def Pipe_PlaceUseOp : Pipe_Op<"place_use", [HasParent<"RankOp">]> {
  let summary = "the accumulator of one use of an owned parameter";
  let description = [{
    In program order of the forward pass; `combine` adds the later ones of a
    parameter to its first. `use` is the number of the gradient among the
    results of @train.
  }];
  let arguments = (ins FlatSymbolRefAttr:$param, I64Attr:$use, I64Attr:$accumulator);
  let assemblyFormat = "$param `use` $use `at` $accumulator attr-dict";
}

def Pipe_PlaceSlotsOp : Pipe_Op<"place_slots", [HasParent<"RankOp">]> {
  let summary = "the slots of a chunk: values of its micro-batches in flight";
  let arguments = (ins I64Attr:$chunk, I64Attr:$offset, I64Attr:$bytes, I64Attr:$count);
  let assemblyFormat = "`chunk` `(` $chunk `)` `at` $offset `bytes` $bytes `count` $count attr-dict";
}

def Pipe_ShardOp : Pipe_Op<"shard", [HasParent<"RankOp">, NoTerminator, SingleBlock]> {
  let summary = "frozen weights of a chunk that are spread over ranks";
  let description = [{
    `buffer` is where they are when the chunk runs. The body has calls that pack
    them into it once, after load, or for a device that cannot read files the
    places of copies in it. Of that each rank keeps a slice. The ranks are the
    stages of a replica or, of one stage, the replicas.
  }];
  let arguments = (ins I64Attr:$chunk, Pipe_ArenaAttr:$slice, Pipe_ArenaAttr:$buffer);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "`chunk` `(` $chunk `)` `slice` `(` $slice `)` `buffer` `(` $buffer `)` attr-dict-with-keyword $body";
}

def Pipe_PlaceResidualsOp : Pipe_Op<"place_residuals", [HasParent<"RankOp">]> {
  let summary = "what compressed gradients have not sent yet";
  let description = [{
    f32, in the optimizer's part of the arena. `worker`: two arrays like the
    owned `gradients`; `owner`: two arrays for the blocks of the rank's shards.
    Steps write one of two by turns. A rank that owns no gradient has no places.
  }];
  let arguments = (ins OptionalAttr<Pipe_ArenaAttr>:$gradients, OptionalAttr<ArrayAttr>:$worker, OptionalAttr<ArrayAttr>:$owner);
  let assemblyFormat = "(`of` $gradients^ `worker` $worker `owner` $owner)? attr-dict";
  let hasVerifier = 1;
}

def Pipe_PlaceOutputOp : Pipe_Op<"place_output", [HasParent<"RankOp">]> {
  let summary = "where a graph output is found after the evaluation";
  let arguments = (ins StrAttr:$name, TypeAttrOf<AnyRankedTensor>:$type, I64Attr:$offset);
  let assemblyFormat = "$name `:` $type `at` $offset attr-dict";
}

def Pipe_PlaceGradientOp : Pipe_Op<"place_gradient", [HasParent<"RankOp">]> {
  let summary = "a gradient that a call leaves, and its accumulator";
  let description = [{
    One per use of a trainable parameter. When call number `after` of the
    chunk's backward (or weight) sequence has run, the value at `place` is added
    to `accumulator`. `use` is the number of the gradient among the results of
    @train.
  }];
  let arguments = (ins FlatSymbolRefAttr:$param, I64Attr:$use, I64Attr:$chunk, AnyAttr:$place, I64Attr:$accumulator, I64Attr:$after, UnitAttr:$weight);
  let assemblyFormat = [{
    $param `use` $use `chunk` `(` $chunk `)` `at` $place `into` $accumulator `after` $after (`weight` $weight^)? attr-dict
  }];
}

def Pipe_PlaceLossOp : Pipe_Op<"place_loss", [HasParent<"RankOp">]> {
  let summary = "where loss and its gradient live, on the rank that has them";
  let description = [{
    f32 scalars: `loss` after the forward sequence of `chunk`, `evaluate` after
    its evaluate sequence, `seed` read by its backward and weight sequences.
  }];
  let arguments = (ins I64Attr:$chunk, AnyAttr:$loss, AnyAttr:$seed, AnyAttr:$evaluate);
  let assemblyFormat = "`chunk` `(` $chunk `)` $loss `seed` $seed `evaluate` $evaluate attr-dict";
}

def Pipe_PlaceCountOp : Pipe_Op<"place_count", [HasParent<"RankOp">]> {
  let summary = "where the count sequence leaves the sum of label weights (f32)";
  let arguments = (ins I64Attr:$offset);
  let assemblyFormat = "`at` $offset attr-dict";
}

//===----------------------------------------------------------------------===//
// Sequences
//===----------------------------------------------------------------------===//

def Pipe_SequenceOp : Pipe_Op<"sequence", [HasParent<"RankOp">, NoTerminator, SingleBlock]> {
  let summary = "kernel calls that always run together, in order";
  let description = [{
    Loads come first. Forward, backward, weight and evaluate sequences belong to
    a chunk.
  }];
  let arguments = (ins Pipe_SequenceKindAttr:$kind, OptionalAttr<I64Attr>:$chunk);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "`` $kind (`chunk` `(` $chunk^ `)`)? attr-dict-with-keyword $body";
}

def Pipe_LoadOp : Pipe_Op<"load", [HasParent<"SequenceOp">]> {
  let summary = "copies a graph input of the micro-batch to its place";
  let description = [{
    `limit`: values must lie in [0, limit), or equal `ignore`; set for integer
    inputs that index a table.
  }];
  let arguments = (ins StrAttr:$name, TypeAttrOf<AnyRankedTensor>:$type, AnyAttr:$place, OptionalAttr<I64Attr>:$limit, OptionalAttr<I64Attr>:$ignore);
  let assemblyFormat = "$name `:` $type `at` $place (`limit` `(` $limit^ `)`)? (`ignore` `(` $ignore^ `)`)? attr-dict";
}

def Pipe_CallOp : Pipe_Op<"call", [ParentOneOf<["SequenceOp", "ShardOp"]>]> {
  let summary = "a layer function on ranges of memory and on weights";
  let description = [{
    `args`: operands, then results; each a `#pipe.arena`, a `#pipe.slot` or a
    `#pipe.weight`. The last `results` of them are written. Two ranges of one
    call overlap only if both are read (call_c1).
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel, ArrayAttr:$args, I64Attr:$results, Pipe_ArenaAttr:$scratch, OptionalAttr<StrAttr>:$layer);
  let assemblyFormat = "$kernel $args `results` `(` $results `)` `scratch` `(` $scratch `)` (`layer` `(` $layer^ `)`)? attr-dict";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Program
//===----------------------------------------------------------------------===//

class Pipe_StepOp<string mnemonic, dag extra> : Pipe_Op<mnemonic> {
  let arguments = !con(extra, (ins Variadic<Pipe_EventType>:$after));
  let results = (outs Pipe_EventType:$event);
}

class Pipe_TaskOp<string mnemonic> :
    Pipe_StepOp<mnemonic, (ins I64Attr:$chunk, I64Attr:$micro_batch, I64Attr:$slot)> {
  let assemblyFormat = "`chunk` `(` $chunk `)` `micro_batch` `(` $micro_batch `)` `slot` `(` $slot `)` (`after` `(` $after^ `)`)? attr-dict";
}

def Pipe_ForwardOp :
    Pipe_StepOp<"forward", (ins I64Attr:$chunk, I64Attr:$micro_batch, I64Attr:$slot, UnitAttr:$ahead)> {
  let summary = "run the forward sequence of a chunk for one micro-batch";
  let description = [{
    With `ahead` the micro-batch is one of the next step
    (`pipe-run-prefix-ahead`); so are messages.
  }];
  let assemblyFormat = [{
    `chunk` `(` $chunk `)` `micro_batch` `(` $micro_batch `)` `slot` `(` $slot `)` (`ahead` $ahead^)?
    (`after` `(` $after^ `)`)? attr-dict
  }];
}

def Pipe_BackwardOp : Pipe_TaskOp<"backward"> {
  let summary = "run the backward sequence of a chunk and add its gradients";
}

def Pipe_WeightGradOp : Pipe_TaskOp<"weight_grad"> {
  let summary = "run the weight sequence of a chunk and add its gradients";
}

def Pipe_EvaluateOp : Pipe_StepOp<"evaluate", (ins I64Attr:$chunk)> {
  let summary = "run the evaluate sequence of a chunk";
  let assemblyFormat = "`chunk` `(` $chunk `)` (`after` `(` $after^ `)`)? attr-dict";
}

class Pipe_MessageOp<string mnemonic> :
    Pipe_StepOp<mnemonic, (ins FlatSymbolRefAttr:$edge, OptionalAttr<I64Attr>:$micro_batch, OptionalAttr<I64Attr>:$slot, I64Attr:$peer, UnitAttr:$ahead, OptionalAttr<AnyAttr>:$place)> {
  let assemblyFormat = [{
    $edge (`micro_batch` `(` $micro_batch^ `)`)? (`slot` `(` $slot^ `)`)? `peer` `(` $peer `)` (`ahead` $ahead^)?
    (`at` $place^)? (`after` `(` $after^ `)`)? attr-dict
  }];
}

def Pipe_SendOp : Pipe_MessageOp<"send"> {
  let summary = "send an edge's value to stage `peer`; happens when it has left";
}

def Pipe_RecvOp : Pipe_MessageOp<"recv"> {
  let summary = "receive an edge's value from stage `peer`; happens when it is there";
}

class Pipe_OncePerStepOp<string mnemonic> : Pipe_StepOp<mnemonic, (ins)> {
  let assemblyFormat = "(`after` `(` $after^ `)`)? attr-dict";
}

def Pipe_CombineOp : Pipe_OncePerStepOp<"combine"> {
  let summary = "add the uses of each owned parameter, in program order";
}

def Pipe_AllReduceOp : Pipe_StepOp<"all_reduce",
    (ins OptionalAttr<I64Attr>:$bucket, OptionalAttr<SymbolRefArrayAttr>:$params,
         OptionalAttr<AnyAttr>:$place, OptionalAttr<Pipe_ArenaAttr>:$room,
         OptionalAttr<I64Attr>:$call, OptionalAttr<Pipe_CompressionAttr>:$compression)> {
  let summary = "sum gradients of owned parameters over replicas, in their order";
  let description = [{
    Runs on the gradient stream, beside the compute stream, like a message: it
    begins when all of `after` has happened. `params`: of all that are owned,
    those in this bucket; buckets are numbered in the order of the program
    (`pipe-overlap-streams`). `room` is where what other replicas send arrives.
    With `call(c)` it begins earlier, when call number c of the first of
    `after`, a backward or weight op, has run (all_reduce_c1).

    Example:

    ```mlir
    %1 = pipe.backward chunk(0) micro_batch(3) slot(0)
    %2 = pipe.all_reduce bucket(0) of [@w, @v] after(%1) call(2)
    %3 = pipe.optimizer after(%2)
    ```
  }];
  let assemblyFormat = [{
    (`bucket` `(` $bucket^ `)`)? (`of` $params^)? (`at` $place^)? (`room` `(` $room^ `)`)?
    (`after` `(` $after^ `)`)? (`call` `(` $call^ `)`)? (`compress` $compression^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Pipe_AllGatherOp : Pipe_StepOp<"all_gather",
    (ins I64Attr:$chunk, UnitAttr:$ahead, OptionalAttr<Pipe_ArenaAttr>:$place, OptionalAttr<Pipe_ArenaAttr>:$slice)> {
  let summary = "fill `place` with a chunk's frozen weights, a slice of which each rank keeps";
  let description = [{
    Runs beside the compute stream, like a message. See `pipe.shard`.
  }];
  let assemblyFormat = [{
    `chunk` `(` $chunk `)` (`ahead` $ahead^)? (`at` $place^)? (`slice` `(` $slice^ `)`)?
    (`after` `(` $after^ `)`)? attr-dict
  }];
}

def Pipe_OptimizerOp : Pipe_OncePerStepOp<"optimizer"> {
  let summary = "clip, and update the parameters of this rank";
}

def Pipe_EvaluationOp : Pipe_Op<"evaluation", [HasParent<"RankOp">, NoTerminator, SingleBlock]> {
  let summary = "what the rank does for one record of evaluation data";
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "attr-dict-with-keyword $body";
}

#endif // MGQ_PIPE_OPS_TD
