//===- mgq-interpret.cpp - Runs a function of nn ops ----------------------===//
//
// Prints the results of a function as the reference interpreter computes them.
// Operands are random numbers, the same for the same seed, or constants:
//
//   mgq-interpret file.mlir --entry=f --input='dense<1.0> : tensor<2xf32>'
//
// With --model-dir, parameters come from the model's files. With --data, an
// operand with a name (`nn.input`) comes from the file of that name there, raw,
// and each result goes to the file of its number, raw f64; a line per result
// says its type and whose gradient it is.
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/Interpreter/Interpreter.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

#include <random>

using namespace mlir;
using namespace mgq::nn;

/// A tensor of random numbers: reals from -1 to 1, integers 0 and 1.
static Tensor randomTensor(Type type, std::mt19937 &engine) {
  Tensor tensor(cast<RankedTensorType>(type));
  std::uniform_real_distribution<double> real(-1.0, 1.0);
  for (Number &value : tensor.data)
    if (tensor.isFloat())
      value.real = real(engine);
    else
      value.whole = engine() & 1;
  tensor.round();
  return tensor;
}

/// A tensor of raw little-endian bytes in part of a file; a whole file if
/// `length` is negative. Reports what is wrong.
static FailureOr<Tensor> readTensor(StringRef folder, StringRef name, Type type,
                                    int64_t offset = 0, int64_t length = -1) {
  SmallString<128> path(folder);
  llvm::sys::path::append(path, name);
  auto buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/false,
                                            /*RequiresNullTerminator=*/false);
  if (!buffer) {
    llvm::errs() << path << ": " << buffer.getError().message() << "\n";
    return failure();
  }
  StringRef bytes = (*buffer)->getBuffer().substr(
      offset, length < 0 ? StringRef::npos : size_t(length));
  auto shaped = cast<RankedTensorType>(type);
  int64_t width = std::max(shaped.getElementTypeBitWidth(), 8u) / 8;
  if (int64_t(bytes.size()) != shaped.getNumElements() * width) {
    llvm::errs() << path << " has " << bytes.size() << " bytes for " << type
                 << "\n";
    return failure();
  }
  if (shaped.getElementType().isInteger(1)) {
    SmallVector<bool> values(bytes.begin(), bytes.end());
    return Tensor(DenseElementsAttr::get(shaped, values));
  }
  return Tensor(DenseElementsAttr::getFromRawBuffer(
      shaped, ArrayRef<char>(bytes.data(), bytes.size())));
}

/// Writes a result of a function and a line about it.
static void writeResult(func::FuncOp function, unsigned i, const Tensor &tensor,
                        StringRef folder) {
  SmallString<128> path(folder);
  llvm::sys::path::append(path, std::to_string(i));
  std::error_code error;
  llvm::raw_fd_ostream os(path, error);
  for (const Number &value : tensor.data)
    os.write(reinterpret_cast<const char *>(&value.real), sizeof(double));
  llvm::outs() << i << " " << tensor.type;
  if (auto name =
          function.getResultAttrOfType<FlatSymbolRefAttr>(i, kGradientAttr)) {
    llvm::outs() << " " << name.getValue();
    auto param = SymbolTable::lookupNearestSymbolFrom<ParamOp>(function, name);
    if (auto permutation = param.getCanonicalPermutation()) {
      llvm::outs() << " ";
      llvm::interleave(*permutation, llvm::outs(), ",");
    }
  }
  llvm::outs() << "\n";
}

namespace {
/// The command line.
struct Options {
  llvm::cl::opt<std::string> file{llvm::cl::Positional, llvm::cl::Required,
                                  llvm::cl::desc("<file.mlir>")};
  llvm::cl::opt<std::string> entry{"entry", llvm::cl::init("model"),
                                   llvm::cl::desc("function to run")};
  llvm::cl::list<std::string> inputs{
      "input", llvm::cl::desc("an operand; the rest are random")};
  llvm::cl::opt<std::string> modelDir{
      "model-dir", llvm::cl::desc("folder of the parameters' files")};
  llvm::cl::opt<std::string> data{
      "data", llvm::cl::desc("folder of raw operands and results")};
  llvm::cl::opt<unsigned> seed{"seed", llvm::cl::init(1),
                               llvm::cl::desc("seed of random operands")};
};
} // namespace

/// Values of the parameters, from files or random.
static FailureOr<Parameters>
makeParameters(ModuleOp module, const Options &options, std::mt19937 &engine) {
  Parameters parameters;
  for (auto param : module.getOps<ParamOp>()) {
    FailureOr<Tensor> value =
        options.modelDir.empty()
            ? FailureOr<Tensor>(randomTensor(param.getType(), engine))
            : readTensor(options.modelDir, param.getFile(), param.getType(),
                         param.getOffset(), param.getLength());
    if (failed(value))
      return failure();
    parameters[param.getSymName()] = *value;
  }
  return parameters;
}

/// Operands of a function: given, from files, or random.
static FailureOr<SmallVector<Tensor>> makeInputs(func::FuncOp function,
                                                 const Options &options,
                                                 std::mt19937 &engine) {
  SmallVector<Tensor> inputs;
  for (auto [i, type] : llvm::enumerate(function.getArgumentTypes())) {
    auto name = function.getArgAttrOfType<StringAttr>(i, kInputAttr);
    if (i < options.inputs.size()) {
      auto attr = dyn_cast_or_null<DenseElementsAttr>(
          parseAttribute(options.inputs[i], function.getContext()));
      if (!attr)
        return failure();
      inputs.emplace_back(attr);
    } else if (!options.data.empty() && name) {
      FailureOr<Tensor> value = readTensor(options.data, name, type);
      if (failed(value))
        return failure();
      inputs.push_back(*value);
    } else if (function.getArgAttr(i, kSeedAttr)) {
      inputs.emplace_back(cast<RankedTensorType>(type));
      inputs.back().data[0].real = 1.0;
    } else {
      inputs.push_back(randomTensor(type, engine));
    }
  }
  return inputs;
}

int main(int argc, char **argv) {
  Options options;
  llvm::cl::ParseCommandLineOptions(argc, argv, "mgq reference interpreter\n");
  MLIRContext context;
  context.loadDialect<NNDialect, func::FuncDialect>();
  auto module = parseSourceFile<ModuleOp>(options.file, &context);
  if (!module)
    return 1;
  auto function = module->lookupSymbol<func::FuncOp>(options.entry);
  if (!function) {
    llvm::errs() << options.file << " has no function @" << options.entry
                 << "\n";
    return 1;
  }
  std::mt19937 engine(options.seed);
  auto parameters = makeParameters(*module, options, engine);
  auto inputs = makeInputs(function, options, engine);
  if (failed(parameters) || failed(inputs))
    return 1;
  auto results = interpret(function, *inputs, *parameters);
  if (failed(results))
    return 1;
  for (auto [i, result] : llvm::enumerate(*results))
    if (options.data.empty())
      llvm::outs() << result.toAttr() << "\n";
    else
      writeResult(function, i, result, options.data);
  return 0;
}
