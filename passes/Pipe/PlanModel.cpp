//===- PlanModel.cpp - A module as the planner sees it --------------------===//

#include "passes/Pipe/PlanModel.h"

#include "passes/Pipe/RankMemory.h"
#include "passes/Planner/PlanText.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;
namespace planner = mgq::planner;

/// Of a GPU's memory: contexts, code, workspaces and NCCL's buffers take some
/// hundred MiB, and cards have a little less than their name says.
static constexpr int64_t kCudaReserve = int64_t(1) << 30;

StringRef mgq::pipe::instanceOf(func::CallOp call) {
  auto name = call->getAttrOfType<StringAttr>(nn::kInstanceAttr);
  return name ? name.getValue() : call.getCallee();
}

int64_t mgq::pipe::flopsOf(ModuleOp module, StringRef callee) {
  auto layer = module.lookupSymbol<func::FuncOp>(callee);
  if (!layer)
    return 0;
  if (auto known = layer->getAttrOfType<IntegerAttr>("nn.flops"))
    return known.getInt();
  int64_t flops = 0;
  layer.walk([&](nn::CostOpInterface op) { flops += op.getFlops(); });
  return flops;
}

/// Whether a call computes something from graph inputs alone.
static bool dependsOnInputsAlone(func::CallOp call,
                                 const llvm::DenseSet<Operation *> &others) {
  return phaseOf(call) == SequenceKind::Forward &&
         llvm::all_of(call.getOperands(), [&](Value operand) {
           return isInput(operand) || others.contains(operand.getDefiningOp());
         });
}

SmallVector<ModelLayer> mgq::pipe::collectLayers(ModuleOp module) {
  llvm::MapVector<StringRef, ModelLayer> layers;
  llvm::DenseSet<Operation *> inputsOnly;
  auto train = module.lookupSymbol<func::FuncOp>("train");
  if (!train)
    return {};
  for (auto call : train.getOps<func::CallOp>()) {
    if (dependsOnInputsAlone(call, inputsOnly)) {
      inputsOnly.insert(call);
      continue;
    }
    ModelLayer &layer = layers[instanceOf(call)];
    switch (phaseOf(call)) {
    case SequenceKind::Backward:
      layer.backward.push_back(call);
      break;
    case SequenceKind::Weight:
      layer.weight.push_back(call);
      break;
    default:
      layer.forward = call;
    }
  }
  SmallVector<ModelLayer> found;
  for (auto &[name, layer] : layers)
    found.push_back(layer);
  return found;
}

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

namespace {

/// Measures layers. Everything is of one micro-batch.
class Measure {
public:
  Measure(ModuleOp module, ArrayRef<ModelLayer> layers,
          const PlanOptions &options)
      : module(module), layers(layers), symbols(module),
        usesBf16(options.precision != "f32"),
        usesPanels(options.target == "cpu"), kernels(module) {
    for (auto [i, layer] : llvm::enumerate(layers)) {
      owner[layer.forward] = i;
      for (func::CallOp call : layer.backward)
        owner[call] = i;
      for (func::CallOp call : layer.weight)
        owner[call] = i;
    }
  }

  planner::ModelCosts run();

private:
  void addWork(ModelLayer layer, planner::LayerCosts &costs);
  void addWeights(const ModelLayer &layer, planner::LayerCosts &costs);
  void addResiduals(ModelLayer layer, planner::LayerCosts &costs);
  void addCuts(planner::ModelCosts &model);
  double traffic(func::CallOp call);
  /// Layer that makes a value, -1: none.
  int64_t makerOf(Value value) const {
    auto it = owner.find(value.getDefiningOp());
    return it == owner.end() ? -1 : it->second;
  }
  SmallVector<func::CallOp> callsOf(const ModelLayer &layer) const {
    SmallVector<func::CallOp> calls{layer.forward};
    llvm::append_range(calls, layer.backward);
    llvm::append_range(calls, layer.weight);
    return calls;
  }

