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
  I32EnumAttrCase<"Evaluate", 4, "evaluate">,                  // forward, no residuals
  I32EnumAttrCase<"Count", 5, "count">                         // sum of label weights
]>;
def Pipe_SequenceKindAttr : EnumAttr<Pipe_Dialect, Pipe_SequenceKind, "sequence_kind">;

def Pipe_ScheduleKind : Pipe_Enum<"ScheduleKind", "order in which stages run their micro-batches", [
  I32EnumAttrCase<"GPipe", 0, "gpipe">,
  I32EnumAttrCase<"OneFOneB", 1, "one_f_one_b">
]>;
def Pipe_ScheduleKindAttr : EnumAttr<Pipe_Dialect, Pipe_ScheduleKind, "schedule">;

#endif // MGQ_PIPE_ATTRS_TD
