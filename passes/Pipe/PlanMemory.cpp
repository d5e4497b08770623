//===- PlanMemory.cpp - Every value of a step gets its place --------------===//
//
// In: @train, @model and @count call layer functions on tensors; @kernels holds
// the code of the layer functions with its scratch sizes; a pipe.rank holds
// the program of a step. Out: the rank also holds placements and sequences.
//
//   arena: | weights | gradients | optimizer | inputs | activations | scratch |
//
// Weights (trainable ones, and frozen ones as kernels read them where that is
// not as they are stored), gradients and optimizer state are there for the
// whole run. Inputs (with the scalars that the runtime reads and writes) are
// those of one micro-batch. Activations hold the values and residuals of one
// micro-batch, each only while it is alive. Scratch belongs to the call that
// runs.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/ArenaLayout.h"
#include "passes/Pipe/Passes.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "llvm/ADT/MapVector.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_PLANMEMORYPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

/// Bytes of a tensor, dense; a boolean takes one byte.
static int64_t byteSize(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  int64_t bits = std::max(8u, tensor.getElementType().getIntOrFloatBitWidth());
  return tensor.getNumElements() * bits / 8;
}

namespace {

/// Where a value is: a range of the arena, or a mapped weight.
using Place = Attribute;

/// A part of the arena that grows while things are placed in it.
struct Region {
  int64_t begin = 0;
  int64_t bytes = 0;

  int64_t take(int64_t size) {
    int64_t offset = begin + bytes;
    bytes += alignBytes(size);
    return offset;
  }
};

/// What one function (@train, @model, @count) contributes.
struct Program {
  func::FuncOp function;
  SmallVector<func::CallOp> calls;
  llvm::DenseMap<Value, Place> places;
};

class Planner {
public:
  Planner(ModuleOp module, RankOp rank)
      : module(module), rank(rank),
        builder(OpBuilder::atBlockBegin(&rank.getBody().front())) {}

  LogicalResult run();

private:
  LogicalResult readPrograms();
  LLVM::LLVMFuncOp findKernel(StringRef name);
  FlatSymbolRefAttr packFunction(func::CallOp call, unsigned operand);
  void placePanels();
  void addPrepareSequence();
  LogicalResult placeParams();
  LogicalResult placeInputs();
  LogicalResult placeResults(Program &program);
  void placeAccumulators(const llvm::DenseMap<StringAttr, int64_t> &ownOffsets);
  LogicalResult placeGradients(ArrayRef<func::CallOp> backward);
  void placeActivations(Program &program);
  void addSequence(SequenceKind kind, Program &program,
                   ArrayRef<func::CallOp> calls);

  ArenaAttr arena(int64_t offset, int64_t bytes) {
    return ArenaAttr::get(builder.getContext(), offset, bytes);
  }
  /// The scalar cell of this name in the inputs region, made on first use.
  int64_t cell(StringRef name, Type type);
  void setPlace(Program &program, Value value, Place place) {
    program.places[value] = place;
  }

  ModuleOp module;
  RankOp rank;
  OpBuilder builder;
  std::optional<SymbolTable> kernels;
  Program train, model, count;
  Region weights, gradients, optimizer, inputs;
  int64_t activationBytes = 0, scratchSize = 0, activationBegin = 0;
  llvm::StringMap<int64_t> cells;
  llvm::DenseMap<unsigned, int64_t> accumulators; // by result of @train
  llvm::MapVector<StringAttr, Place> paramPlaces;
  /// By parameter and function that packs it: where the panels are.
  llvm::MapVector<std::pair<StringAttr, StringAttr>, ArenaAttr> panels;
};

} // namespace

/// Body of a function in calls; anything else but param_ref and return is a
/// broken invariant of the phases before.
static LogicalResult readProgram(ModuleOp module, StringRef name,
                                 Program &program) {
  program.function = module.lookupSymbol<func::FuncOp>(name);
  if (!program.function)
    return success();
  for (Operation &op : program.function.getBody().front()) {
    if (auto call = dyn_cast<func::CallOp>(op))
      program.calls.push_back(call);
    else if (!isa<nn::ParamRefOp, func::ReturnOp>(op))
      return op.emitError(
                 "is not in a layer function; expected only calls in @")
             << name;
  }
  return success();
}