  ModuleOp module;
  ArrayRef<ModelLayer> layers;
  SymbolTable symbols;
  bool usesBf16, usesPanels;
  Kernels kernels; // none before phase `kernels`
  llvm::DenseMap<Operation *, int64_t> owner;
  llvm::DenseSet<Value> counted;
};

} // namespace

/// Operands and results once each: what a fused kernel moves at least.
double Measure::traffic(func::CallOp call) {
  int64_t bytes = 0;
  for (Value operand : call.getOperands())
    bytes += byteSize(operand.getType());
  for (Value result : call.getResults())
    bytes += byteSize(result.getType());
  return double(bytes);
}

void Measure::addWork(ModelLayer layer, planner::LayerCosts &costs) {
  costs.forwardFlops = double(flopsOf(module, layer.forward.getCallee()));
  costs.forwardTraffic = traffic(layer.forward);
  // Where nothing upstream needs a gradient, all of it is for weights.
  bool hasData = llvm::any_of(layer.backward, [](func::CallOp call) {
    return llvm::any_of(call->getUsers(), [&](Operation *user) {
      auto reader = dyn_cast<func::CallOp>(user);
      return reader && instanceOf(reader) != instanceOf(call);
    });
  });
  for (func::CallOp call : layer.backward) {
    (hasData ? costs.backwardFlops : costs.weightFlops) +=
        double(flopsOf(module, call.getCallee()));
    (hasData ? costs.backwardTraffic : costs.weightTraffic) += traffic(call);
  }
  for (func::CallOp call : layer.weight) {
    costs.weightFlops += double(flopsOf(module, call.getCallee()));
    costs.weightTraffic += traffic(call);
  }
  costs.hasBackward = !layer.backward.empty() || !layer.weight.empty();
  costs.outputNeedsGradient = costs.hasBackward;
}

void Measure::addWeights(const ModelLayer &layer, planner::LayerCosts &costs) {
  llvm::DenseSet<Attribute> seen;
  llvm::DenseSet<std::pair<Attribute, Attribute>> seenPanels;
  for (func::CallOp call : callsOf(layer))
    for (auto [i, operand] : llvm::enumerate(call.getOperands())) {
      auto ref = operand.getDefiningOp<nn::ParamRefOp>();
      auto param = ref ? symbols.lookup<nn::ParamOp>(ref.getParam()) : nullptr;
      if (!param)
        continue;
      int64_t elements = param.getTensorType().getNumElements();
      bool isNew = seen.insert(param.getSymNameAttr()).second;
      if (isNew)
        costs.parameters += elements;
      if (param.isTrainable()) {
        if (isNew) {
          costs.trainableParameters += elements;
          costs.weightBytes += elements * 4;
          costs.gradientBytes += elements * 4;
          costs.optimizerBytes += elements * 8;
        }
      } else if (usesPanels) {
        FlatSymbolRefAttr pack = kernels.packFunction(call, i);
        if (pack && seenPanels.insert({param.getSymNameAttr(), pack}).second)
          costs.weightBytes += kernels.panelBytes(pack.getValue());
      } else if (isNew) {
        costs.weightBytes += byteSize(ref.getType());
      }
    }
}

void Measure::addResiduals(ModelLayer layer, planner::LayerCosts &costs) {
  auto addRead = [&](func::CallOp call, int64_t &bytes, bool onlyGradients) {
    for (Value value : call.getOperands()) {
      auto maker = value.getDefiningOp<func::CallOp>();
      if (!maker)
        continue;
      bool isForward = phaseOf(maker) == SequenceKind::Forward;
      if (isForward == onlyGradients)
        continue;
      if (counted.insert(value).second)
        bytes += byteSize(value.getType());
    }
  };
  for (func::CallOp call : layer.backward)
    addRead(call, costs.residualBytes, /*onlyGradients=*/false);
  for (func::CallOp call : layer.weight) {
    addRead(call, costs.residualBytes, /*onlyGradients=*/false);
    addRead(call, costs.weightResidualBytes, /*onlyGradients=*/true);
  }
  for (Value operand : layer.forward.getOperands())
    if (makerOf(operand) >= 0)
      costs.inputBytes += byteSize(operand.getType());
  for (func::CallOp call : callsOf(layer)) {
    int64_t bytes = kernels.scratchBytes(call.getCallee());
    for (Value operand : call.getOperands())
      if (!operand.getDefiningOp<nn::ParamRefOp>())
        bytes += byteSize(operand.getType());
    for (Value result : call.getResults())
      bytes += byteSize(result.getType());
    costs.transientBytes = std::max(costs.transientBytes, bytes);
  }
}

