//===- RankMemory.cpp - What stays in a rank's arena ----------------------===//

#include "passes/Pipe/RankMemory.h"

#include "dialects/NN/NNPhases.h"

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

Kernels::Kernels(ModuleOp module) : module(module) {
  if (auto code = module.lookupSymbol<ModuleOp>("kernels"))
    symbols.emplace(code);
}

LLVM::LLVMFuncOp Kernels::find(StringRef name) const {
  return symbols ? symbols->lookup<LLVM::LLVMFuncOp>(name) : nullptr;
}

int64_t Kernels::scratchBytes(StringRef name) const {
  LLVM::LLVMFuncOp code = find(name);
  if (FlatSymbolRefAttr late = nn::lateOf(module, name))
    if (code && find(late.getValue()))
      return std::max(scratchBytes(code), scratchBytes(find(late.getValue())));
  return scratchBytes(code);
}

int64_t Kernels::scratchBytes(LLVM::LLVMFuncOp code) {
  auto bytes =
      code ? code->getAttrOfType<IntegerAttr>("nn.scratch_bytes") : nullptr;
  return bytes ? bytes.getInt() : 0;
}

FlatSymbolRefAttr Kernels::packFunction(func::CallOp call,
                                        unsigned operand) const {
  LLVM::LLVMFuncOp code = find(call.getCallee());
  auto packed = code ? code->getAttrOfType<ArrayAttr>("nn.packed") : nullptr;
  return packed ? dyn_cast<FlatSymbolRefAttr>(packed[operand])
                : FlatSymbolRefAttr();
}

int64_t Kernels::panelBytes(StringRef packFunction) const {
  auto args = find(packFunction)->getAttrOfType<ArrayAttr>("nn.args");
  auto type = cast<MemRefType>(cast<TypeAttr>(args[1]).getValue());
  return byteSize(
      RankedTensorType::get(type.getShape(), type.getElementType()));
}

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

void mgq::pipe::forEachGradient(
    func::FuncOp train, llvm::function_ref<void(unsigned, StringAttr)> visit) {
  for (unsigned i = 0; i < train.getNumResults(); ++i)
    if (auto param =
            train.getResultAttrOfType<FlatSymbolRefAttr>(i, "nn.gradient"))
      visit(i, param.getAttr());
}

RankMemory::RankMemory(ModuleOp module, const StepGraph &graph,
                       const Kernels &kernels, int64_t stage, bool copyWeights)
    : module(module), context(module.getContext()), graph(graph),
      kernels(kernels), stage(stage), copyWeights(copyWeights),
      owners(graph.owners(module)) {}

ArenaAttr RankMemory::valueOf(StringAttr param) const {
  return dyn_cast_or_null<ArenaAttr>(params.lookup(param));
}

llvm::MapVector<PanelKey, int64_t>
RankMemory::shardedPanels(const StepGraph &graph, const Kernels &kernels,
                          int64_t chunk) {
  llvm::MapVector<PanelKey, int64_t> found;
  llvm::DenseSet<PanelKey> elsewhere;
  for (const CallList *list : {&graph.train, &graph.model, &graph.count})
    for (func::CallOp call : list->calls())
      for (auto [i, operand] : llvm::enumerate(call.getOperands())) {
        auto ref = operand.getDefiningOp<nn::ParamRefOp>();
        FlatSymbolRefAttr pack = ref ? kernels.packFunction(call, i) : nullptr;
        if (!pack)
          continue;
        PanelKey key{ref.getParamAttr().getAttr(), pack.getAttr()};
        if (StepGraph::chunkOf(call) == chunk)
          found[key] = kernels.panelBytes(pack.getValue());
        else
          elsewhere.insert(key);
      }
  found.remove_if(
      [&](const auto &entry) { return elsewhere.contains(entry.first); });
  return found;
}