LogicalResult Planner::readPrograms() {
  if (failed(readProgram(module, "train", train)) ||
      failed(readProgram(module, "model", model)) ||
      failed(readProgram(module, "count", count)))
    return failure();
  if (!train.function || !model.function)
    return module.emitError("has no @train or no @model to plan");
  for (Program *program : {&train, &model, &count})
    for (func::CallOp call : program->calls)
      if (!findKernel(call.getCallee()))
        return call.emitError("calls @")
               << call.getCallee() << ", which has no code in @kernels";
  return success();
}

/// Weights: trainable ones with gradient and optimizer state; a frozen one
/// stays in the mapped file unless its bytes lie there unaligned.
LogicalResult Planner::placeParams() {
  SmallVector<nn::ParamOp> params(module.getOps<nn::ParamOp>());
  struct Home {
    std::optional<int64_t> value, gradient, momentum, variance;
  };
  SmallVector<Home> homes(params.size());
  for (auto [param, home] : llvm::zip_equal(params, homes)) {
    int64_t bytes = param.getLength();
    Type element = param.getTensorType().getElementType();
    int64_t align = std::max(8u, element.getIntOrFloatBitWidth()) / 8;
    if (param.isTrainable()) {
      if (!element.isF32())
        return param.emitError("not supported yet: training parameter ")
               << param.getSymName() << " of type " << element
               << "; supported: f32";
      home.value = weights.take(bytes);
    } else if (param.getOffset() % align != 0) {
      home.value = weights.take(bytes);
    }
  }
  placePanels();
  gradients.begin = weights.begin + weights.bytes;
  llvm::DenseMap<StringAttr, int64_t> ownOffsets;
  for (auto [param, home] : llvm::zip_equal(params, homes))
    if (param.isTrainable()) {
      home.gradient = gradients.take(param.getLength());
      ownOffsets[param.getSymNameAttr()] = *home.gradient;
    }
  placeAccumulators(ownOffsets);
  for (auto [param, home] : llvm::zip_equal(params, homes))
    if (home.value)
      paramPlaces[param.getSymNameAttr()] =
          arena(*home.value, param.getLength());
    else
      paramPlaces[param.getSymNameAttr()] = WeightAttr::get(
          builder.getContext(), FlatSymbolRefAttr::get(param.getSymNameAttr()));

  optimizer.begin = gradients.begin + gradients.bytes;
  for (auto [param, home] : llvm::zip_equal(params, homes)) {
    auto attr = [&](std::optional<int64_t> offset) {
      return offset ? builder.getI64IntegerAttr(*offset) : IntegerAttr();
    };
    if (param.isTrainable()) {
      home.momentum = optimizer.take(param.getLength());
      home.variance = optimizer.take(param.getLength());
    }
    PlaceParamOp::create(builder, param.getLoc(),
                         FlatSymbolRefAttr::get(param.getSymNameAttr()),
                         attr(home.value), attr(home.gradient),
                         attr(home.momentum), attr(home.variance));
  }
  return success();
}

int64_t Planner::cell(StringRef name, Type type) {
  auto [it, inserted] = cells.try_emplace(name, 0);
  if (inserted)
    it->second = inputs.take(byteSize(type));
  return it->second;
}

