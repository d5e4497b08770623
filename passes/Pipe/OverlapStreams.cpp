//===- OverlapStreams.cpp - Gradients are summed while backward runs ------===//
//
// In: programs with their messages; where there are replicas, one all_reduce of
// all gradients that a rank owns, between combine and optimizer. Out: buckets.
//
//   %b = backward chunk(1) micro_batch(3)
//   %0 = all_reduce bucket(0) of [@w3, @v3] after(%b) call(2)
//   %1 = all_reduce bucket(1) of [@w2] after(%b) call(5)
//   %c = combine
//   %2 = all_reduce bucket(2) of [@tied] after(%c)
//   optimizer after(%0, %1, %2)
//
// Gradients are summed over micro-batches in ascending order in every schedule,
// so those of a chunk are final in its last backward (or weight) op, each after
// the call that leaves it. In that order they fill buckets, as in PyTorch's
// DistributedDataParallel (Li et al., arXiv 2006.15704, section 3.2), and lie
// in the arena. A gradient that is summed of several uses is final after
// combine only.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/RankMemory.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_OVERLAPSTREAMSPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

// Buckets that may be under way at once: while the sums of one are made another
// travels. More cost room and hide nothing more.
static constexpr size_t kUnderWay = 4;
// Default sizes: DistributedDataParallel's at most; so small at least that a
// message's latency (some 50 us) is little beside its time on 1 Gbit/s.
static constexpr int64_t kLargestBucket = int64_t(25) << 20;
static constexpr int64_t kSmallestBucket = int64_t(16) << 10;

namespace {

/// An owned gradient, and when it has its final value.
struct Gradient {
  StringAttr param;
  int64_t bytes;
  size_t number; // in the module
  Operation *op; // the last one that adds to it; null: combine
  int64_t call;  // of that op

  bool isBefore(const Gradient &other) const {
    if (op != other.op)
      return op && (!other.op || op->isBeforeInBlock(other.op));
    return std::tie(call, number) < std::tie(other.call, other.number);
  }
};

/// Cuts the all_reduce of one rank.
class Buckets {
public:
  Buckets(const StepGraph &graph, RankOp rank, AllReduceOp whole)
      : graph(graph), rank(rank), whole(whole) {}

  void run(ModuleOp module, int64_t bucketBytes);

private:
  SmallVector<Gradient> collect(ModuleOp module);
  Operation *lastOp(SequenceKind kind, int64_t chunk);
  void create(ArrayRef<Gradient> gradients);

  const StepGraph &graph;
  RankOp rank;
  AllReduceOp whole;
  SmallVector<Value> events; // of the buckets so far
};

} // namespace

/// The last backward or weight op of a chunk on the rank.
Operation *Buckets::lastOp(SequenceKind kind, int64_t chunk) {
  Operation *last = nullptr;
  for (Operation &op : rank.getBody().front()) {
    auto backward = dyn_cast<BackwardOp>(op);
    auto weight = dyn_cast<WeightGradOp>(op);
    if ((kind == SequenceKind::Backward && backward &&
         int64_t(backward.getChunk()) == chunk) ||
        (kind == SequenceKind::Weight && weight &&
         int64_t(weight.getChunk()) == chunk))
      last = &op;
  }
  return last;
}

