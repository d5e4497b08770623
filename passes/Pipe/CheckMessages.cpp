//===- CheckMessages.cpp - Messages match, programs end -------------------===//
//
// Runs the programs of all ranks side by side without computing. A rank waits
// where the events of `after` have not happened; a message happens when both
// its sides have begun, a gather over stages when all have begun it. Programs
// have no choices, so one run shows all of them.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"

#include <map>

namespace mgq::pipe {
#define GEN_PASS_DEF_CHECKMESSAGESPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

namespace {

/// One message: edge, micro-batch (-1: once a step), source and destination.
struct Message {
  StringRef edge;
  int64_t microBatch, from, to;

  bool operator<(const Message &other) const {
    return std::tie(edge, microBatch, from, to) <
           std::tie(other.edge, other.microBatch, other.from, other.to);
  }
};

/// The two sides of a message.
struct Sides {
  Operation *send = nullptr, *recv = nullptr;
  bool sendBegun = false, recvBegun = false;
};

} // namespace

static std::optional<Message> asMessage(Operation *op, int64_t stage) {
  if (auto send = dyn_cast<SendOp>(op))
    return Message{send.getEdge(), int64_t(send.getMicroBatch().value_or(-1)),
                   stage, int64_t(send.getPeer())};
  if (auto recv = dyn_cast<RecvOp>(op))
    return Message{recv.getEdge(), int64_t(recv.getMicroBatch().value_or(-1)),
                   int64_t(recv.getPeer()), stage};
  return std::nullopt;
}

namespace {
/// Programs of all ranks: of a step, or of an evaluation.
class Run {
public:
  void add(RankOp rank, Block &block);
  LogicalResult check();

private:
  struct Program {
    int64_t stage;
    SmallVector<Operation *> ops;
    size_t next = 0, gathers = 0; ///< Begun so far.
  };
  LogicalResult checkGathers() const;
  bool hasHappened(Value event) const {
    Operation *op = event.getDefiningOp();
    if (auto it = gatherNumber.find(op); it != gatherNumber.end())
      return llvm::all_of(programs, [&](const Program &program) {
        return program.gathers > it->second;
      });
    auto it = sideOf.find(op);
    if (it == sideOf.end())
      return begun.contains(op);
    const Sides &sides = messages.at(it->second);
    return sides.sendBegun && sides.recvBegun;
  }

  std::vector<Program> programs;
  std::map<Message, Sides> messages;
  std::map<Operation *, Message> sideOf;
  std::map<Operation *, size_t> gatherNumber; ///< In its program.
  llvm::DenseSet<Operation *> begun;
  LogicalResult added = success();
};
} // namespace

void Run::add(RankOp rank, Block &block) {
  Program program{int64_t(rank.getStage()), {}, 0};
  for (Operation &op : block) {
    if (op.getNumResults() != 1 || !isa<EventType>(op.getResult(0).getType()))
      continue;
    program.ops.push_back(&op);
    if (isa<AllGatherOp>(op))
      gatherNumber.insert({&op, program.gathers++});
    auto message = asMessage(&op, program.stage);
    if (!message)
      continue;
    sideOf.insert({&op, *message});
    Sides &sides = messages[*message];
    Operation *&side = isa<SendOp>(op) ? sides.send : sides.recv;
    if (side && succeeded(added))
      added = op.emitOpError("is a second one of @")
              << message->edge << " for micro-batch " << message->microBatch;
    side = &op;
  }
  programs.push_back(std::move(program));
}

static SmallVector<AllGatherOp> gathersOf(ArrayRef<Operation *> ops) {
  SmallVector<AllGatherOp> gathers;
  for (Operation *op : ops)
    if (auto gather = dyn_cast<AllGatherOp>(op))
      gathers.push_back(gather);
  return gathers;
}

/// All ranks begin the gathers of the same chunks in the same order.
LogicalResult Run::checkGathers() const {
  if (programs.empty())
    return success();
  SmallVector<AllGatherOp> first = gathersOf(programs[0].ops);
  for (const Program &program : programs) {
    SmallVector<AllGatherOp> gathers = gathersOf(program.ops);
    for (size_t i = 0; i < std::max(first.size(), gathers.size()); ++i)
      if (i >= first.size() || i >= gathers.size() ||
          first[i].getChunk() != gathers[i].getChunk())
        return (i < gathers.size() ? gathers[i] : first[i])
                   .emitOpError("is number ")
               << i << ", but stages " << programs[0].stage << " and "
               << program.stage << " do not gather the same in the same order";
  }
  return success();
}

LogicalResult Run::check() {
  if (failed(added) || failed(checkGathers()))
    return failure();
  for (Program &program : programs)
    program.gathers = 0;
  for (auto &[message, sides] : messages)
    if (!sides.send || !sides.recv) {
      Operation *op = sides.send ? sides.send : sides.recv;
      return op->emitOpError("of @")
             << message.edge << " has no "
             << (sides.send ? "receive on stage " : "send on stage ")
             << (sides.send ? message.to : message.from);
    }
  for (bool moved = true; moved;) {
    moved = false;
    for (Program &program : programs)
      while (program.next < program.ops.size()) {
        Operation *op = program.ops[program.next];
        if (!llvm::all_of(op->getOperands(),
                          [&](Value event) { return hasHappened(event); }))
          break;
        begun.insert(op);
        program.gathers += isa<AllGatherOp>(op);
        if (auto it = sideOf.find(op); it != sideOf.end())
          (isa<SendOp>(op) ? messages[it->second].sendBegun
                           : messages[it->second].recvBegun) = true;
        ++program.next;
        moved = true;
      }
  }
  for (const Program &program : programs)
    if (program.next < program.ops.size())
      return program.ops[program.next]->emitOpError("of stage ")
             << program.stage << " waits for ever";
  return success();
}

namespace {
struct CheckMessagesPass
    : mgq::pipe::impl::CheckMessagesPassBase<CheckMessagesPass> {
  void runOnOperation() override {
    Run step, evaluation;
    for (RankOp rank : getOperation().getOps<RankOp>()) {
      step.add(rank, rank.getBody().front());
      for (EvaluationOp op : rank.getOps<EvaluationOp>())
        evaluation.add(rank, op.getBody().front());
    }
    if (failed(step.check()) || failed(evaluation.check()))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace
