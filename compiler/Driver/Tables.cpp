//===- Tables.cpp - A rank's plan as constant tables ----------------------===//
//
// One function per struct of runtime/include/rt.h, fields in its order.
//
//===----------------------------------------------------------------------===//

#include "compiler/Driver/Tables.h"

#include "compiler/Driver/ConstantBuilder.h"
#include "dialects/NN/NN.h"
#include "runtime/include/rt.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/SHA256.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::pipe;
using llvm::Constant;

/// The runtime's code of an element type.
static mgq_type typeCode(Type type) {
  if (auto integer = dyn_cast<IntegerType>(type)) {
    bool isUnsigned = integer.isUnsigned();
    switch (integer.getWidth()) {
    case 1:
      return MGQ_BOOL;
    case 8:
      return isUnsigned ? MGQ_U8 : MGQ_I8;
    case 16:
      return isUnsigned ? MGQ_U16 : MGQ_I16;
    case 32:
      return isUnsigned ? MGQ_U32 : MGQ_I32;
    default:
      return isUnsigned ? MGQ_U64 : MGQ_I64;
    }
  }
  return type.isF64()   ? MGQ_F64
         : type.isF32() ? MGQ_F32
         : type.isF16() ? MGQ_F16
                        : MGQ_BF16;
}

namespace {
class TableWriter {
public:
  TableWriter(llvm::Module &target, ModuleOp module, RankOp rank)
      : make(target), target(target), module(module), rank(rank) {}

  void write(StringRef modelPath);

private:
  Constant *tensor(RankedTensorType type);
  Constant *metadata(int32_t &count);
  Constant *params(int32_t &count);
  Constant *files(StringRef modelPath, int32_t &count);
  Constant *inputs(int32_t &count);
  Constant *outputs(int32_t &count);
  Constant *grads(int32_t &count);
  Constant *layers(int32_t &count);
  Constant *ref(Attribute place);
  Constant *sequence(SequenceKind kind);
  Constant *ops(int32_t &count, int64_t &microBatches);
  int64_t flops(StringRef kernel);
  std::string fingerprint();

  ConstantBuilder make;
  llvm::Module &target;
  ModuleOp module;
  RankOp rank;
  /// Layer instances in order of their first call, with their FLOPs.
  struct Layer {
    int32_t index = 0;
    int64_t forward = 0, backward = 0;
  };
  llvm::MapVector<StringRef, Layer> layerTable;
  llvm::StringMap<int32_t> paramIndex;
  int64_t microBatchSize = 1;
  int64_t stepFlops = 0;
};
} // namespace

Constant *TableWriter::tensor(RankedTensorType type) {
  int64_t bits = std::max(8u, type.getElementType().getIntOrFloatBitWidth());
  return make.record({make.i32(typeCode(type.getElementType())),
                      make.i32(type.getRank()), make.array(type.getShape()),
                      make.i64(type.getNumElements() * bits / 8)});
}

Constant *TableWriter::metadata(int32_t &count) {
  SmallVector<Constant *> pairs;
  if (auto entries = module->getAttrOfType<DictionaryAttr>(nn::kMetadataAttr))
    for (NamedAttribute entry : entries)
      if (auto value = dyn_cast<StringAttr>(entry.getValue()))
        pairs.push_back(make.record(
            {make.string(entry.getName()), make.string(value.getValue())}));
  count = pairs.size();
  return make.array(pairs);
}

