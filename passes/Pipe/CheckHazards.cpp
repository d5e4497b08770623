//===- CheckHazards.cpp - Ops that share memory are ordered ---------------===//
//
// Happens-before of a rank's program: an op of the compute stream comes after
// the one before it on that stream, and every op after the events of its
// `after`. A message or an all_reduce is an op like any other: it begins after
// its events and may end at any time until somebody waits for it. A backward op
// in which all_reduces begin is several ops, one behind the other, cut at those
// calls. Two ops that touch a common byte, one of them writing, must be
// connected.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"
#include "passes/Pipe/StepGraph.h"

#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/StringMap.h"
#include <map>
#include <set>

namespace mgq::pipe {
#define GEN_PASS_DEF_CHECKHAZARDSPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

namespace {

/// A range of the arena that an op touches.
struct Access {
  int64_t begin, end;
  bool isWrite;
};

/// Calls of a sequence, both included.
struct CallRange {
  int64_t first = 0, last = INT64_MAX;

  bool contains(int64_t call) const { return call >= first && call <= last; }
};

/// An op of the program, or those calls of it, with all that it touches.
struct Node {
  Operation *op;
  CallRange calls;
  SmallVector<Access> accesses;
  llvm::BitVector before; // ops that have happened when it begins
};

class Program {
public:
  Program(RankOp rank, Block &block);
  LogicalResult check();

private:
  void touch(Node &node, Attribute place, int64_t slot, bool isWrite);
  void touchSequence(Node &node, SequenceKind kind, int64_t chunk,
                     int64_t slot);
  void addNodes(Operation *op, ArrayRef<int64_t> cuts);
  void touchParam(Node &node, StringRef name, int64_t offset);
  void collect(Node &node);

