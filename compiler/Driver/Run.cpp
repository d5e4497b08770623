//===- Run.cpp - mgq-run, as a function -----------------------------------===//
//
// The whole graph is one layer function: import, simplify, kernels, then a call
// in this process.
//
//===----------------------------------------------------------------------===//

#include "compiler/Driver/Run.h"

#include "compiler/Driver/CommandLine.h"
#include "compiler/Driver/Diagnostics.h"
#include "compiler/Driver/Safetensors.h"
#include "compiler/Pipelines/Phases.h"
#include "compiler/Pipelines/Registration.h"
#include "dialects/NN/NN.h"
#include "frontends/onnx/Import.h"
#include "passes/Kernels/Object.h"
#include "passes/Kernels/Pipeline.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace mgq;
namespace cl = llvm::cl;

static constexpr llvm::StringLiteral kTool = "mgq-run";

namespace {
struct RunFlags {
  cl::OptionCategory category{"mgq-run options"};
  cl::opt<std::string> model{cl::Positional, cl::desc("MODEL.onnx"),
                             cl::cat(category)};
  cl::opt<std::string> inputs{"inputs", cl::desc("tensors by graph input"),
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

/// Copies a weight out of its file.
static llvm::Error readWeight(nn::ParamOp param, StringRef folder,
                              char *target) {
  SmallString<256> path(folder);
  llvm::sys::path::append(path, param.getFile());
  auto file = llvm::MemoryBuffer::getFileSlice(path, param.getLength(),
                                               param.getOffset());
  if (!file || (*file)->getBufferSize() < param.getLength())
    return llvm::createStringError(llvm::formatv(
        "weight {0}: {1} has no bytes {2} to {3}: {4}", param.getSymName(),
        path, param.getOffset(), param.getOffset() + param.getLength(),
        file ? "the file is too short" : file.getError().message()));
  memcpy(target, (*file)->getBufferStart(), param.getLength());
  return llvm::Error::success();
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
  int bindArguments();
  int compileAndCall();
  int writeOutputs();

  MLIRContext &context;
  const RunFlags &flags;
  SafetensorsFile inputs;
  OwningOpRef<ModuleOp> module;
  SmallVector<std::string> outputNames;
  std::vector<Argument> arguments; // inputs, weights, outputs
  size_t firstOutput = 0;
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
  for (StringRef dim : flags.dims)
    if (!parseDim(dim, options.dims)) {
      reportError(kTool, "--dim=" + dim + ": expected NAME=N");
      return kUsage;
    }
  {
    ScopedDiagnosticHandler quiet(&context,
                                  [](Diagnostic &) { return success(); });
    module = onnx::importModel(&context, flags.model, options);
  }
  if (module)
    return kSuccess;
  // One float per axis may be Resize's scales.
  constexpr int64_t maxAxes = 8;
  for (const auto &[name, tensor] : inputs.tensors)
    if (isa<IntegerType>(tensor.type.getElementType()) ||
        tensor.type.getNumElements() == 1 ||
        (tensor.type.getRank() == 1 && tensor.type.getNumElements() <= maxAxes))
      options.constantInputs[name] = constantOf(tensor);
  module = onnx::importModel(&context, flags.model, options);
  return module ? kSuccess : kFailure;
}

/// Inputs from the file, weights from theirs, room for outputs.
int Runner::bindArguments() {
  auto model = module->lookupSymbol<func::FuncOp>("model");
  for (BlockArgument arg : model.getArguments()) {
    auto name =
        model.getArgAttrOfType<StringAttr>(arg.getArgNumber(), nn::kInputAttr);
    auto type = cast<RankedTensorType>(arg.getType());
    auto it = inputs.tensors.find(name.str());
    if (it == inputs.tensors.end())
      return reportError(kTool, flags.inputs + " has no tensor " +
                                    name.getValue() +
                                    ", an input of the graph");
    if (it->second.type != type)
      return reportError(kTool,
                         llvm::formatv("{0}: tensor {1} is {2}, expected {3}",
                                       flags.inputs, name.getValue(),
                                       it->second.type, type));
    Buffer buffer = makeBuffer(tensorBytes(type));
    memcpy(buffer.get(), it->second.bytes.data(), tensorBytes(type));
    arguments.push_back({type, std::move(buffer)});
  }

  StringRef folder = flags.weights;
  if (folder.empty())
    folder = llvm::sys::path::parent_path(flags.model);
  for (nn::ParamOp param : passParameters(*module, model)) {
    Buffer buffer = makeBuffer(param.getLength());
    if (llvm::Error error = readWeight(param, folder, buffer.get()))
      return reportError(kTool, std::move(error));
    arguments.push_back({param.getTensorType(), std::move(buffer)});
  }
  for (nn::ParamOp param :
       llvm::make_early_inc_range(module->getOps<nn::ParamOp>()))
    param.erase();

  firstOutput = arguments.size();
  for (auto [i, type] : llvm::enumerate(model.getResultTypes())) {
    auto tensor = cast<RankedTensorType>(type);
    outputNames.push_back(
        model.getResultAttrOfType<StringAttr>(i, nn::kOutputAttr).str());
    arguments.push_back({tensor, makeBuffer(tensorBytes(tensor))});
  }
  model->setAttr(nn::kLayerAttr, UnitAttr::get(&context));
  return kSuccess;
}

int Runner::compileAndCall() {
  PassManager passes(&context, ModuleOp::getOperationName());
  kernels::CpuOptions options;
  options.cpu = flags.cpu;
  options.optimizer = false;
  kernels::buildCpuKernelPipeline(passes, options);
  if (failed(passes.run(*module)))
    return kFailure;
  auto code = module->lookupSymbol<LLVM::LLVMFuncOp>("model");
  auto scratchBytes = code->getAttrOfType<IntegerAttr>("nn.scratch_bytes");
  Buffer scratch = makeBuffer(scratchBytes ? scratchBytes.getInt() : 0);

  auto jit = kernels::KernelJit::create(*module);
  if (!jit)
    return reportError(kTool, jit.takeError());
  auto kernel = (*jit)->lookup("model");
  if (!kernel)
    return reportError(kTool, kernel.takeError());
  SmallVector<void *> pointers;
  for (Argument &argument : arguments)
    pointers.push_back(argument.buffer.get());
  (*kernel)(pointers.data(), scratch.get());
  for (const std::string &error : kernels::KernelJit::takeIndexErrors())
    return reportError(kTool, error);
  return kSuccess;
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
  auto file = readSafetensors(&context, flags.inputs);
  if (!file)
    return reportError(kTool, file.takeError());
  inputs = std::move(*file);
  if (int status = importGraph())
    return status;
  PassManager simplify(&context, ModuleOp::getOperationName());
  for (const Phase &phase : allPhases())
    if (phase.name == "simplify")
      phase.build(simplify, Options());
  if (failed(simplify.run(*module)))
    return kFailure;
  if (int status = bindArguments())
    return status;
  if (int status = compileAndCall())
    return status;
  return writeOutputs();
}

int mgq::runMain(int argc, char **argv) {
  // libLLVM registers flags of its own tools.
  cl::ResetCommandLineParser();
  static RunFlags flags;
  cl::HideUnrelatedOptions(flags.category);
  cl::SetVersionPrinter(
      [](llvm::raw_ostream &os) { os << "mgq-run " MGQ_VERSION "\n"; });
  if (!cl::ParseCommandLineOptions(
          argc, argv, "runs an ONNX graph forward, once\n", &llvm::errs()))
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