/// A slice of each shard, and two buffers for a whole one.
void RankMemory::placeShards() {
  int64_t largest[2] = {0, 0};
  for (auto [i, chunk] : llvm::enumerate(shardedChunks)) {
    Shard shard{chunk, {}, {}, {}};
    int64_t bytes = 0;
    for (auto &[key, size] : shardedPanels(graph, kernels, chunk)) {
      shard.panels[key] = arena(bytes, size);
      bytes += alignBytes(size);
    }
    int64_t slice = alignBytes(llvm::divideCeil(bytes, members));
    shard.slice = arena(weights.take(slice), slice);
    largest[i % 2] = std::max(largest[i % 2], slice * members);
    shards.push_back(std::move(shard));
  }
  int64_t buffers[2] = {weights.take(largest[0]), weights.take(largest[1])};
  for (auto [i, shard] : llvm::enumerate(shards)) {
    shard.buffer = arena(buffers[i % 2], shard.slice.getBytes() * members);
    for (auto &[key, place] : shard.panels)
      place = arena(buffers[i % 2] + place.getOffset(), place.getBytes());
  }
}

/// Room for each frozen weight in each form in which kernels read it.
void RankMemory::placePanels(ArrayRef<func::CallOp> calls) {
  for (func::CallOp call : calls)
    for (auto [i, operand] : llvm::enumerate(call.getOperands())) {
      auto ref = operand.getDefiningOp<nn::ParamRefOp>();
      FlatSymbolRefAttr pack = ref ? kernels.packFunction(call, i) : nullptr;
      if (!pack)
        continue;
      PanelKey key{ref.getParamAttr().getAttr(), pack.getAttr()};
      if (llvm::any_of(shards, [&](const Shard &shard) {
            return shard.panels.contains(key);
          }))
        continue;
      auto &place = panels[key];
      if (place)
        continue;
      int64_t bytes = kernels.panelBytes(pack.getValue());
      place = arena(weights.take(bytes), bytes);
    }
}

/// The first use of an owned parameter adds to the parameter's own accumulator,
/// each further use to one of its own. What belongs to another stage is summed
/// here and sent there.
void RankMemory::placeAccumulators(OpBuilder &builder) {
  llvm::DenseSet<StringAttr> seen;
  func::FuncOp train = graph.train.function();
  Operation *ret = graph.train.returnOp();
  forEachGradient(train, [&](unsigned i, StringAttr param) {
    bool isOwned = owners.lookup(param) == stage;
    auto call = StepGraph::producer(ret->getOperand(i));
    bool isMade = call && graph.stageOf(StepGraph::chunkOf(call), 0) == stage;
    if (!isOwned && !isMade)
      return;
    int64_t offset = isOwned && seen.insert(param).second
                         ? ownOffsets.lookup(param)
                         : gradients.take(byteSize(train.getResultTypes()[i]));
    accumulators[i] = offset;
    if (isOwned)
      PlaceUseOp::create(builder, train.getLoc(), param.getValue(), i, offset);
  });
}

/// A copy of each frozen weight in each type in which calls read it.
void RankMemory::placeCopies(OpBuilder &builder, ArrayRef<func::CallOp> calls) {
  for (func::CallOp call : calls)
    for (Value operand : call.getOperands()) {
      auto ref = operand.getDefiningOp<nn::ParamRefOp>();
      if (!ref)
        continue;
      auto type = cast<RankedTensorType>(ref.getType());
      StringAttr name = ref.getParamAttr().getAttr();
      if (isa<ArenaAttr>(params.lookup(name)) || copies.contains({name, type}))
        continue;
      int64_t bytes = byteSize(type);
      ArenaAttr place = arena(weights.take(bytes), bytes);
      copies[{name, type}] = place;
      PlaceParamOp::create(builder,
                           module.lookupSymbol<nn::ParamOp>(name).getLoc(),
                           FlatSymbolRefAttr::get(name),
                           builder.getI64IntegerAttr(place.getOffset()),
                           TypeAttr::get(type.getElementType()), IntegerAttr(),
                           IntegerAttr(), IntegerAttr());
    }
}

