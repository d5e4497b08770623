//===- InsertCommunication.cpp - Sends and receives -----------------------===//
//
// In: calls with chunks, programs of compute ops. Out: edges, and in the
// programs their messages:
//
//   %0 = recv @activation0 micro_batch(1)   before the compute op before its
//   %1 = forward ...                        reader, so that it arrives
//   %2 = forward chunk(1) micro_batch(1) after(%0)     meanwhile
//   %3 = send @activation1 micro_batch(1) after(%2)
//
// What a chunk that runs ahead (RunPrefixAhead) hands to the step is sent at
// the beginning of the next step's program, from the slot where it was left.
//
// What the compute stream does not order is ordered by `after`. What leaves a
// rank has room of its own in the slot (ChunkLayout), so that
// - a receive into a slot comes after the last op of the micro-batch before;
// - forward comes after the activations, backward after the gradients, of the
//   micro-batch before have left the slot.
// Neither can last for ever: they are read earlier in the simulation that gave
// out the slots, or by what the waiting op depends on.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/StepGraph.h"

#include "llvm/ADT/MapVector.h"
#include <map>

namespace mgq::pipe {
#define GEN_PASS_DEF_INSERTCOMMUNICATIONPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

namespace {

/// A compute op of a program.
struct Task {
  Operation *op;
  SequenceKind kind;
  int64_t chunk, microBatch, slot;
  bool isAhead = false;
};

/// Writes the messages of all ranks.
class Communication {
public:
  Communication(ModuleOp module, PlanOp plan, StepGraph graph)
      : module(module), plan(plan), graph(std::move(graph)) {}

  void run();

private:
  void createEdges();
  void createTiedEdges();
  int64_t rankOf(int64_t chunk, int64_t microBatch) {
    return graph.stageOf(chunk, microBatch);
  }
  /// The sequence that reads the gradients that a chunk receives.
  SequenceKind gradientReader(int64_t chunk) {
    return chunks[chunk].getBackward() ? SequenceKind::Backward
                                       : SequenceKind::Weight;
  }
  void addMessages(RankOp rank);
  void addTied(RankOp rank);
  void addEvaluation(RankOp rank);

  /// Whether an edge carries what a chunk that runs ahead has made for a later
  /// step.
  bool leavesAhead(EdgeOp edge) {
    return ahead.contains(edge.getFrom()) && !ahead.contains(edge.getTo());
  }
  SendOp send(OpBuilder &builder, EdgeOp edge, const Task &task, bool isAhead,
              ValueRange after);

