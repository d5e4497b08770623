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

std::vector<FrozenWeights<int64_t>>
RankMemory::shardedWeights(const StepGraph &graph, const Kernels &kernels,
                           bool copyWeights) {
  std::vector<FrozenWeights<int64_t>> found(graph.chunks);
  // The only chunk that reads one; -1: several do, or what has no chunk.
  llvm::DenseMap<PanelKey, int64_t> panelReaders;
  llvm::DenseMap<CopyKey, int64_t> copyReaders;
  for (const CallList *list : {&graph.train, &graph.model, &graph.count})
    for (func::CallOp call : list->calls())
      for (auto [i, operand] : llvm::enumerate(call.getOperands())) {
        auto ref = operand.getDefiningOp<nn::ParamRefOp>();
        if (!ref)
          continue;
        int64_t chunk = StepGraph::chunkOf(call);
        auto add = [&](auto key, auto places, auto &readers, int64_t bytes) {
          auto [reader, isNew] = readers.insert({key, chunk});
          if (reader->second != chunk)
            reader->second = -1;
          if (chunk >= 0)
            (found[chunk].*places)[key] = bytes;
        };
        StringAttr param = ref.getParamAttr().getAttr();
        if (FlatSymbolRefAttr pack = kernels.packFunction(call, i))
          add(PanelKey{param, pack.getAttr()}, &FrozenWeights<int64_t>::panels,
              panelReaders, kernels.panelBytes(pack.getValue()));
        else if (copyWeights)
          add(CopyKey{param, ref.getType()}, &FrozenWeights<int64_t>::copies,
              copyReaders, byteSize(ref.getType()));
      }
  for (FrozenWeights<int64_t> &its : found) {
    its.panels.remove_if([&](const auto &entry) {
      return panelReaders.lookup(entry.first) < 0;
    });
    its.copies.remove_if(
        [&](const auto &entry) { return copyReaders.lookup(entry.first) < 0; });
  }
  return found;
}

/// A slice of each shard, and two buffers for a whole one.
void RankMemory::placeShards() {
  if (shardedChunks.empty())
    return;
  std::vector<FrozenWeights<int64_t>> sizes =
      shardedWeights(graph, kernels, copyWeights);
  int64_t largest[2] = {0, 0};
  for (auto [i, chunk] : llvm::enumerate(shardedChunks)) {
    Shard shard{chunk, {}, {}, {}};
    int64_t bytes = 0;
    auto place = [&](const auto &all, auto &places) {
      for (auto &[key, size] : all) {
        places[key] = arena(bytes, size);
        bytes += alignBytes(size);
      }
    };
    place(sizes[chunk].panels, shard.weights.panels);
    place(sizes[chunk].copies, shard.weights.copies);
    int64_t slice = alignBytes(llvm::divideCeil(bytes, members));
    shard.slice = arena(weights.take(slice), slice);
    largest[i % 2] = std::max(largest[i % 2], slice * members);
    shards.push_back(std::move(shard));
  }
  int64_t buffers[2] = {weights.take(largest[0]), weights.take(largest[1])};
  for (auto [i, shard] : llvm::enumerate(shards)) {
    shard.buffer = arena(buffers[i % 2], shard.slice.getBytes() * members);
    auto move = [this, begin = buffers[i % 2]](auto &places) {
      for (auto &[key, place] : places)
        place = arena(begin + place.getOffset(), place.getBytes());
    };
    move(shard.weights.panels);
    move(shard.weights.copies);
  }
}

/// Where a shard has a packed weight, or null.
ArenaAttr RankMemory::shardedPlace(PanelKey key) const {
  for (const Shard &shard : shards)
    if (ArenaAttr place = shard.weights.panels.lookup(key))
      return place;
  return nullptr;
}

/// Where a shard has a copied one, or null.
ArenaAttr RankMemory::shardedPlace(CopyKey key) const {
  for (const Shard &shard : shards)
    if (ArenaAttr place = shard.weights.copies.lookup(key))
      return place;
  return nullptr;
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
      if (shardedPlace(key))
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
      CopyKey key{name, type};
      if (isa<ArenaAttr>(params.lookup(name)) || copies.contains(key) ||
          shardedPlace(key))
        continue;
      int64_t bytes = byteSize(type);
      ArenaAttr place = arena(weights.take(bytes), bytes);
      copies[key] = place;
      createCopy(builder, key, place);
    }
}

void RankMemory::createCopy(OpBuilder &builder, CopyKey key, ArenaAttr place) {
  auto [name, type] = key;
  PlaceParamOp::create(
      builder, module.lookupSymbol<nn::ParamOp>(name).getLoc(),
      FlatSymbolRefAttr::get(name),
      builder.getI64IntegerAttr(place.getOffset()),
      TypeAttr::get(cast<RankedTensorType>(type).getElementType()),
      IntegerAttr(), IntegerAttr(), IntegerAttr());
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
  placeShards();
  if (copyWeights)
    placeCopies(builder, calls);
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
    PanelKey key{param, pack.getAttr()};
    ArenaAttr place = shardedPlace(key);
    return place ? place : panels.lookup(key);
  }
  CopyKey key{param, ref.getType()};
  if (ArenaAttr place = shardedPlace(key))
    return place;
  if (ArenaAttr copy = copies.lookup(key))
    return copy;
  return params.lookup(param);
}