/// Owned gradients in the order in which they are final, then in that of the
/// module.
SmallVector<Gradient> Buckets::collect(ModuleOp module) {
  func::FuncOp train = graph.train.function();
  Operation *ret = graph.train.returnOp();
  llvm::MapVector<StringAttr, int64_t> owners = graph.owners(module);
  llvm::DenseMap<StringAttr, SmallVector<func::CallOp>> makers;
  forEachGradient(train, [&](unsigned i, StringAttr param) {
    makers[param].push_back(StepGraph::producer(ret->getOperand(i)));
  });
  SmallVector<Gradient> found;
  for (nn::ParamOp param : module.getOps<nn::ParamOp>()) {
    StringAttr name = param.getSymNameAttr();
    auto owner = owners.find(name);
    if (owner == owners.end() || owner->second != int64_t(rank.getStage()))
      continue;
    Gradient gradient{name, byteSize(param.getValueType()), found.size(),
                      nullptr, -1};
    ArrayRef<func::CallOp> calls = makers[name];
    if (calls.size() == 1 && calls[0]) {
      SequenceKind kind = graph.sequenceOf(calls[0]);
      int64_t chunk = StepGraph::chunkOf(calls[0]);
      gradient.op = lastOp(kind, chunk);
      ArrayRef<func::CallOp> sequence = graph.calls(kind, chunk);
      gradient.call = llvm::find(sequence, calls[0]) - sequence.begin();
    }
    found.push_back(gradient);
  }
  llvm::sort(found, [](const Gradient &a, const Gradient &b) {
    return a.isBefore(b);
  });
  return found;
}

/// One bucket; its last gradient is the last to be final.
void Buckets::create(ArrayRef<Gradient> gradients) {
  const Gradient &last = gradients.back();
  OpBuilder builder(whole);
  if (last.op) {
    // Behind the buckets that begin in the same op.
    Operation *behind = last.op;
    while (isa<AllReduceOp>(behind->getNextNode()))
      behind = behind->getNextNode();
    builder.setInsertionPointAfter(behind);
  }
  SmallVector<Attribute> params;
  for (const Gradient &gradient : gradients)
    params.push_back(FlatSymbolRefAttr::get(gradient.param));
  SmallVector<Value> after;
  if (last.op)
    after.push_back(last.op->getResult(0));
  else
    llvm::append_range(after, whole.getAfter());
  size_t number = events.size();
  if (number >= kUnderWay)
    after.push_back(events[number - kUnderWay]);
  auto reduce = AllReduceOp::create(
      builder, whole.getLoc(), whole.getEvent().getType(),
      builder.getI64IntegerAttr(number), builder.getArrayAttr(params),
      Attribute(), ArenaAttr(),
      last.op ? builder.getI64IntegerAttr(last.call) : IntegerAttr(),
      CompressionAttr(), after);
  events.push_back(reduce.getEvent());
}

void Buckets::run(ModuleOp module, int64_t bucketBytes) {
  SmallVector<Gradient> gradients = collect(module);
  if (bucketBytes == 0) {
    int64_t all = 0;
    for (const Gradient &gradient : gradients)
      all += gradient.bytes;
    bucketBytes = std::clamp(all / 16, kSmallestBucket, kLargestBucket);
  }
  // The first one is small, so that the link has something to do early.
  int64_t limit = std::max<int64_t>(1, bucketBytes / 8);
  size_t first = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    bytes += gradients[i].bytes;
    // What combine adds up is late: nothing early waits for it.
    bool isLast = i + 1 == gradients.size() ||
                  bool(gradients[i].op) != bool(gradients[i + 1].op);
    if (bytes < limit && !isLast)
      continue;
    create(ArrayRef(gradients).slice(first, i + 1 - first));
    first = i + 1;
    bytes = 0;
    limit = bucketBytes;
  }
  for (OpOperand &use : llvm::make_early_inc_range(whole->getUses())) {
    Operation *user = use.getOwner();
    user->eraseOperand(use.getOperandNumber());
    user->insertOperands(user->getNumOperands(), events);
  }
  whole->erase();
}

namespace {
struct OverlapStreamsPass
    : mgq::pipe::impl::OverlapStreamsPassBase<OverlapStreamsPass> {
  using OverlapStreamsPassBase::OverlapStreamsPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<StepGraph> graph = StepGraph::create(module);
    if (failed(graph))
      return signalPassFailure();
    for (RankOp rank : module.getOps<RankOp>())
      for (AllReduceOp reduce :
           llvm::make_early_inc_range(rank.getOps<AllReduceOp>()))
        if (!reduce.getBucket())
          Buckets(*graph, rank, reduce).run(module, bucketBytes);
  }
};
} // namespace
