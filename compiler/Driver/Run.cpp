//===- Run.cpp - mgq-run, as a function -----------------------------------===//
//
// The whole graph is one layer function: import, simplify, kernels, then a call
// in this process, or one for each record of data. Kernels are those that
// mgq-compile makes, so a value has the bits that it has in training.
//
//===----------------------------------------------------------------------===//

#include "compiler/Driver/Run.h"

#include "compiler/Driver/CommandLine.h"
#include "compiler/Driver/Diagnostics.h"
#include "compiler/Driver/Safetensors.h"
#include "compiler/Driver/Tables.h"
#include "compiler/Pipelines/Phases.h"
#include "compiler/Pipelines/Registration.h"
#include "dialects/NN/NN.h"
#include "frontends/onnx/Import.h"
#include "passes/Kernels/Object.h"
#include "passes/Kernels/Pipeline.h"
#include "runtime/include/records.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Signals.h"

using namespace mlir;
using namespace mgq;
namespace cl = llvm::cl;

static constexpr llvm::StringLiteral kTool = "mgq-run";

namespace {
struct RunFlags {
  cl::OptionCategory category{"mgq-run options"};
  cl::opt<std::string> model{cl::Positional, cl::desc("MODEL.onnx"),
                             cl::cat(category)};
  cl::list<std::string> inputs{"inputs",
                               cl::desc("tensors by graph input; several "
                                        "files with --records"),
                               cl::value_desc("IN.safetensors"),
                               cl::cat(category)};
  cl::opt<std::string> outputs{"outputs", cl::desc("file to write"),
                               cl::value_desc("OUT.safetensors"),
                               cl::cat(category)};
  cl::opt<std::string> weights{"weights", cl::desc("where the weights are now"),
                               cl::value_desc("DIR"), cl::cat(category)};
  cl::list<std::string> dims{"dim", cl::desc("bind a symbolic dimension"),
                             cl::value_desc("NAME=N"), cl::cat(category)};
  cl::opt<std::string> cpu{
      "cpu", cl::desc("native, x86-64-v3, x86-64-v4 or x86-64-v4-bf16"),
      cl::init("native"), cl::cat(category)};
  cl::opt<bool> records{"records",
                        cl::desc("the inputs are training data: run the graph "
                                 "for every record"),
                        cl::cat(category)};
  cl::opt<int> threads{"threads",
                       cl::desc("compute threads, with --records (all cores)"),
                       cl::value_desc("N"), cl::init(0), cl::cat(category)};
  cl::list<std::string> metadata{"metadata",
                                 cl::desc("add to the metadata of OUT, with "
                                          "--records"),
                                 cl::value_desc("KEY=VALUE"),
                                 cl::cat(category)};
  cl::opt<bool> listOps{"list-ops",
                        cl::desc("print the supported operators and stop"),
                        cl::cat(category)};
};

/// 64-byte aligned memory for one tensor.
using Buffer = std::unique_ptr<char, void (*)(char *)>;

/// An argument of the compiled graph.
struct Argument {
  RankedTensorType type;
  Buffer buffer;
};
} // namespace

static Buffer makeBuffer(int64_t bytes) {
  size_t size = llvm::alignTo(std::max<int64_t>(bytes, 1), 64);
  return Buffer(static_cast<char *>(llvm::allocate_buffer(size, 64)),
                [](char *data) { llvm::deallocate_buffer(data, 0, 64); });
}

namespace {
/// The files of weights, mapped.
class WeightFiles {
public:
  explicit WeightFiles(StringRef folder) : folder(folder) {}

  /// The bytes of a weight: in the file if they are aligned there, else copied.
  llvm::Expected<Buffer> read(nn::ParamOp param);

private:
  StringRef folder;
  llvm::StringMap<std::unique_ptr<llvm::MemoryBuffer>> files;
};
} // namespace

llvm::Expected<Buffer> WeightFiles::read(nn::ParamOp param) {
  SmallString<256> path(folder);
  llvm::sys::path::append(path, param.getFile());
  auto &file = files[path];
  std::string problem = "the file is too short";
  if (!file) {
    auto opened = llvm::MemoryBuffer::getFile(path, /*IsText=*/false,
                                              /*RequiresNullTerminator=*/false);
    if (opened)
      file = std::move(*opened);
    else
      problem = opened.getError().message();
  }
  uint64_t begin = param.getOffset(), length = param.getLength();
  if (!file || file->getBufferSize() < begin + length)
    return llvm::createStringError(llvm::formatv(
        "weight {0}: {1} has no bytes {2} to {3}: {4}", param.getSymName(),
        path, begin, begin + length, problem));
  const char *bytes = file->getBufferStart() + begin;
  if (reinterpret_cast<uintptr_t>(bytes) % 64 == 0) // Kernels only read it.
    return Buffer(const_cast<char *>(bytes), [](char *) {});
  Buffer buffer = makeBuffer(length);
  memcpy(buffer.get(), bytes, length);
  return std::move(buffer);
}