/// Inputs of one micro-batch, by name: @model, @train and @count read the same
/// range.
LogicalResult Planner::placeInputs() {
  inputs.begin = optimizer.begin + optimizer.bytes;
  cell("nn.seed", RankedTensorType::get({}, builder.getF32Type()));
  // @model first: its arguments carry the limits.
  for (Program *program : {&model, &train, &count}) {
    if (!program->function)
      continue;
    for (BlockArgument arg : program->function.getArguments()) {
      unsigned i = arg.getArgNumber();
      if (program->function.getArgAttr(i, "nn.seed")) {
        setPlace(
            *program, arg,
            arena(cell("nn.seed", arg.getType()), byteSize(arg.getType())));
        continue;
      }
      auto name =
          program->function.getArgAttrOfType<StringAttr>(i, nn::kInputAttr);
      if (!name)
        return program->function.emitError("argument ")
               << i << " is neither an input nor the seed";
      std::string key = ("in:" + name.getValue()).str();
      bool isNew = !cells.contains(key);
      int64_t offset = cell(key, arg.getType());
      setPlace(*program, arg, arena(offset, byteSize(arg.getType())));
      if (isNew)
        PlaceInputOp::create(
            builder, arg.getLoc(), name, TypeAttr::get(arg.getType()),
            builder.getI64IntegerAttr(offset),
            program->function.getArgAttrOfType<IntegerAttr>(i, "nn.limit"),
            program->function.getArgAttrOfType<IntegerAttr>(i, "nn.ignore"));
    }
  }
  return success();
}

/// Loss, count and further outputs have fixed cells: the runtime reads them.
LogicalResult Planner::placeResults(Program &program) {
  if (!program.function)
    return success();
  auto ret =
      cast<func::ReturnOp>(program.function.getBody().front().getTerminator());
  for (OpOperand &operand : ret->getOpOperands()) {
    unsigned i = operand.getOperandNumber();
    Value value = operand.get();
    auto role = program.function.getResultAttrOfType<StringAttr>(i, "nn.loss");
    auto output =
        program.function.getResultAttrOfType<StringAttr>(i, nn::kOutputAttr);
    std::string key;
    if (role && (role.getValue() == "sum" || role.getValue() == "mean"))
      key = "nn.loss";
    else if ((role && role.getValue() == "count") ||
             program.function.getSymName() == "count")
      key = "nn.count";
    else if (output)
      key = ("out:" + output.getValue()).str();
    else
      continue; // a gradient
    auto type = cast<RankedTensorType>(value.getType());
    if (!StringRef(key).starts_with("out:") &&
        (!type.getElementType().isF32() || type.getNumElements() != 1))
      return program.function.emitError("not supported yet: a loss of type ")
             << type << "; supported: one f32";
    int64_t offset = cell(key, type);
    if (program.places.contains(value) || !value.getDefiningOp<func::CallOp>())
      return program.function.emitError("not supported yet: output ")
             << (output ? output.getValue() : StringRef(key))
             << " that is also an input, a parameter or another output";
    setPlace(program, value, arena(offset, byteSize(type)));
    if (&program == &model && output)
      PlaceOutputOp::create(builder, program.function.getLoc(), output,
                            TypeAttr::get(type),
                            builder.getI64IntegerAttr(offset));
  }
  return success();
}

/// Calls `visit` with each gradient of @train: result number and parameter.
static void
forEachGradient(func::FuncOp function,
                llvm::function_ref<void(unsigned, StringAttr)> visit) {
  for (unsigned i = 0; i < function.getNumResults(); ++i)
    if (auto param =
            function.getResultAttrOfType<FlatSymbolRefAttr>(i, "nn.gradient"))
      visit(i, param.getAttr());
}

/// Accumulators: the first use of a parameter adds to the parameter's own, each
/// further use to one of its own.
void Planner::placeAccumulators(
    const llvm::DenseMap<StringAttr, int64_t> &ownOffsets) {
  llvm::DenseSet<StringAttr> seen;
  forEachGradient(train.function, [&](unsigned i, StringAttr param) {
    Type type = train.function.getResultTypes()[i];
    accumulators[i] = seen.insert(param).second
                          ? ownOffsets.lookup(param)
                          : gradients.take(byteSize(type));
  });
}

LLVM::LLVMFuncOp Planner::findKernel(StringRef name) {
  if (!kernels) {
    auto code = module.lookupSymbol<ModuleOp>("kernels");
    if (!code)
      return nullptr;
    kernels.emplace(code);
  }
  return kernels->lookup<LLVM::LLVMFuncOp>(name);
}

