#ifndef MGQ_PASSES_PIPE_PASSES_TD
#define MGQ_PASSES_PIPE_PASSES_TD

include "mlir/Pass/PassBase.td"

def PartitionStagesPass : Pass<"pipe-partition-stages", "::mlir::ModuleOp"> {
  let summary = "Cut the model into chunks, give chunks to stages";
  let description = [{
    Asks the planner (passes/Planner) and writes its answer as `pipe.plan`. Each
    call of @train and @model gets `pipe.chunk`; a backward call that of its
    forward call. Calls that depend on graph inputs alone get none: chunks
    repeat them. Layers that the plan recomputes run forward once more before
    their backward call.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
  let options = [
    Option<"stages", "stages", "int64_t", /*default=*/"0", "Pipeline stages; 0: chosen.">,
    Option<"replicas", "replicas", "int64_t", /*default=*/"0", "Data-parallel replicas; 0: chosen.">,
    Option<"ranks", "ranks", "int64_t", /*default=*/"1", "Stages x replicas.">,
    Option<"microBatches", "micro-batches", "int64_t", /*default=*/"1", "Micro-batches per step and replica.">,
    Option<"chunks", "chunks", "int64_t", /*default=*/"0", "Chunks a rank, for interleaved; 0: chosen.">,
    Option<"schedule", "schedule", "std::string", /*default=*/"\"auto\"", "auto, gpipe, one_f_one_b, interleaved or zero_bubble.">,
    Option<"partition", "partition", "std::string", /*default=*/"\"frozen_aware\"", "frozen_aware, uniform, parameters or flops.">,
    Option<"recompute", "recompute", "std::string", /*default=*/"\"auto\"", "auto: where memory forces it; else never here.">,
    Option<"frozen", "frozen", "std::string", /*default=*/"\"auto\"", "stage: the frozen prefix is not spread over ranks.">,
    Option<"splitLayers", "split-layers", "bool", /*default=*/"false", "And each layer of it one of its own, without replicas too.">,
    Option<"splitPrefix", "split-prefix", "bool", /*default=*/"false", "With replicas: what is frozen below all that trains is a chunk of its own.">,
    Option<"precision", "precision", "std::string", /*default=*/"\"f32\"", "For costs: f32, bf16 or layered.">,
    Option<"target", "target", "std::string", /*default=*/"\"cpu\"", "For costs: cpu or cuda.">,
    Option<"cluster", "cluster", "std::string", /*default=*/"", "Cluster file; empty: this machine.">,
    Option<"profile", "profile", "std::string", /*default=*/"", "Profile of an earlier run.">,
    ListOption<"cuts", "cuts", "std::string", "First layers of the stages but the first.">
  ];
}

def MarkFrozenCachePass : Pass<"mark-frozen-cache", "::mlir::ModuleOp"> {
  let summary = "Find the narrowest cut behind frozen layers";
  let description = [{
    Forward calls of @train that a run with a cache skips for records it has
    seen bear `pipe.kept`: the results that others read. Calls below which
    something trains or drops are never among them. Where there are none, the
    module gets `pipe.no_cache`, the reason.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
}

def SchedulePass : Pass<"pipe-schedule", "::mlir::ModuleOp"> {
  let summary = "Write the program of each rank for one step";
  let description = [{
    Creates a `pipe.rank` per stage from `pipe.plan`: forward, backward and
    weight ops in the order of the schedule, then combine (all_reduce)
    optimizer. Each micro-batch in flight in a chunk has a slot.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
}

def RunPrefixAheadPass : Pass<"pipe-run-prefix-ahead", "::mlir::ModuleOp"> {
  let summary = "Run the frozen prefix of the next step while gradients are summed";
  let description = [{
    Where there are replicas, the forward ops of chunks that nothing trains in
    and below go from where they are to the end of the program, before
    `optimizer`, and are of the next step's micro-batches. Each has a slot of
    its own, which lives until that step has sent what is in it.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
  let options = [
    Option<"thisStep", "this-step", "bool", /*default=*/"false", "Not ahead: they go to the beginning of the program, with replicas or without.">,
    Option<"layersFirst", "layers-first", "bool", /*default=*/"false", "All micro-batches go through a chunk before the first goes on.">
  ];
}

def InsertCommunicationPass : Pass<"pipe-insert-communication", "::mlir::ModuleOp"> {
  let summary = "Send what one chunk makes and another reads";
  let description = [{
    Creates a `pipe.edge` per value that crosses chunks and reader, and for each
    micro-batch a send after the op that makes it and a receive before the op
    that reads it. Gradients travel only where a backward call gives one.
    Tied parameters: accumulators go to the owner before `combine`, new values
    to the users after `optimizer`. `after` orders what shares a slot.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
}

def SparsifyGradientsPass : Pass<"sparsify-gradients", "::mlir::ModuleOp"> {
  let summary = "Send gradients between replicas in fewer bytes";
  let description = [{
    Each `all_reduce` gets its compression, and each rank that has one gets
    `place_residuals`: what is lost is added to the next step's gradients
    (docs/GradientCompression.md). Programs without replicas stay as they are.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
  let options = [
    Option<"compression", "compression", "std::string", /*default=*/"\"sparse24\"", "bf16, sparse24 or sparse24-int8.">
  ];
}

def OverlapStreamsPass : Pass<"pipe-overlap-streams", "::mlir::ModuleOp"> {
  let summary = "Sum gradients over replicas while backward runs";
  let description = [{
    Cuts the all_reduce of a rank into buckets: gradients in the order in which
    they get their final value. A bucket begins after the call that fills it, of
    the last backward or weight op of its chunk; gradients with several uses
    come last, after `combine`. A few buckets are under way at once, each waits
    for the one whose room it takes. The optimizer waits for all.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
  let options = [
    Option<"bucketBytes", "bucket-bytes", "int64_t", /*default=*/"0",
           "Bytes of gradients from which a bucket is full; 0: a sixteenth of a rank's, within 16 KiB and 25 MiB. The first is full at an eighth of that.">
  ];
}

def ShardFrozenPass : Pass<"pipe-shard-frozen", "::mlir::ModuleOp"> {
  let summary = "Spread the weights of the frozen prefix over ranks";
  let description = [{
    Each chunk of the frozen prefix gets an all_gather of its packed or copied
    weights, in a step and in an evaluation, two ahead of the chunk that runs:
    there are two buffers, and one fills while the other is read. Of what
    several chunks read, and of what kernels read in the mapped file, each rank
    has all. The ranks are the stages of a replica or, of one stage, the
    replicas; one rank alone is left as it is.
  }];
  let options = [
    Option<"copyWeights", "copy-weights", "bool", /*default=*/"false",
           "Frozen weights will be copied into the arena, see pipe-plan-memory: those are spread">
  ];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
}

def PlanMemoryPass : Pass<"pipe-plan-memory", "::mlir::ModuleOp"> {
  let summary = "Place every value of a step in the rank's arena";
  let description = [{
    Turns the calls of @train, @model and @count into sequences of `pipe.call`
    on memory, and places parameters, inputs, outputs, gradients and loss.
    What lives from one sequence of a chunk to the next, or crosses ranks, is in
    the chunk's slots, the rest in a part that all sequences share. Values share
    memory when they are not alive together: largest first, each at the lowest
    offset that is free while it lives.
  }];
  let options = [
    Option<"copyWeights", "copy-weights", "bool", /*default=*/"false",
           "Frozen weights are copied into the arena, in the types in which they are read: for devices that cannot read files">
  ];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
}

def CheckMemoryPass : Pass<"pipe-check-memory", "::mlir::ModuleOp"> {
  let summary = "Prove that each call reads what an earlier one wrote there";
  let description = [{
    Walks the sequences of a rank in the order in which they run. The last
    write that touches a range read must be of exactly that range, or the range
    must belong to a parameter, an input or the seed.
  }];
}

def CheckHazardsPass : Pass<"pipe-check-hazards", "::mlir::ModuleOp"> {
  let summary = "Prove that ops which share memory are ordered";
  let description = [{
    Two ops of a rank that touch a common range of the arena, one of them
    writing, must be ordered by events or by the compute stream.
  }];
}

def CheckMessagesPass : Pass<"pipe-check-messages", "::mlir::ModuleOp"> {
  let summary = "Prove that messages match and that no rank waits for ever";
  let description = [{
    Each send has one receive of the same edge and micro-batch, and the ranks'
    programs, run side by side, come to their ends.
  }];
}

def CheckVariantsPass : Pass<"pipe-check-variants", "::mlir::ModuleOp"> {
  let summary = "Prove that a step may have any of several numbers of micro-batches";
  let description = [{
    The module holds one module with a plan for each number of micro-batches, in
    ascending order. What a rank keeps from step to step must lie at the same
    places in all of them: parameters, optimizer states, packed weights. Stages
    and replicas must agree, too.
  }];
}

def TestDropWaitPass : Pass<"pipe-test-drop-wait", "::mlir::ModuleOp"> {
  let summary = "Test only: leave out one wait for a message or a collective";
  let description = [{
    Waits are counted over the ranks of a program, in its order. After
    `pipe-check-hazards`, which would find most that are missing: so tests see
    that what runs the program finds them, too.
  }];
  let options = [
    Option<"number", "number", "int64_t", /*default=*/"0",
           "Which one, from 0; a number too high is an error that says how many there are.">
  ];
}

#endif // MGQ_PASSES_PIPE_PASSES_TD