Constant *TableWriter::params(int32_t &count) {
  llvm::StringMap<PlaceParamOp> places;
  for (PlaceParamOp place : rank.getOps<PlaceParamOp>())
    places[place.getParam()] = place;
  SmallVector<Constant *> table;
  for (nn::ParamOp param : module.getOps<nn::ParamOp>()) {
    PlaceParamOp place = places.lookup(param.getSymName());
    auto offset = [&](std::optional<uint64_t> value) {
      return make.i64(value ? int64_t(*value) : -1);
    };
    auto permutation = param.getCanonicalPermutation();
    paramIndex[param.getSymName()] = table.size();
    table.push_back(make.record(
        {make.string(param.getSymName()), tensor(param.getTensorType()),
         make.string(param.getFile()), make.i64(param.getOffset()),
         make.i32(param.isTrainable()),
         permutation ? make.array(*permutation) : make.null(),
         offset(place.getValue()), offset(place.getGradient()),
         offset(place.getMomentum()), offset(place.getVariance())}));
  }
  count = table.size();
  return make.array(table);
}

/// Hash of the bytes of `text` outside sorted `ranges`.
static uint64_t hashOutside(StringRef text,
                            ArrayRef<std::pair<int64_t, int64_t>> ranges) {
  uint64_t hash = MGQ_HASH_START;
  int64_t at = 0;
  for (auto [begin, end] : ranges) {
    hash = mgq_hash(hash, text.data() + at, begin - at);
    at = std::max(at, end);
  }
  return mgq_hash(hash, text.data() + at, int64_t(text.size()) - at);
}

Constant *TableWriter::files(StringRef modelPath, int32_t &count) {
  using Range = std::pair<int64_t, int64_t>;
  llvm::MapVector<StringRef, SmallVector<Range>> ranges;
  for (nn::ParamOp param : module.getOps<nn::ParamOp>()) {
    RankedTensorType type = param.getTensorType();
    int64_t bits = std::max(8u, type.getElementType().getIntOrFloatBitWidth());
    int64_t begin = param.getOffset();
    ranges[param.getFile()].push_back(
        {begin, begin + type.getNumElements() * bits / 8});
  }
  SmallVector<Constant *> table;
  for (auto &[name, used] : ranges) {
    SmallString<256> path(llvm::sys::path::parent_path(modelPath));
    llvm::sys::path::append(path, name);
    llvm::sort(used);
    uint64_t bytes = 0, hash = 0;
    bool known = !llvm::sys::fs::file_size(path, bytes);
    bool hasGraph = known && name == llvm::sys::path::filename(modelPath);
    auto text = llvm::MemoryBuffer::getFile(path, /*IsText=*/false,
                                            /*RequiresNullTerminator=*/false);
    hasGraph &= bool(text) && (*text)->getBufferSize() == bytes &&
                uint64_t(used.back().second) <= bytes;
    if (hasGraph)
      hash = hashOutside((*text)->getBuffer(), used);
    table.push_back(
        make.record({make.string(name), make.i64(known ? int64_t(bytes) : -1),
                     make.i32(hasGraph), make.i64(hash)}));
  }
  count = table.size();
  return make.array(table);
}

Constant *TableWriter::inputs(int32_t &count) {
  SmallVector<Constant *> table;
  for (PlaceInputOp input : rank.getOps<PlaceInputOp>()) {
    auto type = cast<RankedTensorType>(input.getType());
    if (table.empty() && type.getRank() > 0)
      microBatchSize = type.getDimSize(0);
    table.push_back(make.record({make.string(input.getName()), tensor(type),
                                 make.i64(input.getOffset()),
                                 make.i64(input.getLimit().value_or(0)),
                                 make.i32(input.getIgnore().has_value()),
                                 make.i64(input.getIgnore().value_or(0))}));
  }
  count = table.size();
  return make.array(table);
}

Constant *TableWriter::outputs(int32_t &count) {
  SmallVector<Constant *> table;
  for (PlaceOutputOp output : rank.getOps<PlaceOutputOp>())
    table.push_back(
        make.record({make.string(output.getName()),
                     tensor(cast<RankedTensorType>(output.getType())),
                     make.i64(output.getOffset())}));
  count = table.size();
  return make.array(table);
}