/// Bytes of scratch that a kernel asks for.
static int64_t scratchBytes(LLVM::LLVMFuncOp code) {
  auto bytes = code->getAttrOfType<IntegerAttr>("nn.scratch_bytes");
  return bytes ? bytes.getInt() : 0;
}

/// The function that packs what the kernel reads as this operand, or null: the
/// kernel reads the parameter as it is stored.
FlatSymbolRefAttr Planner::packFunction(func::CallOp call, unsigned operand) {
  auto packed =
      findKernel(call.getCallee())->getAttrOfType<ArrayAttr>("nn.packed");
  return packed ? dyn_cast<FlatSymbolRefAttr>(packed[operand])
                : FlatSymbolRefAttr();
}

/// Room for each frozen weight in each form in which kernels read it.
void Planner::placePanels() {
  for (Program *program : {&train, &model, &count})
    for (func::CallOp call : program->calls)
      for (auto [i, operand] : llvm::enumerate(call.getOperands())) {
        auto ref = operand.getDefiningOp<nn::ParamRefOp>();
        FlatSymbolRefAttr pack = ref ? packFunction(call, i) : nullptr;
        if (!pack)
          continue;
        auto &place = panels[{ref.getParamAttr().getAttr(), pack.getAttr()}];
        if (place)
          continue;
        auto args =
            findKernel(pack.getValue())->getAttrOfType<ArrayAttr>("nn.args");
        auto type = cast<MemRefType>(cast<TypeAttr>(args[1]).getValue());
        int64_t bytes = byteSize(
            RankedTensorType::get(type.getShape(), type.getElementType()));
        place = arena(weights.take(bytes), bytes);
      }
}

/// Packs the weights once, when they have been loaded.
void Planner::addPrepareSequence() {
  if (panels.empty())
    return;
  auto sequence =
      SequenceOp::create(builder, rank.getLoc(), SequenceKind::PrepareFrozen);
  OpBuilder body(builder.getContext());
  body.createBlock(&sequence.getBody());
  for (auto &[key, place] : panels) {
    auto [param, pack] = key;
    CallOp::create(body, rank.getLoc(), pack.getValue(),
                   builder.getArrayAttr({paramPlaces.lookup(param), place}),
                   /*results=*/1,
                   arena(activationBegin + activationBytes,
                         scratchBytes(findKernel(pack.getValue()))),
                   StringAttr());
  }
}

/// Lifetimes of call results that have no place yet, and their layout. What
/// @train returns is a gradient: it is added up right after its call.
void Planner::placeActivations(Program &program) {
  llvm::DenseMap<Operation *, int64_t> position;
  for (auto [i, call] : llvm::enumerate(program.calls))
    position[call] = i;
  SmallVector<Value> values;
  SmallVector<Lifetime> lifetimes;
  for (auto [i, call] : llvm::enumerate(program.calls)) {
    for (Value result : call.getResults()) {
      if (program.places.contains(result))
        continue;
      Lifetime lifetime{byteSize(result.getType()), int64_t(i), int64_t(i)};
      for (Operation *user : result.getUsers())
        if (auto it = position.find(user); it != position.end())
          lifetime.end = std::max(lifetime.end, it->second);
      values.push_back(result);
      lifetimes.push_back(lifetime);
    }
    scratchSize = std::max(
        scratchSize, alignBytes(scratchBytes(findKernel(call.getCallee()))));
  }
  activationBytes = std::max(activationBytes, layOut(lifetimes));
  for (auto [value, lifetime] : llvm::zip_equal(values, lifetimes))
    setPlace(program, value,
             arena(activationBegin + lifetime.offset, lifetime.bytes));
}