/// Trainable parameters, f32, with gradient and optimizer state on the stage
/// that owns them; a frozen one stays in the mapped file unless its bytes lie
/// there unaligned.
LogicalResult RankMemory::placeParams(OpBuilder &builder,
                                      ArrayRef<func::CallOp> calls) {
  llvm::DenseSet<StringAttr> used;
  for (func::CallOp call : calls)
    for (Value operand : call.getOperands())
      if (auto ref = operand.getDefiningOp<nn::ParamRefOp>())
        used.insert(ref.getParamAttr().getAttr());
  SmallVector<nn::ParamOp> mine;
  for (nn::ParamOp param : module.getOps<nn::ParamOp>())
    if (used.contains(param.getSymNameAttr()))
      mine.push_back(param);

  auto isOwned = [&](nn::ParamOp param) {
    return param.isTrainable() &&
           owners.lookup(param.getSymNameAttr()) == stage;
  };
  for (nn::ParamOp param : mine) {
    int64_t bytes = byteSize(param.getValueType());
    Type element = param.getTensorType().getElementType();
    int64_t align = std::max(8u, element.getIntOrFloatBitWidth()) / 8;
    bool isCopied =
        param.isTrainable() || (!copyWeights && param.getOffset() % align != 0);
    params[param.getSymNameAttr()] =
        isCopied ? Attribute(arena(weights.take(bytes), bytes))
                 : Attribute(WeightAttr::get(
                       builder.getContext(),
                       FlatSymbolRefAttr::get(param.getSymNameAttr())));
  }
  if (copyWeights)
    placeCopies(builder, calls);
  placeShards();
  placePanels(calls);
  gradients.begin = weights.end();
  SymbolTable symbols(module);
  llvm::DenseSet<StringAttr> inBuckets(gradientOrder.begin(),
                                       gradientOrder.end());
  // What has no bucket, then the buckets' in their order.
  llvm::MapVector<StringAttr, nn::ParamOp> owned;
  for (nn::ParamOp param : mine)
    if (isOwned(param) && !inBuckets.contains(param.getSymNameAttr()))
      owned[param.getSymNameAttr()] = param;
  for (StringAttr name : gradientOrder)
    owned[name] = symbols.lookup<nn::ParamOp>(name);
  for (auto &[name, param] : owned)
    ownOffsets[param.getSymNameAttr()] =
        gradients.take(byteSize(param.getValueType()));
  ownedBytes = gradients.bytes;
  OpBuilder::InsertionGuard guard(builder);
  placeAccumulators(builder);

  optimizer.begin = gradients.end();
  for (nn::ParamOp param : mine) {
    if (copyWeights && !param.isTrainable())
      continue;
    auto attr = [&](std::optional<int64_t> offset) {
      return offset ? builder.getI64IntegerAttr(*offset) : IntegerAttr();
    };
    std::optional<int64_t> value, gradient, momentum, variance;
    if (auto place = valueOf(param.getSymNameAttr()))
      value = place.getOffset();
    if (isOwned(param)) {
      gradient = ownOffsets.lookup(param.getSymNameAttr());
      momentum = optimizer.take(byteSize(param.getValueType()));
      variance = optimizer.take(byteSize(param.getValueType()));
    }
    PlaceParamOp::create(builder, param.getLoc(),
                         FlatSymbolRefAttr::get(param.getSymNameAttr()),
                         attr(value), TypeAttr(), attr(gradient),
                         attr(momentum), attr(variance));
  }
  cells.begin = optimizer.end();
  return success();
}

ArenaAttr RankMemory::gradientsOf(StringAttr first, StringAttr last) {
  auto param = module.lookupSymbol<nn::ParamOp>(last);
  int64_t begin = ownOffsets.lookup(first), end = ownOffsets.lookup(last);
  return arena(begin, end - begin + byteSize(param.getValueType()));
}

ArenaAttr RankMemory::cell(StringRef name, Type type) {
  ArenaAttr &place = cellPlaces[name];
  if (!place) {
    int64_t bytes = byteSize(type);
    place = arena(cells.take(bytes), bytes);
  }
  return place;
}

Attribute RankMemory::placeOf(func::CallOp call, unsigned operand) {
  auto ref = call.getOperand(operand).getDefiningOp<nn::ParamRefOp>();
  StringAttr param = ref.getParamAttr().getAttr();
  if (FlatSymbolRefAttr pack = kernels.packFunction(call, operand)) {
    for (const Shard &shard : shards)
      if (ArenaAttr place = shard.panels.lookup({param, pack.getAttr()}))
        return place;
    return panels.lookup({param, pack.getAttr()});
  }
  if (ArenaAttr copy = copies.lookup({param, ref.getType()}))
    return copy;
  return params.lookup(param);
}
