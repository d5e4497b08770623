#ifndef MGQ_PIPE_DIALECT_TD
#define MGQ_PIPE_DIALECT_TD

include "mlir/IR/OpBase.td"

def Pipe_Dialect : Dialect {
  let name = "pipe";
  let cppNamespace = "::mgq::pipe";
  let summary = "what each rank does in one training step";
  let description = [{
    A `pipe.rank` is one rank's share of a step: where parameters, inputs and
    values live in its arena, the sequences of kernel calls, and the program
    that runs them for each micro-batch. Nothing here computes; `emit` turns a
    rank into the constant tables of runtime/include/rt.h.
  }];
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
}

class Pipe_Op<string mnemonic, list<Trait> traits = []> :
    Op<Pipe_Dialect, mnemonic, traits>;

#endif // MGQ_PIPE_DIALECT_TD