  ModuleOp module;
  PlanOp plan;
  StepGraph graph;
  llvm::DenseSet<int64_t> ahead; // chunks that run ahead
  SmallVector<ChunkOp> chunks;
  SmallVector<EdgeOp> edges;
};

} // namespace

static std::optional<Task> asTask(Operation &op) {
  auto make = [&](auto task, SequenceKind kind) {
    return Task{&op, kind, int64_t(task.getChunk()),
                int64_t(task.getMicroBatch()), int64_t(task.getSlot())};
  };
  if (auto forward = dyn_cast<ForwardOp>(op)) {
    Task task = make(forward, SequenceKind::Forward);
    task.isAhead = forward.getAhead();
    return task;
  }
  if (auto backward = dyn_cast<BackwardOp>(op))
    return make(backward, SequenceKind::Backward);
  if (auto weight = dyn_cast<WeightGradOp>(op))
    return make(weight, SequenceKind::Weight);
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Edges
//===----------------------------------------------------------------------===//

void Communication::createEdges() {
  OpBuilder builder(plan->getNextNode());
  std::map<EdgeKind, int64_t> numbers;
  for (const Crossing &crossing : graph.crossings()) {
    const CallList &list =
        crossing.kind == EdgeKind::Evaluation ? graph.model : graph.train;
    func::CallOp call = StepGraph::producer(crossing.value);
    std::string name =
        (stringifyEdgeKind(crossing.kind) + Twine(numbers[crossing.kind]++))
            .str();
    edges.push_back(EdgeOp::create(
        builder, call.getLoc(), name, crossing.kind, crossing.from, crossing.to,
        list.numberOf(call), cast<OpResult>(crossing.value).getResultNumber(),
        FlatSymbolRefAttr(), cast<RankedTensorType>(crossing.value.getType())));
  }
  createTiedEdges();
}

/// Parameters that several stages train: the stage of the first use owns them.
void Communication::createTiedEdges() {
  OpBuilder builder(plan->getNextNode());
  func::FuncOp train = graph.train.function();
  Operation *ret = graph.train.returnOp();
  auto stageOf = [&](func::CallOp call) {
    return rankOf(StepGraph::chunkOf(call), 0);
  };
  int64_t accumulators = 0, parameters = 0;
  for (auto &[param, owner] : graph.owners(module)) {
    FlatSymbolRefAttr symbol = FlatSymbolRefAttr::get(param);
    RankedTensorType type =
        module.lookupSymbol<nn::ParamOp>(param).getValueType();
    for (unsigned i = 0; i < train.getNumResults(); ++i) {
      auto of = train.getResultAttrOfType<FlatSymbolRefAttr>(i, "nn.gradient");
      func::CallOp call = StepGraph::producer(ret->getOperand(i));
      if (of == symbol && stageOf(call) != owner)
        edges.push_back(EdgeOp::create(
            builder, call.getLoc(),
            "accumulator" + std::to_string(accumulators++),
            EdgeKind::Accumulator, stageOf(call), owner, i, 0, symbol, type));
    }
    for (int64_t user : graph.usersOf(param))
      if (user != owner)
        edges.push_back(EdgeOp::create(
            builder, train.getLoc(), "parameter" + std::to_string(parameters++),
            EdgeKind::Parameter, owner, user, -1, 0, symbol, type));
  }
}

//===----------------------------------------------------------------------===//
// Messages of micro-batches
//===----------------------------------------------------------------------===//

namespace {
/// Adds to a program's `after` lists.
struct Order {
  llvm::MapVector<Operation *, SmallVector<Value>> after;

  void add(Operation *op, ArrayRef<Value> events) {
    for (Value event : events)
      if (!llvm::is_contained(after[op], event))
        after[op].push_back(event);
  }
  void write() {
    for (auto &[op, events] : after)
      op->insertOperands(op->getNumOperands(), events);
  }
};
} // namespace

SendOp Communication::send(OpBuilder &builder, EdgeOp edge, const Task &task,
                           bool isAhead, ValueRange after) {
  return SendOp::create(
      builder, task.op->getLoc(), EventType::get(builder.getContext()),
      edge.getSymName(), builder.getI64IntegerAttr(task.microBatch),
      builder.getI64IntegerAttr(task.slot),
      rankOf(edge.getTo(), task.microBatch), isAhead, Attribute(), after);
}

void Communication::addMessages(RankOp rank) {
  SmallVector<Task> tasks;
  for (Operation &op : rank.getBody().front())
    if (auto task = asTask(op))
      tasks.push_back(*task);
  auto event = EventType::get(rank.getContext());
  OpBuilder builder(rank.getContext());
  Order order;

  // By chunk and slot: number of the last task there, sends of the micro-batch
  // there.
  struct Slot {
    int64_t lastTask = -1;
    bool isUsedAgain = false;                  // not by the first micro-batch
    SmallVector<Value> activations, gradients; // sends
    /// Gradient sends of the micro-batch before: they may still be under way
    /// while this one runs forward.
    SmallVector<Value> leaving;
  };
  std::map<std::pair<int64_t, int64_t>, Slot> slots;

  // What the step before has made ahead leaves first; it has left when it is
  // made for the next one.
  builder.setInsertionPointToStart(&rank.getBody().front());
  for (const Task &task : tasks)
    for (EdgeOp edge : edges)
      if (task.isAhead && edge.getKind() == EdgeKind::Activation &&
          int64_t(edge.getFrom()) == task.chunk && leavesAhead(edge))
        order.add(task.op,
                  {send(builder, edge, task, /*isAhead=*/false, ValueRange())
                       .getEvent()});

  for (auto [i, task] : llvm::enumerate(tasks)) {
    Slot &slot = slots[{task.chunk, task.slot}];
    bool isForward = task.kind == SequenceKind::Forward;
    Slot before = slot;
    if (isForward) {
      slot = Slot();
      slot.isUsedAgain = before.lastTask >= 0;
      slot.leaving =
          before.gradients.empty() ? before.leaving : before.gradients;
    }
    // What a task writes that leaves the rank has left before.
    order.add(task.op, isForward ? before.activations : slot.leaving);

    EdgeKind incoming = isForward ? EdgeKind::Activation : EdgeKind::Gradient;
    // Received while the task before runs, if the slot is free by then.
    bool isEarly = i > 0 && before.lastTask < int64_t(i) - 1;
    builder.setInsertionPoint(isEarly ? tasks[i - 1].op : task.op);
    for (EdgeOp edge : edges) {
      if (edge.getKind() != incoming || int64_t(edge.getTo()) != task.chunk ||
          (!isForward && task.kind != gradientReader(task.chunk)))
        continue;
      // Gradients have room that forward does not touch.
      SmallVector<Value> after;
      if (before.lastTask >= 0 && (isForward || before.isUsedAgain))
        after.push_back(tasks[before.lastTask].op->getResult(0));
      auto recv =
          RecvOp::create(builder, task.op->getLoc(), event, edge.getSymName(),
                         builder.getI64IntegerAttr(task.microBatch),
                         builder.getI64IntegerAttr(task.slot),
                         rankOf(edge.getFrom(), task.microBatch), task.isAhead,
                         Attribute(), after);
      order.add(task.op, {recv.getEvent()});
    }

    EdgeKind outgoing = isForward ? EdgeKind::Activation : EdgeKind::Gradient;
    builder.setInsertionPointAfter(task.op);
    for (EdgeOp edge : edges) {
      if (edge.getKind() != outgoing || int64_t(edge.getFrom()) != task.chunk ||
          task.kind != graph.sequenceOf(graph.train.calls()[edge.getCall()]) ||
          leavesAhead(edge))
        continue;
      auto message = send(builder, edge, task, task.isAhead,
                          ValueRange(task.op->getResult(0)));
      (isForward ? slot.activations : slot.gradients)
          .push_back(message.getEvent());
    }
    slot.lastTask = i;
  }
  order.write();
}

//===----------------------------------------------------------------------===//
// Once a step: tied parameters
//===----------------------------------------------------------------------===//

void Communication::addTied(RankOp rank) {
  int64_t stage = rank.getStage();
  auto event = EventType::get(rank.getContext());
  CombineOp combine = *rank.getOps<CombineOp>().begin();
  OptimizerOp optimizer = *rank.getOps<OptimizerOp>().begin();
  Operation *lastTask = nullptr;
  for (Operation &op : rank.getBody().front())
    if (asTask(op))
      lastTask = &op;
  auto afterTasks = [&]() -> SmallVector<Value> {
    if (!lastTask)
      return {};
    return {lastTask->getResult(0)};
  };
  OpBuilder builder(combine);
  Order order;
  for (EdgeOp edge : edges) {
    if (edge.getKind() != EdgeKind::Accumulator)
      continue;
    builder.setInsertionPoint(combine);
    if (int64_t(edge.getFrom()) == stage)
      SendOp::create(builder, edge.getLoc(), event, edge.getSymName(),
                     IntegerAttr(), IntegerAttr(), edge.getTo(),
                     /*ahead=*/false, Attribute(), afterTasks());
    if (int64_t(edge.getTo()) == stage) {
      auto recv =
          RecvOp::create(builder, edge.getLoc(), event, edge.getSymName(),
                         IntegerAttr(), IntegerAttr(), edge.getFrom(),
                         /*ahead=*/false, Attribute(), ValueRange());
      order.add(combine, {recv.getEvent()});
    }
  }
  builder.setInsertionPointToEnd(&rank.getBody().front());
  for (EdgeOp edge : edges) {
    if (edge.getKind() != EdgeKind::Parameter)
      continue;
    if (int64_t(edge.getFrom()) == stage)
      SendOp::create(builder, edge.getLoc(), event, edge.getSymName(),
                     IntegerAttr(), IntegerAttr(), edge.getTo(),
                     /*ahead=*/false, Attribute(),
                     ValueRange(optimizer.getEvent()));
    if (int64_t(edge.getTo()) == stage)
      RecvOp::create(builder, edge.getLoc(), event, edge.getSymName(),
                     IntegerAttr(), IntegerAttr(), edge.getFrom(),
                     /*ahead=*/false, Attribute(), afterTasks());
  }
  order.write();
}

//===----------------------------------------------------------------------===//
// Evaluation
//===----------------------------------------------------------------------===//

void Communication::addEvaluation(RankOp rank) {
  int64_t stage = rank.getStage();
  auto event = EventType::get(rank.getContext());
  OpBuilder builder = OpBuilder::atBlockEnd(&rank.getBody().front());
  auto evaluation = EvaluationOp::create(builder, rank.getLoc());
  builder.createBlock(&evaluation.getBody());
  // Values of an evaluation have one place on a rank: chunks of one rank find
  // them there.
  auto isMessage = [&](EdgeOp edge, int64_t end, int64_t chunk) {
    return edge.getKind() == EdgeKind::Evaluation && end == chunk &&
           rankOf(edge.getFrom(), 0) != rankOf(edge.getTo(), 0);
  };
  SmallVector<Value> last;
  for (int64_t chunk = 0; chunk < graph.chunks; ++chunk) {
    if (rankOf(chunk, 0) != stage)
      continue;
    SmallVector<Value> after;
    for (EdgeOp edge : edges)
      if (isMessage(edge, edge.getTo(), chunk))
        after.push_back(RecvOp::create(builder, edge.getLoc(), event,
                                       edge.getSymName(), IntegerAttr(),
                                       IntegerAttr(), rankOf(edge.getFrom(), 0),
                                       /*ahead=*/false, Attribute(), last)
                            .getEvent());
    auto evaluate =
        EvaluateOp::create(builder, rank.getLoc(), event, chunk, after);
    last.assign({evaluate.getEvent()});
    for (EdgeOp edge : edges)
      if (isMessage(edge, edge.getFrom(), chunk))
        SendOp::create(builder, edge.getLoc(), event, edge.getSymName(),
                       IntegerAttr(), IntegerAttr(), rankOf(edge.getTo(), 0),
                       /*ahead=*/false, Attribute(),
                       ValueRange(evaluate.getEvent()));
  }
}

void Communication::run() {
  llvm::append_range(chunks, plan.getOps<ChunkOp>());
  for (RankOp rank : module.getOps<RankOp>())
    for (ForwardOp forward : rank.getOps<ForwardOp>())
      if (forward.getAhead())
        ahead.insert(forward.getChunk());
  createEdges();
  for (RankOp rank : module.getOps<RankOp>()) {
    addMessages(rank);
    addTied(rank);
    addEvaluation(rank);
  }
}

namespace {
struct InsertCommunicationPass
    : mgq::pipe::impl::InsertCommunicationPassBase<InsertCommunicationPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<StepGraph> graph = StepGraph::create(module);
    if (failed(graph))
      return signalPassFailure();
    PlanOp plan = graph->plan;
    Communication(module, plan, std::move(*graph)).run();
  }
};
} // namespace