  RankOp rank;
  ModuleOp module;
  std::vector<Node> nodes;
  llvm::DenseMap<Operation *, unsigned> lastNode;
  /// The part of an op that ends with a call.
  std::map<std::pair<Operation *, int64_t>, unsigned> partEndingWith;
};

} // namespace

/// Whether an op runs beside the compute stream.
static bool isBeside(Operation *op) {
  return isa<SendOp, RecvOp, AllReduceOp, AllGatherOp>(op);
}

void Program::touch(Node &node, Attribute place, int64_t slot, bool isWrite) {
  int64_t begin = -1, bytes = 0;
  if (auto range = dyn_cast_or_null<ArenaAttr>(place)) {
    begin = range.getOffset();
    bytes = range.getBytes();
  } else if (auto range = dyn_cast_or_null<SlotAttr>(place)) {
    PlaceSlotsOp slots = rank.getSlots(range.getChunk());
    begin = int64_t(slots.getOffset()) + slot * int64_t(slots.getBytes()) +
            range.getOffset();
    bytes = range.getBytes();
  }
  if (bytes > 0)
    node.accesses.push_back({begin, begin + bytes, isWrite});
}

void Program::touchSequence(Node &node, SequenceKind kind, int64_t chunk,
                            int64_t slot) {
  SequenceOp sequence = rank.getSequence(kind, chunk);
  if (!sequence)
    return;
  int64_t number = -1;
  for (Operation &op : sequence.getBody().front()) {
    auto load = dyn_cast<LoadOp>(op);
    if (load && node.calls.first == 0)
      touch(node, load.getPlace(), slot, /*isWrite=*/true);
    auto call = dyn_cast<CallOp>(op);
    if (!call || !node.calls.contains(++number))
      continue;
    touch(node, call.getScratch(), slot, /*isWrite=*/true);
    int64_t reads = call.getArgs().size() - call.getResults();
    for (auto [i, arg] : llvm::enumerate(call.getArgs()))
      touch(node, arg, slot, int64_t(i) >= reads);
  }
  for (PlaceGradientOp gradient : rank.getOps<PlaceGradientOp>())
    if (int64_t(gradient.getChunk()) == chunk &&
        gradient.getWeight() == (kind == SequenceKind::Weight) &&
        kind != SequenceKind::Forward &&
        node.calls.contains(gradient.getAfter()))
      touchParam(node, gradient.getParam(), gradient.getAccumulator());
}

/// What an op of the program reads and writes.
void Program::collect(Node &node) {
  Operation *op = node.op;
  auto task = [&](auto task, SequenceKind kind) {
    touchSequence(node, kind, task.getChunk(), task.getSlot());
  };
  if (auto forward = dyn_cast<ForwardOp>(op))
    task(forward, SequenceKind::Forward);
  else if (auto backward = dyn_cast<BackwardOp>(op))
    task(backward, SequenceKind::Backward);
  else if (auto weight = dyn_cast<WeightGradOp>(op))
    task(weight, SequenceKind::Weight);
  else if (auto evaluate = dyn_cast<EvaluateOp>(op))
    touchSequence(node, SequenceKind::Evaluate, evaluate.getChunk(), 0);
  else if (auto send = dyn_cast<SendOp>(op))
    touch(node, send.getPlaceAttr(), send.getSlot().value_or(0),
          /*isWrite=*/false);
  else if (auto recv = dyn_cast<RecvOp>(op))
    touch(node, recv.getPlaceAttr(), recv.getSlot().value_or(0),
          /*isWrite=*/true);
  else if (auto reduce = dyn_cast<AllReduceOp>(op)) {
    touch(node, reduce.getPlaceAttr(), 0, /*isWrite=*/true);
    touch(node, reduce.getRoomAttr(), 0, /*isWrite=*/true);
  } else if (auto gather = dyn_cast<AllGatherOp>(op)) {
    touch(node, gather.getPlaceAttr(), 0, /*isWrite=*/true);
    touch(node, gather.getSliceAttr(), 0, /*isWrite=*/false);
  } else if (isa<CombineOp>(op)) {
    // A parameter with one use is left alone.
    llvm::StringMap<int64_t> uses;
    for (PlaceUseOp use : rank.getOps<PlaceUseOp>())
      ++uses[use.getParam()];
    for (PlaceUseOp use : rank.getOps<PlaceUseOp>())
      if (uses[use.getParam()] > 1)
        touchParam(node, use.getParam(), use.getAccumulator());
  }
  if (isa<OptimizerOp>(op))
    for (PlaceParamOp param : rank.getOps<PlaceParamOp>())
      if (param.getGradient())
        for (uint64_t offset : {*param.getValue(), *param.getGradient(),
                                *param.getMomentum(), *param.getVariance()})
          touchParam(node, param.getParam(), offset);
}

/// A parameter's value, or something of its size.
void Program::touchParam(Node &node, StringRef name, int64_t offset) {
  auto param = module.lookupSymbol<mgq::nn::ParamOp>(name);
  int64_t bytes = param ? byteSize(param.getValueType()) : 4;
  node.accesses.push_back({offset, offset + bytes, /*isWrite=*/true});
}

/// Adds the parts of an op, which end with the calls `cuts`.
void Program::addNodes(Operation *op, ArrayRef<int64_t> cuts) {
  int64_t first = 0;
  for (int64_t last : cuts) {
    partEndingWith[{op, last}] = nodes.size();
    nodes.push_back({op, {first, last}, {}, {}});
    first = last + 1;
  }
  lastNode[op] = nodes.size();
  nodes.push_back({op, {first, INT64_MAX}, {}, {}});
}

Program::Program(RankOp rank, Block &block)
    : rank(rank), module(rank->getParentOfType<ModuleOp>()) {
  llvm::DenseMap<Operation *, std::set<int64_t>> cuts;
  for (auto reduce : block.getOps<AllReduceOp>())
    if (reduce.getCall())
      cuts[reduce.getAfter()[0].getDefiningOp()].insert(*reduce.getCall());
  for (Operation &op : block)
    if (op.getNumResults() == 1 && isa<EventType>(op.getResult(0).getType())) {
      const std::set<int64_t> &its = cuts[&op];
      addNodes(&op, SmallVector<int64_t>(its.begin(), its.end()));
    }
  int64_t lastCompute = -1;
  for (size_t i = 0; i < nodes.size(); ++i) {
    Node &node = nodes[i];
    node.before.resize(nodes.size());
    auto addBefore = [&](unsigned earlier) {
      node.before |= nodes[earlier].before;
      node.before.set(earlier);
    };
    auto reduce = dyn_cast<AllReduceOp>(node.op);
    for (auto [number, event] : llvm::enumerate(node.op->getOperands())) {
      Operation *earlier = event.getDefiningOp();
      if (reduce && reduce.getCall() && number == 0)
        addBefore(partEndingWith.at({earlier, int64_t(*reduce.getCall())}));
      else
        addBefore(lastNode.lookup(earlier));
    }
    if (!isBeside(node.op)) {
      if (lastCompute >= 0)
        addBefore(lastCompute);
      lastCompute = i;
    }
    collect(node);
  }
}

/// Two accesses that must not happen at once, if there are any.
static const Access *conflict(const Node &a, const Node &b) {
  for (const Access &x : a.accesses)
    for (const Access &y : b.accesses)
      if ((x.isWrite || y.isWrite) && x.begin < y.end && y.begin < x.end)
        return &x;
  return nullptr;
}

LogicalResult Program::check() {
  // Compute ops are ordered among themselves: one side runs beside them.
  for (auto [j, later] : llvm::enumerate(nodes))
    for (size_t i = 0; i < j; ++i) {
      const Node &earlier = nodes[i];
      if (later.before.test(i) ||
          (!isBeside(later.op) && !isBeside(earlier.op)))
        continue;
      const Access *access = conflict(earlier, later);
      if (!access)
        continue;
      InFlightDiagnostic diagnostic =
          later.op->emitOpError("may run while an earlier op uses bytes ")
          << access->begin << " to " << access->end << " of the arena";
      diagnostic.attachNote(earlier.op->getLoc())
          << "the earlier op: " << *earlier.op;
      return diagnostic;
    }
  return success();
}

/// What chunks that run ahead leave for the next step must outlive what runs
/// between steps: evaluations, and counting.
static LogicalResult checkKept(RankOp rank) {
  SmallVector<Access> kept;
  llvm::DenseSet<int64_t> chunks;
  for (ForwardOp forward : rank.getOps<ForwardOp>())
    if (forward.getAhead() && chunks.insert(forward.getChunk()).second)
      if (PlaceSlotsOp slots = rank.getSlots(forward.getChunk())) {
        int64_t begin = slots.getOffset();
        kept.push_back({begin,
                        begin + int64_t(slots.getBytes() * slots.getCount()),
                        true});
      }
  auto check = [&](Operation *op, Attribute place) -> LogicalResult {
    auto range = dyn_cast_or_null<ArenaAttr>(place);
    for (const Access &access : kept)
      if (range && range.getOffset() < access.end &&
          access.begin < range.getOffset() + range.getBytes())
        return op->emitOpError("uses bytes of the arena in which a chunk that "
                               "runs ahead keeps values for the next step");
    return success();
  };
  for (SequenceOp sequence : rank.getOps<SequenceOp>()) {
    if (sequence.getKind() != SequenceKind::Evaluate &&
        sequence.getKind() != SequenceKind::Count)
      continue;
    for (Operation &op : sequence.getBody().front()) {
      if (auto load = dyn_cast<LoadOp>(op))
        if (failed(check(load, load.getPlace())))
          return failure();
      if (auto call = dyn_cast<CallOp>(op))
        for (Attribute arg : call.getArgs())
          if (failed(check(call, arg)))
            return failure();
    }
  }
  return success();
}

namespace {
struct CheckHazardsPass
    : mgq::pipe::impl::CheckHazardsPassBase<CheckHazardsPass> {
  void runOnOperation() override {
    for (RankOp rank : getOperation().getOps<RankOp>()) {
      if (!rank.getMemory())
        continue;
      if (failed(Program(rank, rank.getBody().front()).check()) ||
          failed(checkKept(rank)))
        return signalPassFailure();
      for (EvaluationOp evaluation : rank.getOps<EvaluationOp>())
        if (failed(Program(rank, evaluation.getBody().front()).check()))
          return signalPassFailure();
    }
    markAllAnalysesPreserved();
  }
};
} // namespace
