//===- Tables.cpp - A program as constant tables --------------------------===//
//
// One function per struct of runtime/include/rt.h, fields in its order.
//
//===----------------------------------------------------------------------===//

#include "compiler/Driver/Tables.h"

#include "compiler/Driver/ConstantBuilder.h"
#include "compiler/Driver/Link.h"
#include "compiler/Driver/RankTables.h"
#include "dialects/NN/NN.h"
#include "dialects/NN/NNPhases.h"
#include "passes/Pipe/PlanModel.h"
#include "passes/Pipe/StepGraph.h"
#include "runtime/include/rt.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
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

mgq_type mgq::typeCode(Type type) {
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
  TableWriter(llvm::Module &target, ArrayRef<ModuleOp> programs)
      : make(target), target(target), programs(programs) {}

  void write(size_t start, StringRef modelPath);

private:
  Constant *tensor(RankedTensorType type);
  ConstantBuilder::Table metadata();
  ConstantBuilder::Table params();
  ConstantBuilder::Table files(StringRef modelPath);
  ConstantBuilder::Table inputs();
  ConstantBuilder::Table outputs();
  ConstantBuilder::Table layers();
  std::string fingerprint();
  std::string planHash(StringRef fingerprint);
  struct Prefix {
    Constant *code, *fault;
    ConstantBuilder::Table params, inputs;
  };
  Prefix frozenPrefix();
  void writeShared(size_t start, StringRef modelPath);
  llvm::GlobalVariable *program(bool isStart);

  /// What all programs have.
  struct Shared {
    std::string fingerprint, planHash;
    Constant *modelPath, *variants;
    ConstantBuilder::Table metadata, params, files;
  };

  ConstantBuilder make;
  llvm::Module &target;
  ArrayRef<ModuleOp> programs;
  Shared shared;
  ModuleOp module; // the program that is written
  TableIndex index;
  int64_t microBatchSize = 1;
};
} // namespace

Constant *TableWriter::tensor(RankedTensorType type) {
  int64_t bits = std::max(8u, type.getElementType().getIntOrFloatBitWidth());
  return make.record({make.i32(typeCode(type.getElementType())),
                      make.i32(type.getRank()), make.array(type.getShape()),
                      make.i64(type.getNumElements() * bits / 8)});
}

ConstantBuilder::Table TableWriter::metadata() {
  SmallVector<Constant *> pairs;
  if (auto entries = module->getAttrOfType<DictionaryAttr>(nn::kMetadataAttr))
    for (NamedAttribute entry : entries)
      if (auto value = dyn_cast<StringAttr>(entry.getValue()))
        pairs.push_back(make.record(
            {make.string(entry.getName()), make.string(value.getValue())}));
  return make.table(pairs);
}