/// What is alive between two layers, in both directions.
void Measure::addCuts(planner::ModelCosts &model) {
  model.cuts.resize(layers.empty() ? 0 : layers.size() - 1);
  for (const ModelLayer &layer : layers)
    for (func::CallOp call : callsOf(layer))
      for (Value result : call.getResults()) {
        int64_t maker = owner.lookup(call), low = maker, high = maker;
        for (Operation *user : result.getUsers())
          if (auto it = owner.find(user); it != owner.end()) {
            low = std::min(low, it->second);
            high = std::max(high, it->second);
          }
        bool isForward = phaseOf(call) == SequenceKind::Forward;
        int64_t bytes = byteSize(result.getType());
        for (int64_t cut = isForward ? maker : low;
             cut < (isForward ? high : maker); ++cut)
          (isForward ? model.cuts[cut].activationBytes
                     : model.cuts[cut].gradientBytes) += bytes;
      }
}

planner::ModelCosts Measure::run() {
  planner::ModelCosts model;
  for (const ModelLayer &layer : layers) {
    planner::LayerCosts costs;
    costs.name = instanceOf(layer.forward).str();
    costs.usesBf16 = usesBf16;
    addWork(layer, costs);
    addWeights(layer, costs);
    addResiduals(layer, costs);
    model.layers.push_back(std::move(costs));
  }
  addCuts(model);
  if (auto train = module.lookupSymbol<func::FuncOp>("train"))
    for (Type type : train.getArgumentTypes())
      model.fixedBytes += byteSize(type);
  return model;
}

planner::ModelCosts mgq::pipe::measureModel(ModuleOp module,
                                            ArrayRef<ModelLayer> layers,
                                            const PlanOptions &options) {
  return Measure(module, layers, options).run();
}

//===----------------------------------------------------------------------===//
// Profiles
//===----------------------------------------------------------------------===//

/// Reads measured seconds of an earlier run into the costs. Error in words.
static llvm::Error readProfile(StringRef path, planner::ModelCosts &model) {
  auto fail = [&](const Twine &text) {
    return llvm::createStringError("--profile=" + path + ": " + text);
  };
  auto file = llvm::MemoryBuffer::getFile(path);
  if (!file)
    return fail(file.getError().message());
  auto json = llvm::json::parse((*file)->getBuffer());
  if (!json)
    return fail(llvm::toString(json.takeError()));
  const llvm::json::Object *root = json->getAsObject();
  const llvm::json::Array *ranks = root ? root->getArray("ranks") : nullptr;
  if (!ranks)
    return fail("is not a profile of a run: it has no \"ranks\"");
  struct Times {
    double forward = 0, backward = 0;
    int64_t runs = 0;
  };
  llvm::StringMap<Times> measured;
  for (const llvm::json::Value &rank : *ranks) {
    const llvm::json::Object *object = rank.getAsObject();
    const llvm::json::Array *layers =
        object ? object->getArray("layers") : nullptr;
    if (!layers)
      return fail("has a rank without \"layers\"");
    for (const llvm::json::Value &value : *layers) {
      const llvm::json::Object *layer = value.getAsObject();
      auto name = layer ? layer->getString("name") : std::nullopt;
      auto forward = layer ? layer->getNumber("forward_seconds") : std::nullopt;
      auto backward =
          layer ? layer->getNumber("backward_seconds") : std::nullopt;
      if (!name || !forward || !backward)
        return fail("has a layer without name, forward_seconds or "
                    "backward_seconds");
      // Replicas, and ranks that share a frozen prefix, are averaged; a layer
      // that a rank did not run has no time there.
      if (*forward == 0 && *backward == 0)
        continue;
      Times &times = measured[*name];
      times.forward += *forward;
      times.backward +=
          *backward + layer->getNumber("weight_seconds").value_or(0);
      ++times.runs;
    }
  }
  size_t found = 0;
  for (planner::LayerCosts &layer : model.layers) {
    auto it = measured.find(layer.name);
    if (it == measured.end())
      continue;
    const Times &times = it->getValue();
    layer.forwardSeconds = times.forward / double(times.runs);
    layer.backwardSeconds = times.backward / double(times.runs);
    ++found;
  }
  if (found != model.layers.size())
    return fail("has times for " + Twine(found) + " of the " +
                Twine(model.layers.size()) +
                " layers of this model: it is a profile of another one");
  return llvm::Error::success();
}

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