/// Parameters become arguments behind the inputs; returns them in that order.
static SmallVector<nn::ParamOp> passParameters(ModuleOp module,
                                               func::FuncOp model) {
  llvm::DenseMap<StringAttr, Value> arguments;
  SmallVector<nn::ParamOp> params;
  SymbolTable symbols(module);
  model.walk([&](nn::ParamRefOp ref) {
    Value &argument = arguments[ref.getParamAttr().getAttr()];
    if (!argument) {
      unsigned index = model.getNumArguments();
      (void)model.insertArgument(index, ref.getType(), {}, ref.getLoc());
      argument = model.getArgument(index);
      params.push_back(symbols.lookup<nn::ParamOp>(ref.getParam()));
    }
    ref.replaceAllUsesWith(argument);
    ref.erase();
  });
  return params;
}

namespace {
/// One run of one graph.
class Runner {
public:
  Runner(MLIRContext &context, const RunFlags &flags)
      : context(context), flags(flags) {}
  int run();

private:
  int importGraph();
  int importWith(const onnx::ImportOptions &options);
  int bindInputs(func::FuncOp model);
  int bindWeights(func::FuncOp model);
  void bindOutputs(func::FuncOp model);
  int compile();
  int call();
  int callForRecords();
  int writeOutputs();
  std::vector<mgq_pair> modelMetadata();

  MLIRContext &context;
  const RunFlags &flags;
  SafetensorsFile inputs;
  OwningOpRef<ModuleOp> module;
  std::optional<WeightFiles> weightFiles;
  SmallVector<std::string> inputNames, outputNames;
  std::vector<Argument> arguments; // inputs, weights, outputs
  size_t firstOutput = 0;
  std::unique_ptr<kernels::KernelJit> jit;
  kernels::KernelFn kernel = nullptr;
  Buffer scratch = makeBuffer(0);
};
} // namespace

/// The contents of a tensor. Booleans are bytes in files, bits in attributes.
static DenseElementsAttr constantOf(const FileTensor &tensor) {
  if (!tensor.type.getElementType().isInteger(1))
    return DenseElementsAttr::getFromRawBuffer(tensor.type, tensor.bytes);
  SmallVector<bool> values;
  for (char byte : tensor.bytes)
    values.push_back(byte != 0);
  return DenseElementsAttr::get(tensor.type, values);
}

/// Imports; where shapes depend on integers or scalars that are inputs, those
/// become constants.
int Runner::importGraph() {
  onnx::ImportOptions options;
  options.training = false;
  for (StringRef dim : flags.dims)
    if (!parseDim(dim, options.dims)) {
      reportError(kTool, "--dim=" + dim + ": expected NAME=N");
      return kUsage;
    }
  if (flags.records) // No input is the same for all records.
    return importWith(options);
  {
    ScopedDiagnosticHandler quiet(&context,
                                  [](Diagnostic &) { return success(); });
    if (importWith(options) == kSuccess)
      return kSuccess;
  }
  // One float per axis may be Resize's scales.
  constexpr int64_t maxAxes = 8;
  for (const auto &[name, tensor] : inputs.tensors)
    if (isa<IntegerType>(tensor.type.getElementType()) ||
        tensor.type.getNumElements() == 1 ||
        (tensor.type.getRank() == 1 && tensor.type.getNumElements() <= maxAxes))
      options.constantInputs[name] = constantOf(tensor);
  return importWith(options);
}

int Runner::importWith(const onnx::ImportOptions &options) {
  module = onnx::importModel(&context, flags.model, options);
  return module ? kSuccess : kFailure;
}