Constant *TableWriter::grads(int32_t &count) {
  SmallVector<Constant *> table;
  for (PlaceGradientOp place : rank.getOps<PlaceGradientOp>())
    table.push_back(
        make.record({make.i32(paramIndex.lookup(place.getParam())),
                     make.i32(place.getAfter()), make.i64(place.getOffset()),
                     make.i64(place.getAccumulator())}));
  count = table.size();
  return make.array(table);
}

int64_t TableWriter::flops(StringRef kernel) {
  auto layer = module.lookupSymbol<func::FuncOp>(kernel);
  auto flops = layer ? layer->getAttrOfType<IntegerAttr>("nn.flops") : nullptr;
  return flops ? flops.getInt() : 0;
}

Constant *TableWriter::layers(int32_t &count) {
  for (SequenceOp sequence : rank.getOps<SequenceOp>()) {
    SequenceKind kind = sequence.getKind();
    if (kind != SequenceKind::Forward && kind != SequenceKind::Backward)
      continue;
    for (CallOp call : sequence.getOps<CallOp>()) {
      int64_t work = flops(call.getKernel());
      stepFlops += work;
      if (!call.getLayer())
        continue;
      Layer fresh;
      fresh.index = layerTable.size();
      Layer &layer = layerTable.insert({*call.getLayer(), fresh}).first->second;
      (kind == SequenceKind::Forward ? layer.forward : layer.backward) += work;
    }
  }
  SmallVector<Constant *> table;
  for (auto &[name, layer] : layerTable)
    table.push_back(make.record({make.string(name), make.i64(layer.forward),
                                 make.i64(layer.backward)}));
  count = table.size();
  return make.array(table);
}

Constant *TableWriter::ref(Attribute place) {
  if (auto range = dyn_cast<ArenaAttr>(place))
    return make.record(
        {make.i32(MGQ_SPACE_ARENA), make.i32(0), make.i64(range.getOffset())});
  auto weight = cast<WeightAttr>(place);
  return make.record({make.i32(MGQ_SPACE_WEIGHT),
                      make.i32(paramIndex.lookup(weight.getParam().getValue())),
                      make.i64(0)});
}

Constant *TableWriter::sequence(SequenceKind kind) {
  SmallVector<Constant *> calls;
  if (SequenceOp sequence = rank.getSequence(kind))
    for (CallOp call : sequence.getOps<CallOp>()) {
      SmallVector<Constant *> args;
      for (Attribute arg : call.getArgs())
        args.push_back(ref(arg));
      auto layer = layerTable.find(call.getLayer().value_or(""));
      calls.push_back(make.record(
          {make.function(call.getKernel()),
           make.string(call.getLayer().value_or(call.getKernel())),
           make.array(args), make.i32(args.size()),
           make.i32(layer == layerTable.end() ? -1 : layer->second.index),
           make.i64(call.getScratch().getOffset()),
           make.i64(call.getScratch().getBytes())}));
    }
  return make.record({make.array(calls), make.i32(calls.size())});
}

Constant *TableWriter::ops(int32_t &count, int64_t &microBatches) {
  SmallVector<Constant *> table;
  microBatches = 0;
  auto entry = [&](mgq_op_kind kind, int64_t chunk, int64_t microBatch,
                   int64_t slot) {
    table.push_back(make.record({make.i32(kind), make.i32(chunk),
                                 make.i32(microBatch), make.i32(slot)}));
  };
  for (Operation &op : rank.getBody().front()) {
    if (auto forward = dyn_cast<ForwardOp>(op)) {
      entry(MGQ_OP_FORWARD, forward.getChunk(), forward.getMicroBatch(),
            forward.getSlot());
      microBatches =
          std::max<int64_t>(microBatches, forward.getMicroBatch() + 1);
    } else if (auto backward = dyn_cast<BackwardOp>(op)) {
      entry(MGQ_OP_BACKWARD, backward.getChunk(), backward.getMicroBatch(),
            backward.getSlot());
    } else if (isa<OptimizerOp>(op)) {
      entry(MGQ_OP_OPTIMIZER, 0, 0, 0);
    }
  }
  count = table.size();
  return make.array(table);
}