/// Bytes of compressed gradients over those of f32: what stands in messages
/// (docs/GradientCompression.md).
static double wireRatio(StringRef compression) {
  // Of four values two are sent, with four bits that say which.
  constexpr double positionBits = 4.0 / 4, scaleBits = 32.0 / 256;
  return llvm::StringSwitch<double>(compression)
      .Case("bf16", 16.0 / 32)
      .Case("sparse24", (16.0 / 2 + positionBits) / 32)
      .Case("sparse24-int8", ((8.0 + scaleBits) / 2 + positionBits) / 32)
      .Default(1);
}

static planner::PlanRequest makeRequest(const PlanOptions &options,
                                        bool splitsWeight) {
  planner::PlanRequest request;
  request.stages = int(options.stages);
  request.replicas = int(options.replicas);
  request.ranks = int(options.ranks);
  request.microBatches = int(options.microBatches);
  request.chunksPerRank = int(options.chunks);
  request.schedule =
      llvm::StringSwitch<std::optional<planner::ScheduleKind>>(options.schedule)
          .Case("gpipe", planner::ScheduleKind::GPipe)
          .Case("one_f_one_b", planner::ScheduleKind::OneFOneB)
          .Case("interleaved", planner::ScheduleKind::Interleaved)
          .Case("zero_bubble", planner::ScheduleKind::ZeroBubble)
          .Default(std::nullopt);
  request.partition =
      llvm::StringSwitch<planner::PartitionKind>(options.partition)
          .Case("uniform", planner::PartitionKind::Uniform)
          .Case("parameters", planner::PartitionKind::Parameters)
          .Case("flops", planner::PartitionKind::Flops)
          .Default(planner::PartitionKind::FrozenAware);
  // Otherwise it is in the layer functions already.
  request.recompute = options.recompute == "auto"
                          ? planner::RecomputeKind::Auto
                          : planner::RecomputeKind::None;
  request.splitsWeight = splitsWeight;
  request.mayReplicatePrefix = options.frozen != "stage";
  request.mustReplicatePrefix =
      options.frozen == "replicated" || options.frozen == "sharded";
  request.sync = {wireRatio(options.compression), options.overlap};
  return request;
}

/// Layer numbers of forced cuts. Error that lists the names.
static llvm::Expected<std::vector<int>>
findCuts(const std::vector<std::string> &names,
         const planner::ModelCosts &model) {
  std::vector<int> cuts;
  for (StringRef name : names) {
    auto it = llvm::find_if(
        model.layers, [&](const auto &layer) { return layer.name == name; });
    if (it == model.layers.end()) {
      std::string known;
      for (const planner::LayerCosts &layer : model.layers)
        known += (known.empty() ? "" : ", ") + layer.name;
      return llvm::createStringError("--cuts: '" + name +
                                     "' is no layer; layers are: " + known);
    }
    int cut = int(it - model.layers.begin());
    if (cut == 0 || (!cuts.empty() && cut <= cuts.back()))
      return llvm::createStringError(
          "--cuts: '" + name +
          "' would leave an empty stage; give the first layer of each stage "
          "but the first, in the order of the model");
    cuts.push_back(cut);
  }
  return cuts;
}

