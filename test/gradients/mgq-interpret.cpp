//===- mgq-interpret.cpp - Runs a function of nn ops ----------------------===//
//
// Prints the results of a function as the reference interpreter computes them.
// Operands are random numbers, the same for the same seed, or constants:
//
//   mgq-interpret file.mlir --entry=f --input='dense<1.0> : tensor<2xf32>'
//
//===----------------------------------------------------------------------===//

#include "dialects/NN/Interpreter/Interpreter.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/CommandLine.h"

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

int main(int argc, char **argv) {
  llvm::cl::opt<std::string> file(llvm::cl::Positional, llvm::cl::Required,
                                  llvm::cl::desc("<file.mlir>"));
  llvm::cl::opt<std::string> entry("entry", llvm::cl::init("model"),
                                   llvm::cl::desc("function to run"));
  llvm::cl::list<std::string> given(
      "input", llvm::cl::desc("an operand; the rest are random"));
  llvm::cl::opt<unsigned> seed("seed", llvm::cl::init(1),
                               llvm::cl::desc("seed of random operands"));
  llvm::cl::ParseCommandLineOptions(argc, argv, "mgq reference interpreter\n");

  MLIRContext context;
  context.loadDialect<NNDialect, func::FuncDialect>();
  auto module = parseSourceFile<ModuleOp>(file, &context);
  if (!module)
    return 1;
  auto function = module->lookupSymbol<func::FuncOp>(entry);
  if (!function) {
    llvm::errs() << file << " has no function @" << entry << "\n";
    return 1;
  }
  std::mt19937 engine(seed);
  Parameters parameters;
  for (auto param : module->getOps<ParamOp>())
    parameters[param.getSymName()] = randomTensor(param.getType(), engine);
  SmallVector<Tensor> inputs;
  for (auto [i, type] : llvm::enumerate(function.getArgumentTypes())) {
    if (i >= given.size()) {
      inputs.push_back(randomTensor(type, engine));
      continue;
    }
    auto attr =
        dyn_cast_or_null<DenseElementsAttr>(parseAttribute(given[i], &context));
    if (!attr)
      return 1;
    inputs.emplace_back(attr);
  }
  auto results = interpret(function, inputs, parameters);
  if (failed(results))
    return 1;
  for (const Tensor &result : *results)
    llvm::outs() << result.toAttr() << "\n";
  return 0;
}
