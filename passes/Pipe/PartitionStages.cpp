//===- PartitionStages.cpp - Calls get chunks, chunks get stages ----------===//
//
// In: @train, @model and @count call layer functions. Out: each call carries
// `pipe.chunk`, but for those that depend on graph inputs alone; `pipe.plan`
// says on which stages chunks run. Layers that the plan recomputes run forward
// once more before their backward call.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/PlanModel.h"
#include "passes/Pipe/StepGraph.h"

#include "mlir/IR/IRMapping.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_PARTITIONSTAGESPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;
namespace planner = mgq::planner;

static void setChunk(func::CallOp call, int64_t chunk) {
  call->setAttr(
      kChunkAttr,
      IntegerAttr::get(IntegerType::get(call.getContext(), 64), chunk));
}

/// Before the first gradient call of a layer, computes its residuals again.
static void recompute(ModelLayer layer) {
  func::CallOp first;
  for (ArrayRef<func::CallOp> calls :
       {ArrayRef(layer.backward), ArrayRef(layer.weight)})
    for (func::CallOp call : calls)
      if (!first || call->isBeforeInBlock(first))
        first = call;
  if (!first)
    return;
  OpBuilder builder(first);
  auto again = cast<func::CallOp>(builder.clone(*layer.forward));
  again->setAttr(nn::kPhaseAttr, builder.getStringAttr("backward"));
  for (ArrayRef<func::CallOp> calls :
       {ArrayRef(layer.backward), ArrayRef(layer.weight)})
    for (func::CallOp call : calls)
      for (auto [from, to] :
           llvm::zip_equal(layer.forward.getResults(), again.getResults()))
        call->replaceUsesOfWith(from, to);
}

/// Calls of @model go where @train's forward call of the same instance is;
/// those that the loss does not need go where their last operand is made.
static void markModel(func::FuncOp model, ArrayRef<ModelLayer> layers,
                      ArrayRef<int64_t> chunkOfLayer) {
  llvm::DenseMap<Attribute, int64_t> chunkOf;
  for (auto [layer, chunk] : llvm::zip_equal(layers, chunkOfLayer))
    chunkOf[layer.forward->getAttr(nn::kInstanceAttr)] = chunk;
  int64_t last = chunkOfLayer.back();
  llvm::DenseSet<Operation *> inputsOnly;
  for (auto call : model.getOps<func::CallOp>()) {
    Attribute instance = call->getAttr(nn::kInstanceAttr);
    if (auto it = chunkOf.find(instance); instance && it != chunkOf.end()) {
      setChunk(call, it->second);
      continue;
    }
    int64_t chunk = -1;
    bool fromInputs = true;
    for (Value operand : call.getOperands()) {
      auto maker = operand.getDefiningOp<func::CallOp>();
      fromInputs &=
          isa<BlockArgument>(operand) || (maker && inputsOnly.contains(maker));
      if (maker)
        chunk = std::max(chunk, StepGraph::chunkOf(maker));
    }
    if (fromInputs)
      inputsOnly.insert(call);
    else
      setChunk(call, chunk >= 0 ? chunk : last);
  }
}

/// Writes the plan as an op at the end of the module.
static void writePlan(ModuleOp module, const planner::Plan &plan) {
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  auto kind = *symbolizeScheduleKind(planner::scheduleName(plan.schedule));
  auto op = PlanOp::create(
      builder, module.getLoc(), kind, plan.stages, plan.replicas,
      plan.microBatches, builder.getF64FloatAttr(plan.stepSeconds),
      builder.getF64FloatAttr(plan.simulation.bubble),
      plan.problem.memoryLimit.empty()
          ? DenseI64ArrayAttr()
          : builder.getDenseI64ArrayAttr(plan.problem.memoryLimit));
  builder.createBlock(&op.getBody());
  for (auto [i, chunk] : llvm::enumerate(plan.problem.chunks)) {
    SmallVector<int64_t> ranks(chunk.ranks.begin(), chunk.ranks.end());
    ChunkOp::create(
        builder, module.getLoc(), i, ranks,
        ArrayRef<double>{chunk.forward, chunk.backward, chunk.weight,
                         chunk.send, chunk.sendBack},
        ArrayRef<int64_t>{chunk.residualBytes, chunk.weightResidualBytes},
        chunk.hasBackward, chunk.hasWeight, chunk.sendsGradient);
  }
}

namespace {
struct PartitionStagesPass
    : mgq::pipe::impl::PartitionStagesPassBase<PartitionStagesPass> {
  using PartitionStagesPassBase::PartitionStagesPassBase;
  PartitionStagesPass() = default;
  PartitionStagesPass(const PartitionStagesPass &pass) = default;

  /// Set by createPartitionStagesPass, which passes no text.
  std::optional<PlanOptions> given;
  PlannedModel *planned = nullptr;

  PlanOptions readOptions() const {
    if (given)
      return *given;
    PlanOptions options;
    options.stages = stages;
    options.replicas = replicas;
    options.ranks = ranks;
    options.microBatches = microBatches;
    options.chunks = chunks;
    options.schedule = schedule;
    options.partition = partition;
    options.recompute = this->recompute;
    options.frozen = frozen;
    options.splitPrefix = splitPrefix;
    options.splitLayers = splitLayers;
    options.precision = precision;
    options.target = target;
    options.cluster = cluster;
    options.profile = profile;
    options.cuts.assign(cuts.begin(), cuts.end());
    return options;
  }

  void runOnOperation() override {
    PlanOptions options = readOptions();
    FailureOr<PlannedModel> answer = planModel(getOperation(), options);
    if (failed(answer))
      return signalPassFailure();
    bool splits = options.splitPrefix && answer->plan.replicas > 1;
    apply(splits || options.splitLayers
              ? mgq::pipe::splitPrefix(answer->plan, answer->costs,
                                       options.splitLayers)
              : answer->plan);
    if (planned)
      *planned = std::move(*answer);
  }

  void apply(const planner::Plan &plan) {
    ModuleOp module = getOperation();
    SmallVector<ModelLayer> layers = collectLayers(module);
    SmallVector<int64_t> chunkOfLayer(layers.size());
    for (auto [i, chunk] : llvm::enumerate(plan.chunks))
      for (int layer = chunk.firstLayer; layer < chunk.endLayer; ++layer)
        chunkOfLayer[layer] = i;
    for (auto [i, layer] : llvm::enumerate(layers)) {
      setChunk(layer.forward, chunkOfLayer[i]);
      for (func::CallOp call : layer.backward)
        setChunk(call, chunkOfLayer[i]);
      for (func::CallOp call : layer.weight)
        setChunk(call, chunkOfLayer[i]);
      if (i < plan.recomputed.size() && plan.recomputed[i])
        ::recompute(layer);
    }
    if (auto model = module.lookupSymbol<func::FuncOp>("model"))
      markModel(model, layers, chunkOfLayer);
    writePlan(module, plan);
  }
};
} // namespace

std::unique_ptr<Pass>
mgq::pipe::createPartitionStagesPass(const PlanOptions &options,
                                     PlannedModel *planned) {
  auto pass = std::make_unique<PartitionStagesPass>();
  pass->given = options;
  pass->planned = planned;
  return pass;
}