/// Whether a frozen prefix is there, and may be where it has to.
static llvm::Error checkPrefix(const PlanOptions &options,
                               const planner::ModelCosts &model) {
  const planner::LayerCosts &first = model.layers.front();
  if (first.hasBackward || first.outputNeedsGradient)
    return llvm::createStringError(
        "--frozen=" + options.frozen +
        ": the model has no frozen prefix: its first layer, " + first.name +
        ", takes part in gradients");
  if (options.stages != 1 && options.ranks > 1 &&
      (options.partition != "frozen_aware" || !options.cuts.empty()))
    return llvm::createStringError(
        "--frozen=" + options.frozen +
        " spreads the frozen prefix over the stages: it needs "
        "--partition=frozen_aware, without --cuts");
  return llvm::Error::success();
}

/// What plans for CUDA say about devices.
static void addDeviceNotes(const PlanOptions &options, PlannedModel &planned) {
  if (options.target != "cuda")
    return;
  if (options.cluster.empty())
    planned.plan.notes.push_back(
        "no --cluster: planned for GPUs like an RTX 4090, without a limit of "
        "memory");
  else
    planned.plan.notes.push_back("of each device " +
                                 planner::byteText(kCudaReserve) +
                                 " is left to CUDA's driver and libraries");
}

/// Of weights that are copied and spread a rank has a slice, and two layers
/// whole. Not where the planner is to choose the ranks that share them.
static void spreadWeights(const PlanOptions &options,
                          planner::ModelCosts &model) {
  int64_t members = options.stages > 1 ? options.stages : options.replicas;
  if (options.frozen != "sharded" || options.target == "cpu" ||
      options.stages < 1 || members < 2)
    return;
  int64_t largest = 0;
  for (planner::LayerCosts &layer : model.layers) {
    if (layer.hasBackward || layer.outputNeedsGradient)
      break;
    largest = std::max(largest, layer.weightBytes);
    layer.weightBytes = llvm::divideCeil(layer.weightBytes, members);
  }
  model.fixedBytes += 2 * largest;
}

static llvm::Error fillPlan(ModuleOp module, const PlanOptions &options,
                            PlannedModel &planned) {
  SmallVector<ModelLayer> layers = collectLayers(module);
  if (layers.empty())
    return llvm::createStringError("the model has no layers to plan");
  planned.costs = measureModel(module, layers, options);
  planned.costs.fixedBytes += options.reserveBytes;
  spreadWeights(options, planned.costs);
  if (!options.profile.empty())
    if (llvm::Error error = readProfile(options.profile, planned.costs))
      return error;
  bool splits = llvm::any_of(
      layers, [](const ModelLayer &layer) { return !layer.weight.empty(); });
  planned.request = makeRequest(options, splits);
  if (planned.request.mustReplicatePrefix)
    if (llvm::Error error = checkPrefix(options, planned.costs))
      return error;
  auto cuts = findCuts(options.cuts, planned.costs);
  if (!cuts)
    return cuts.takeError();
  planned.request.cuts = *cuts;
  int64_t ranks = std::max<int64_t>(options.ranks,
                                    std::max<int64_t>(1, options.stages) *
                                        std::max<int64_t>(1, options.replicas));
  planned.request.ranks = int(ranks);
  bool isCuda = options.target == "cuda";
  if (options.cluster.empty()) {
    planned.cluster = isCuda ? planner::Cluster::unknownGpus(int(ranks))
                             : planner::Cluster::thisMachine(int(ranks));
  } else {
    auto cluster = planner::Cluster::read(options.cluster);
    if (!cluster)
      return cluster.takeError();
    planned.cluster = std::move(*cluster);
  }
  if (isCuda)
    planned.cluster.reserve(kCudaReserve);
  auto plan =
      planner::makePlan(planned.costs, planned.cluster, planned.request);
  if (!plan)
    return plan.takeError();
  planned.plan = std::move(*plan);
  addDeviceNotes(options, planned);
  return llvm::Error::success();
}

FailureOr<PlannedModel> mgq::pipe::planModel(ModuleOp module,
                                             const PlanOptions &options) {
  PlannedModel planned;
  if (llvm::Error error = fillPlan(module, options, planned)) {
    emitError(UnknownLoc::get(module.getContext()))
        << llvm::toString(std::move(error));
    return failure();
  }
  return planned;
}
