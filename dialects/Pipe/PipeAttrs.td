#ifndef MGQ_PIPE_ATTRS_TD
#define MGQ_PIPE_ATTRS_TD

include "dialects/Pipe/PipeDialect.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

def Pipe_EventType : TypeDef<Pipe_Dialect, "Event"> {
  let mnemonic = "event";
  let summary = "the moment an op of a rank's program has finished";
  let builderCall = "::mgq::pipe::EventType::get($_builder.getContext())";
}

class Pipe_Attr<string name, string attrMnemonic> : AttrDef<Pipe_Dialect, name> {
  let mnemonic = attrMnemonic;
}

def Pipe_ArenaAttr : Pipe_Attr<"Arena", "arena"> {
  let summary = "a range of the rank's arena, in bytes";
  let parameters = (ins "int64_t":$offset, "int64_t":$bytes);
  let assemblyFormat = "`<` $offset `,` $bytes `>`";
}

def Pipe_SlotAttr : Pipe_Attr<"Slot", "slot"> {
  let summary = "a range of a chunk's slot of the running micro-batch, in bytes";
  let parameters = (ins "int64_t":$chunk, "int64_t":$offset, "int64_t":$bytes);
  let assemblyFormat = "`<` $chunk `,` $offset `,` $bytes `>`";
}

def Pipe_WeightAttr : Pipe_Attr<"Weight", "weight"> {
  let summary = "the mapped bytes of a frozen parameter, read only";
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$param);
  let assemblyFormat = "`<` $param `>`";
}

class Pipe_Enum<string name, string summary, list<I32EnumAttrCase> cases> :
    I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::mgq::pipe";
  let genSpecializedAttr = 0;
}

def Pipe_SequenceKind : Pipe_Enum<"SequenceKind", "when a sequence runs", [
  I32EnumAttrCase<"PrepareFrozen", 0, "prepare_frozen">,       // once, after load
  I32EnumAttrCase<"PrepareTrainable", 1, "prepare_trainable">, // after each update
  I32EnumAttrCase<"Forward", 2, "forward">,
  I32EnumAttrCase<"Backward", 3, "backward">,
  I32EnumAttrCase<"Weight", 4, "weight">,                      // weight gradients that were split off
  I32EnumAttrCase<"Evaluate", 5, "evaluate">,                  // forward, no residuals
  I32EnumAttrCase<"Count", 6, "count">                         // sum of label weights
]>;
def Pipe_SequenceKindAttr : EnumAttr<Pipe_Dialect, Pipe_SequenceKind, "sequence_kind">;

def Pipe_ScheduleKind : Pipe_Enum<"ScheduleKind", "order in which stages run their micro-batches", [
  I32EnumAttrCase<"GPipe", 0, "gpipe">,
  I32EnumAttrCase<"OneFOneB", 1, "one_f_one_b">,
  I32EnumAttrCase<"Interleaved", 2, "interleaved">,
  I32EnumAttrCase<"ZeroBubble", 3, "zero_bubble">
]>;
def Pipe_ScheduleKindAttr : EnumAttr<Pipe_Dialect, Pipe_ScheduleKind, "schedule">;

def Pipe_EdgeKind : Pipe_Enum<"EdgeKind", "what an edge carries", [
  I32EnumAttrCase<"Activation", 0, "activation">,
  I32EnumAttrCase<"Gradient", 1, "gradient">,       // of an activation
  I32EnumAttrCase<"Evaluation", 2, "evaluation">,   // an activation of @model
  I32EnumAttrCase<"Accumulator", 3, "accumulator">, // gradient of a tied parameter, once a step
  I32EnumAttrCase<"Parameter", 4, "parameter">      // its new value, once a step
]>;
def Pipe_EdgeKindAttr : EnumAttr<Pipe_Dialect, Pipe_EdgeKind, "edge_kind">;

def Pipe_Compression : Pipe_Enum<"Compression", "how gradients travel between replicas", [
  I32EnumAttrCase<"Bf16", 1, "bf16">,
  I32EnumAttrCase<"Sparse24", 2, "sparse24">,         // 2 of 4 values, as bf16
  I32EnumAttrCase<"Sparse24Int8", 3, "sparse24_int8"> // 2 of 4 values, as 8 bits with a scale
]>;
def Pipe_CompressionAttr : EnumAttr<Pipe_Dialect, Pipe_Compression, "compression">;

#endif // MGQ_PIPE_ATTRS_TD