void Planner::addSequence(SequenceKind kind, Program &program,
                          ArrayRef<func::CallOp> calls) {
  auto sequence = SequenceOp::create(builder, rank.getLoc(), kind);
  OpBuilder body(builder.getContext());
  body.createBlock(&sequence.getBody());
  for (func::CallOp call : calls) {
    SmallVector<Attribute> args;
    for (auto [i, value] : llvm::enumerate(call.getOperands())) {
      auto ref = value.getDefiningOp<nn::ParamRefOp>();
      if (!ref) {
        args.push_back(program.places.lookup(value));
        continue;
      }
      StringAttr param = ref.getParamAttr().getAttr();
      if (FlatSymbolRefAttr pack = packFunction(call, i))
        args.push_back(panels.lookup({param, pack.getAttr()}));
      else
        args.push_back(paramPlaces.lookup(param));
    }
    for (Value value : call.getResults())
      args.push_back(program.places.lookup(value));
    auto instance = call->getAttrOfType<StringAttr>("nn.instance");
    CallOp::create(body, call.getLoc(), call.getCallee(),
                   builder.getArrayAttr(args), call.getNumResults(),
                   arena(activationBegin + activationBytes,
                         scratchBytes(findKernel(call.getCallee()))),
                   instance);
  }
}

/// Whether a call of @train belongs to the backward pass.
static bool isBackward(func::CallOp call) {
  auto phase = call->getAttrOfType<StringAttr>("nn.phase");
  return phase && phase.getValue() == "backward";
}

/// Where backward leaves each gradient, and when it is added to what.
LogicalResult Planner::placeGradients(ArrayRef<func::CallOp> backward) {
  Operation *ret = train.function.getBody().front().getTerminator();
  LogicalResult result = success();
  forEachGradient(train.function, [&](unsigned i, StringAttr param) {
    Value value = ret->getOperand(i);
    auto call = value.getDefiningOp<func::CallOp>();
    const auto *at = llvm::find(backward, call);
    if (!call || at == backward.end()) {
      result = train.function.emitError("gradient of @")
               << param.getValue() << " is not the result of a backward call";
      return;
    }
    PlaceGradientOp::create(
        builder, value.getLoc(), param.getValue(),
        cast<ArenaAttr>(train.places.lookup(value)).getOffset(),
        accumulators.lookup(i), at - backward.begin());
  });
  return result;
}

LogicalResult Planner::run() {
  if (failed(readPrograms()) || failed(placeParams()) || failed(placeInputs()))
    return failure();
  for (Program *program : {&train, &model, &count})
    if (failed(placeResults(*program)))
      return failure();
  activationBegin = inputs.begin + inputs.bytes;
  for (Program *program : {&train, &model, &count})
    placeActivations(*program);

  auto *firstBackward = llvm::find_if(train.calls, isBackward);
  ArrayRef<func::CallOp> forward(train.calls.begin(), firstBackward);
  ArrayRef<func::CallOp> backward(firstBackward, train.calls.end());
  if (failed(placeGradients(backward)))
    return failure();
  auto offsetOf = [&](StringRef key) {
    auto it = cells.find(key);
    return it == cells.end() ? IntegerAttr()
                             : builder.getI64IntegerAttr(it->second);
  };
  PlaceLossOp::create(builder, rank.getLoc(), offsetOf("nn.loss"),
                      offsetOf("nn.count"), offsetOf("nn.seed"));

  addPrepareSequence();
  addSequence(SequenceKind::Forward, train, forward);
  addSequence(SequenceKind::Backward, train, backward);
  addSequence(SequenceKind::Evaluate, model, model.calls);
  addSequence(SequenceKind::Count, count, count.calls);
  rank.setMemory(ArrayRef<int64_t>{weights.bytes, gradients.bytes,
                                   optimizer.bytes, inputs.bytes,
                                   activationBytes, scratchSize});
  return success();
}

namespace {
struct PlanMemoryPass : mgq::pipe::impl::PlanMemoryPassBase<PlanMemoryPass> {
  void runOnOperation() override {
    for (RankOp rank : getOperation().getOps<RankOp>())
      if (failed(Planner(getOperation(), rank).run()))
        return signalPassFailure();
  }
};
} // namespace