ConstantBuilder::Table TableWriter::params() {
  llvm::StringMap<int64_t> owners;
  for (RankOp rank : module.getOps<RankOp>())
    for (PlaceParamOp place : rank.getOps<PlaceParamOp>())
      if (place.getGradient())
        owners[place.getParam()] = rank.getStage();
  SmallVector<Constant *> table;
  for (nn::ParamOp param : module.getOps<nn::ParamOp>()) {
    auto permutation = param.getCanonicalPermutation();
    index.params[param.getSymName()] = table.size();
    table.push_back(make.record(
        {make.string(param.getSymName()), tensor(param.getTensorType()),
         make.string(param.getFile()), make.i64(param.getOffset()),
         make.i32(param.isTrainable()),
         make.i32(owners.lookup(param.getSymName())),
         permutation ? make.array(*permutation) : make.null()}));
  }
  return make.table(table);
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

ConstantBuilder::Table TableWriter::files(StringRef modelPath) {
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
  return make.table(table);
}

/// The arguments of @model are the inputs of the program.
ConstantBuilder::Table TableWriter::inputs() {
  auto model = module.lookupSymbol<func::FuncOp>("model");
  SmallVector<Constant *> table;
  for (BlockArgument argument : model.getArguments()) {
    unsigned i = argument.getArgNumber();
    auto name = model.getArgAttrOfType<StringAttr>(i, nn::kInputAttr);
    auto limit = model.getArgAttrOfType<IntegerAttr>(i, "nn.limit");
    auto ignore = model.getArgAttrOfType<IntegerAttr>(i, "nn.ignore");
    auto type = cast<RankedTensorType>(argument.getType());
    if (table.empty() && type.getRank() > 0)
      microBatchSize = type.getDimSize(0);
    index.inputs[name.getValue()] = table.size();
    table.push_back(make.record({make.string(name.getValue()), tensor(type),
                                 make.i64(limit ? limit.getInt() : 0),
                                 make.i32(bool(ignore)),
                                 make.i64(ignore ? ignore.getInt() : 0)}));
  }
  return make.table(table);
}

ConstantBuilder::Table TableWriter::outputs() {
  auto model = module.lookupSymbol<func::FuncOp>("model");
  SmallVector<Constant *> table;
  for (unsigned i = 0; i < model.getNumResults(); ++i)
    if (auto name = model.getResultAttrOfType<StringAttr>(i, nn::kOutputAttr)) {
      index.outputs[name.getValue()] = table.size();
      table.push_back(make.record(
          {make.string(name.getValue()),
           tensor(cast<RankedTensorType>(model.getResultTypes()[i]))}));
    }
  return make.table(table);
}

/// Layer instances in the order of the model, with their FLOPs.
ConstantBuilder::Table TableWriter::layers() {
  struct Layer {
    int64_t forward = 0, backward = 0;
    bool isProgressive = false;
  };
  llvm::MapVector<StringRef, Layer> layers;
  auto train = module.lookupSymbol<func::FuncOp>("train");
  for (auto call : train.getOps<func::CallOp>()) {
    int64_t work = flopsOf(module, call.getCallee());
    Layer &layer = layers[instanceOf(call)];
    (phaseOf(call) == SequenceKind::Forward ? layer.forward : layer.backward) +=
        work;
    layer.isProgressive |= bool(nn::lateOf(module, call.getCallee()));
  }
  SmallVector<Constant *> table;
  for (auto &[name, layer] : layers) {
    int64_t number = index.layers[name] = table.size();
    int64_t lateFrom =
        layer.isProgressive ? nn::lateFrom(module, number, layers.size()) : 0;
    table.push_back(
        make.record({make.string(name), make.i64(layer.forward),
                     make.i64(layer.backward), make.i64(lateFrom)}));
  }
  return make.table(table);
}

static std::string hashText(StringRef text) {
  std::array<uint8_t, 32> digest =
      llvm::SHA256::hash(llvm::arrayRefFromStringRef(text));
  return llvm::toHex(llvm::ArrayRef<uint8_t>(digest), /*LowerCase=*/true);
}

/// Hash of what a checkpoint depends on: parameters, and the calls of a
/// micro-batch. Stages, schedule, micro-batches, target and threads may change
/// on resume.
std::string TableWriter::fingerprint() {
  std::string text;
  llvm::raw_string_ostream os(text);
  for (nn::ParamOp param : module.getOps<nn::ParamOp>())
    os << param.getSymName() << ' ' << param.getType() << ' '
       << param.isTrainable() << '\n';
  for (auto call :
       module.lookupSymbol<func::FuncOp>("model").getOps<func::CallOp>())
    os << call.getCallee() << '\n';
  return hashText(text);
}

/// Hash of what ranks of one run must agree on.
std::string TableWriter::planHash(StringRef fingerprint) {
  std::string text = fingerprint.str();
  llvm::raw_string_ostream os(text);
  for (ModuleOp program : programs)
    for (Operation &op : program.getBody()->getOperations())
      if (isa<PlanOp, EdgeOp, RankOp>(op))
        os << op << '\n';
  return hashText(text);
}

/// The calls that a cache skips: their code, and all that they read. A chunk's
/// calls on inputs alone count as well: masks that they read follow from these.
TableWriter::Prefix TableWriter::frozenPrefix() {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::SetVector<int64_t> params, inputs;
  llvm::SetVector<StringRef> callees;
  auto train = module.lookupSymbol<func::FuncOp>("train");
  auto isIncluded = [](func::CallOp call) {
    return call->hasAttr(pipe::kKeptAttr) || !call->hasAttr(pipe::kChunkAttr);
  };
  for (auto call : train.getOps<func::CallOp>()) {
    if (!isIncluded(call))
      continue;
    callees.insert(call.getCallee());
    os << call.getCallee() << ' ' << call->getAttr(nn::kInstanceAttr) << '\n';
    for (Value operand : call.getOperands()) {
      if (auto ref = operand.getDefiningOp<nn::ParamRefOp>())
        params.insert(index.params.lookup(ref.getParam()));
      if (auto argument = dyn_cast<BlockArgument>(operand))
        if (auto name = train.getArgAttrOfType<StringAttr>(
                argument.getArgNumber(), nn::kInputAttr);
            name && !name.getValue().starts_with(nn::kRandomInput))
          inputs.insert(index.inputs.lookup(name));
    }
  }
  SymbolTable kernels(module.lookupSymbol<ModuleOp>("kernels"));
  for (StringRef callee : callees)
    if (Operation *code = kernels.lookup(callee))
      os << *code << '\n';
  // Functions of a CUDA program name kernels and products by numbers.
  auto code = module.lookupSymbol<ModuleOp>("kernels");
  if (!code.getOps<gpu::GPUModuleOp>().empty())
    os << code << '\n';
  auto table = [&](ArrayRef<int64_t> numbers) {
    SmallVector<Constant *> list;
    for (int64_t number : numbers)
      list.push_back(make.i32(number));
    return make.table(list);
  };
  auto fault = module->getAttrOfType<StringAttr>(pipe::kNoCacheAttr);
  return {fault ? make.null() : make.string(hashText(text)),
          fault ? make.string(fault.getValue()) : make.null(),
          table(params.getArrayRef()), table(inputs.getArrayRef())};
}

/// The program of `module`, with what is shared.
llvm::GlobalVariable *TableWriter::program(bool isStart) {
  ConstantBuilder::Table inputTable = inputs(), outputTable = outputs(),
                         layerTable = layers();
  PlanOp plan = *module.getOps<PlanOp>().begin();
  SmallVector<Constant *> ranks;
  for (RankOp rank : module.getOps<RankOp>())
    ranks.push_back(buildRankTable(make, module, plan, rank, index));
  auto model = module.lookupSymbol<func::FuncOp>("model");
  auto lossKind = model.getResultAttrOfType<StringAttr>(0, "nn.loss");
  bool isSum = lossKind && lossKind.getValue() == "sum";
  auto predicted = [&](std::optional<APFloat> value) {
    return make.f64(value ? value->convertToDouble() : -1.0);
  };

  Prefix prefix = frozenPrefix();
  // What enqueues work on a device needs one, which has norms of its own.
  auto kernels = module.lookupSymbol<ModuleOp>("kernels");
  bool isCuda = kernels.lookupSymbol("cuda") != nullptr;
  Constant *norm = isCuda ? make.null() : make.function("mgq_sq_norm");
  Constant *open = isCuda ? make.function("mgq_open_cuda_device") : make.null();
  Constant *table =
      make.record({make.i32(MGQ_ABI_VERSION),
                   make.string(MGQ_VERSION),
                   make.string(shared.fingerprint),
                   make.string(shared.planHash),
                   shared.modelPath,
                   make.string(pluginFolder()),
                   shared.metadata.data,
                   shared.metadata.count,
                   shared.params.data,
                   shared.params.count,
                   shared.files.data,
                   shared.files.count,
                   inputTable.data,
                   inputTable.count,
                   outputTable.data,
                   outputTable.count,
                   layerTable.data,
                   layerTable.count,
                   prefix.code,
                   prefix.fault,
                   prefix.params.data,
                   prefix.params.count,
                   prefix.inputs.data,
                   prefix.inputs.count,
                   make.string(stringifyScheduleKind(plan.getSchedule())),
                   make.i32(plan.getStages()),
                   make.i32(plan.getReplicas()),
                   make.i32(plan.getMicroBatches()),
                   make.i32(microBatchSize),
                   make.i32(module->hasAttr(kBySampleAttr)),
                   make.i32(isSum),
                   predicted(plan.getStepSeconds()),
                   predicted(plan.getBubble()),
                   make.array(ranks),
                   shared.variants,
                   make.i32(programs.size() > 1 ? programs.size() : 0),
                   make.function("mgq_adamw"),
                   norm,
                   make.function("mgq_accumulate"),
                   open});
  return new llvm::GlobalVariable(target, table->getType(), /*isConstant=*/true,
                                  isStart ? llvm::GlobalValue::ExternalLinkage
                                          : llvm::GlobalValue::PrivateLinkage,
                                  table, isStart ? "mgq_program_table" : "");
}

/// `module` is the program to start with: a checkpoint's fingerprint follows
/// it.
void TableWriter::writeShared(size_t start, StringRef modelPath) {
  module = programs[start];
  shared.fingerprint = fingerprint();
  shared.planHash = planHash(shared.fingerprint);
  shared.modelPath = make.string(modelPath);
  shared.metadata = metadata();
  shared.params = params();
  shared.files = files(modelPath);
  shared.variants = make.null();
}

void TableWriter::write(size_t start, StringRef modelPath) {
  writeShared(start, modelPath);
  llvm::GlobalVariable *variants = nullptr;
  if (programs.size() > 1) {
    // Programs name it, and it names them.
    auto *type =
        llvm::ArrayType::get(shared.variants->getType(), programs.size());
    variants = new llvm::GlobalVariable(target, type, /*isConstant=*/true,
                                        llvm::GlobalValue::PrivateLinkage,
                                        llvm::Constant::getNullValue(type));
    shared.variants = variants;
  }
  SmallVector<Constant *> tables;
  for (auto [i, program] : llvm::enumerate(programs)) {
    module = program;
    index.inputs.clear();
    index.outputs.clear();
    index.layers.clear();
    microBatchSize = 1;
    tables.push_back(this->program(i == start));
  }
  if (variants)
    variants->setInitializer(llvm::ConstantArray::get(
        cast<llvm::ArrayType>(variants->getValueType()), tables));
}

std::unique_ptr<llvm::Module> mgq::buildTables(llvm::LLVMContext &context,
                                               ArrayRef<ModuleOp> programs,
                                               size_t start,
                                               StringRef modelPath) {
  auto target = std::make_unique<llvm::Module>("tables", context);
  TableWriter(*target, programs).write(start, modelPath);
  return target;
}
