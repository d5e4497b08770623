#ifndef MGQ_PASSES_PIPE_PASSES_TD
#define MGQ_PASSES_PIPE_PASSES_TD

include "mlir/Pass/PassBase.td"

def PartitionStagesPass : Pass<"pipe-partition-stages", "::mlir::ModuleOp"> {
  let summary = "Give every layer call of @train, @model and @count a stage";
  let description = [{
    Sets `pipe.stage` on each call. A backward call gets the stage of its
    forward call. One stage so far.
  }];
  let options = [
    Option<"stages", "stages", "int64_t", /*default=*/"1", "Number of pipeline stages.">
  ];
}

def SchedulePass : Pass<"pipe-schedule", "::mlir::ModuleOp"> {
  let summary = "Write the program of each rank for one step";
  let description = [{
    Creates a `pipe.rank` per stage whose program runs forward and backward of
    each micro-batch, then the optimizer. On one stage every schedule is the
    same: a micro-batch ends before the next begins, so one slot is enough.
  }];
  let dependentDialects = ["::mgq::pipe::PipeDialect"];
  let options = [
    Option<"microBatches", "micro-batches", "int64_t", /*default=*/"1", "Micro-batches per step and replica.">
  ];
}

def PlanMemoryPass : Pass<"pipe-plan-memory", "::mlir::ModuleOp"> {
  let summary = "Place every value of a step in the rank's arena";
  let description = [{
    Turns the calls of @train, @model and @count into sequences of `pipe.call`
    on arena ranges, and places parameters, inputs, outputs, gradients and loss.
    Values of a micro-batch share memory when they are not alive together:
    largest first, each at the lowest offset that is free while it lives.
  }];
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

#endif // MGQ_PASSES_PIPE_PASSES_TD