/// Inputs from the file, or by record.
int Runner::bindInputs(func::FuncOp model) {
  for (BlockArgument arg : model.getArguments()) {
    auto name =
        model.getArgAttrOfType<StringAttr>(arg.getArgNumber(), nn::kInputAttr);
    auto type = cast<RankedTensorType>(arg.getType());
    inputNames.push_back(name.str());
    if (flags.records) {
      arguments.push_back({type, makeBuffer(0)});
      continue;
    }
    auto it = inputs.tensors.find(name.str());
    if (it == inputs.tensors.end())
      return reportError(kTool, flags.inputs.front() + " has no tensor " +
                                    name.getValue() +
                                    ", an input of the graph");
    if (it->second.type != type)
      return reportError(kTool,
                         llvm::formatv("{0}: tensor {1} is {2}, expected {3}",
                                       flags.inputs.front(), name.getValue(),
                                       it->second.type, type));
    Buffer buffer = makeBuffer(tensorBytes(type));
    memcpy(buffer.get(), it->second.bytes.data(), tensorBytes(type));
    arguments.push_back({type, std::move(buffer)});
  }
  return kSuccess;
}

/// Weights from their files; they become arguments behind the inputs.
int Runner::bindWeights(func::FuncOp model) {
  StringRef folder = flags.weights;
  if (folder.empty())
    folder = llvm::sys::path::parent_path(flags.model);
  weightFiles.emplace(folder);
  for (nn::ParamOp param : passParameters(*module, model)) {
    auto buffer = weightFiles->read(param);
    if (!buffer)
      return reportError(kTool, buffer.takeError());
    arguments.push_back({param.getTensorType(), std::move(*buffer)});
  }
  for (nn::ParamOp param :
       llvm::make_early_inc_range(module->getOps<nn::ParamOp>()))
    param.erase();
  return kSuccess;
}

void Runner::bindOutputs(func::FuncOp model) {
  firstOutput = arguments.size();
  for (auto [i, type] : llvm::enumerate(model.getResultTypes())) {
    auto tensor = cast<RankedTensorType>(type);
    outputNames.push_back(
        model.getResultAttrOfType<StringAttr>(i, nn::kOutputAttr).str());
    arguments.push_back(
        {tensor, makeBuffer(flags.records ? 0 : tensorBytes(tensor))});
  }
  model->setAttr(nn::kLayerAttr, UnitAttr::get(&context));
}

int Runner::compile() {
  PassManager passes(&context, ModuleOp::getOperationName());
  kernels::CpuOptions options;
  options.cpu = flags.cpu;
  options.optimizer = false;
  kernels::buildCpuKernelPipeline(passes, options);
  if (failed(passes.run(*module)))
    return kFailure;
  auto code = module->lookupSymbol<LLVM::LLVMFuncOp>("model");
  auto scratchBytes = code->getAttrOfType<IntegerAttr>("nn.scratch_bytes");
  scratch = makeBuffer(scratchBytes ? scratchBytes.getInt() : 0);
  std::optional<kernels::KernelHooks> hooks;
  if (flags.records)
    hooks = {&mgq_parallel_for, &mgq_index_error};
  auto created = kernels::KernelJit::create(*module, hooks);
  if (!created)
    return reportError(kTool, created.takeError());
  jit = std::move(*created);
  auto found = jit->lookup("model");
  if (!found)
    return reportError(kTool, found.takeError());
  kernel = *found;
  return kSuccess;
}

int Runner::call() {
  SmallVector<void *> pointers;
  for (Argument &argument : arguments)
    pointers.push_back(argument.buffer.get());
  kernel(pointers.data(), scratch.get());
  for (const std::string &error : kernels::KernelJit::takeIndexErrors())
    return reportError(kTool, error);
  return kSuccess;
}

std::vector<mgq_pair> Runner::modelMetadata() {
  std::vector<mgq_pair> pairs;
  if (auto all = (*module)->getAttrOfType<DictionaryAttr>(nn::kMetadataAttr))
    for (NamedAttribute entry : all) // Attributes end with a zero.
      if (auto value = dyn_cast<StringAttr>(entry.getValue()))
        pairs.push_back({entry.getName().data(), value.data()});
  return pairs;
}