/// Hash of what a checkpoint depends on: parameters, and the calls of a
/// micro-batch. Micro-batches, target and threads may change on resume.
std::string TableWriter::fingerprint() {
  std::string text;
  llvm::raw_string_ostream os(text);
  for (nn::ParamOp param : module.getOps<nn::ParamOp>())
    os << param.getSymName() << ' ' << param.getType() << ' '
       << param.isTrainable() << '\n';
  for (SequenceKind kind : {SequenceKind::Forward, SequenceKind::Backward})
    if (SequenceOp sequence = rank.getSequence(kind))
      for (CallOp call : sequence.getOps<CallOp>())
        os << call.getKernel() << '\n';
  std::array<uint8_t, 32> digest =
      llvm::SHA256::hash(llvm::arrayRefFromStringRef(text));
  return llvm::toHex(llvm::ArrayRef<uint8_t>(digest), /*LowerCase=*/true);
}

void TableWriter::write(StringRef modelPath) {
  int32_t metadataCount, paramCount, fileCount, inputCount, outputCount,
      gradCount, layerCount, opCount;
  int64_t microBatches;
  Constant *metadataTable = metadata(metadataCount);
  Constant *paramTable = params(paramCount);
  Constant *fileTable = files(modelPath, fileCount);
  Constant *inputTable = inputs(inputCount);
  Constant *outputTable = outputs(outputCount);
  Constant *gradTable = grads(gradCount);
  Constant *layerTableConstant = layers(layerCount);
  Constant *opTable = ops(opCount, microBatches);
  auto loss = *rank.getOps<PlaceLossOp>().begin();
  SmallVector<Constant *> memory;
  ArrayRef<int64_t> sizes = *rank.getMemory();
  for (int64_t bytes : sizes)
    memory.push_back(make.i64(bytes));

  Constant *table = make.record({make.i32(MGQ_ABI_VERSION),
                                 make.string(MGQ_VERSION),
                                 make.string(fingerprint()),
                                 make.string(modelPath),
                                 metadataTable,
                                 make.i32(metadataCount),
                                 paramTable,
                                 make.i32(paramCount),
                                 fileTable,
                                 make.i32(fileCount),
                                 inputTable,
                                 make.i32(inputCount),
                                 outputTable,
                                 make.i32(outputCount),
                                 gradTable,
                                 make.i32(gradCount),
                                 layerTableConstant,
                                 make.i32(layerCount),
                                 sequence(SequenceKind::PrepareFrozen),
                                 sequence(SequenceKind::PrepareTrainable),
                                 sequence(SequenceKind::Forward),
                                 sequence(SequenceKind::Backward),
                                 sequence(SequenceKind::Evaluate),
                                 sequence(SequenceKind::Count),
                                 make.i32(loss.getCount().has_value()),
                                 make.i64(loss.getLoss()),
                                 make.i64(loss.getCount().value_or(0)),
                                 make.i64(loss.getSeed()),
                                 opTable,
                                 make.i32(opCount),
                                 make.i32(microBatches),
                                 make.i32(microBatchSize),
                                 make.i64(rank.getArenaBytes()),
                                 make.record(memory),
                                 make.i64(stepFlops * microBatches),
                                 make.function("mgq_adamw"),
                                 make.function("mgq_sq_norm"),
                                 make.function("mgq_accumulate")});
  new llvm::GlobalVariable(target, table->getType(), /*isConstant=*/true,
                           llvm::GlobalValue::ExternalLinkage, table,
                           "mgq_program_table");
}

std::unique_ptr<llvm::Module> mgq::buildTables(llvm::LLVMContext &context,
                                               ModuleOp module, RankOp rank,
                                               StringRef modelPath) {
  auto target = std::make_unique<llvm::Module>("tables", context);
  TableWriter(*target, module, rank).write(modelPath);
  return target;
}