int Runner::callForRecords() {
  rt::RecordsJob job;
  // Shapes of the tables below live in the types.
  auto tensorOf = [](RankedTensorType type) {
    return mgq_tensor{typeCode(type.getElementType()),
                      static_cast<int32_t>(type.getRank()),
                      type.getShape().data(), tensorBytes(type)};
  };
  for (auto [i, name] : llvm::enumerate(inputNames))
    job.inputs.push_back({name.c_str(), tensorOf(arguments[i].type), 0, 0, 0});
  for (auto [i, name] : llvm::enumerate(outputNames))
    job.outputs.push_back(
        {name.c_str(), tensorOf(arguments[firstOutput + i].type)});
  job.metadata = modelMetadata();
  job.files.assign(flags.inputs.begin(), flags.inputs.end());
  job.target = flags.outputs;
  job.threads = flags.threads;
  for (StringRef pair : flags.metadata) {
    auto [key, value] = pair.split('=');
    job.added[key.str()] = value.str();
  }
  SmallVector<void *> pointers;
  for (Argument &argument : arguments)
    pointers.push_back(argument.buffer.get());
  job.run = [&](void *const *buffers) {
    std::copy_n(buffers, inputNames.size(), pointers.begin());
    std::copy_n(buffers + inputNames.size(), outputNames.size(),
                pointers.begin() + firstOutput);
    kernel(pointers.data(), scratch.get());
  };
  std::string temporary;
  job.onTemporary = [&](const std::string &path) {
    if (path.empty())
      llvm::sys::DontRemoveFileOnSignal(temporary);
    else
      llvm::sys::RemoveFileOnSignal(path);
    temporary = path;
  };
  std::string error = rt::runRecords(job);
  return error.empty() ? kSuccess : reportError(kTool, error);
}

int Runner::writeOutputs() {
  std::map<std::string, FileTensor> tensors;
  for (auto [i, name] : llvm::enumerate(outputNames)) {
    Argument &argument = arguments[firstOutput + i];
    tensors[name] = {argument.type,
                     {argument.buffer.get(),
                      static_cast<size_t>(tensorBytes(argument.type))}};
  }
  if (llvm::Error error = writeSafetensors(flags.outputs, tensors))
    return reportError(kTool, std::move(error));
  return kSuccess;
}

int Runner::run() {
  if (!flags.records) {
    auto file = readSafetensors(&context, flags.inputs.front());
    if (!file)
      return reportError(kTool, file.takeError());
    inputs = std::move(*file);
  }
  if (int status = importGraph())
    return status;
  PassManager simplify(&context, ModuleOp::getOperationName());
  for (const Phase &phase : allPhases())
    if (phase.name == "simplify")
      phase.build(simplify, Options());
  if (failed(simplify.run(*module)))
    return kFailure;
  auto model = module->lookupSymbol<func::FuncOp>("model");
  if (int status = bindInputs(model))
    return status;
  if (int status = bindWeights(model))
    return status;
  bindOutputs(model);
  if (int status = compile())
    return status;
  if (flags.records)
    return callForRecords();
  if (int status = call())
    return status;
  return writeOutputs();
}

/// Flags that need or exclude --records.
static int checkFlags(const RunFlags &flags) {
  auto usage = [](const llvm::Twine &text) {
    reportError(kTool, text);
    return kUsage;
  };
  if (!flags.records && flags.inputs.size() > 1)
    return usage("several --inputs need --records");
  if (!flags.records && flags.threads.getNumOccurrences())
    return usage("--threads needs --records");
  if (!flags.records && !flags.metadata.empty())
    return usage("--metadata needs --records");
  if (flags.threads.getNumOccurrences() && flags.threads < 1)
    return usage("--threads=" + llvm::Twine(flags.threads.getValue()) +
                 ": expected a number from 1");
  for (StringRef pair : flags.metadata)
    if (!pair.contains('=') || pair.starts_with("="))
      return usage("--metadata=" + pair + ": expected KEY=VALUE");
  return kSuccess;
}

int mgq::runMain(int argc, char **argv) {
  // libLLVM registers flags of its own tools.
  cl::ResetCommandLineParser();
  static RunFlags flags;
  cl::HideUnrelatedOptions(flags.category);
  cl::SetVersionPrinter(
      [](llvm::raw_ostream &os) { os << "mgq-run " MGQ_VERSION "\n"; });
  if (!cl::ParseCommandLineOptions(
          argc, argv,
          "runs an ONNX graph forward: once, or for each record of data\n",
          &llvm::errs()))
    return kUsage;
  if (flags.listOps) {
    for (StringRef name : onnx::supportedOperators())
      llvm::outs() << name << "\n";
    return kSuccess;
  }
  if (flags.model.empty() || flags.inputs.empty() || flags.outputs.empty()) {
    reportError(kTool, "expected MODEL.onnx, --inputs and --outputs; see "
                       "mgq-run --help");
    return kUsage;
  }
  if (int status = checkFlags(flags))
    return status;
  DialectRegistry registry;
  registerDialects(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  context.printOpOnDiagnostic(false);
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    printDiagnostic(kTool, flags.model, diagnostic);
    return success();
  });
  return Runner(context, flags).run();
}
