//===- Compile.cpp - mgq-compile, as a function ---------------------------===//

#include "compiler/Driver/Compile.h"

#include "compiler/Driver/CommandLine.h"
#include "compiler/Driver/Diagnostics.h"
#include "compiler/Driver/Link.h"
#include "compiler/Driver/MicroBatches.h"
#include "compiler/Driver/ModelCompiler.h"
#include "compiler/Driver/PlanReport.h"
#include "compiler/Driver/Tables.h"
#include "compiler/Pipelines/Registration.h"
#include "passes/Kernels/Cuda/Images.h"
#include "passes/Kernels/Object.h"
#include "passes/Kernels/Passes.h"
#include "passes/Planner/PlanText.h"

#include "mlir/IR/AsmState.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Signals.h"
#include "llvm/Support/ToolOutputFile.h"
#include "llvm/Support/WithColor.h"
#include <csignal>

using namespace mlir;
using namespace mgq;

namespace {
/// Compiles a model once for each number of micro-batches that its steps may
/// have. Functions return an exit status.
class Compiler {
public:
  Compiler(MLIRContext &context, const Options &options)
      : context(context), options(options),
        handler(&context, [this](Diagnostic &diagnostic) {
          // Each program would warn of the same.
          if (!isAgain || diagnostic.getSeverity() == DiagnosticSeverity::Error)
            printDiagnostic(kCompilerName, this->options.model, diagnostic);
          return success();
        }) {}

  int run();

private:
  int findCounts();
  void noteCompression();
  int compilePrograms();
  int compileProgram(size_t at);
  int gatherPrograms();
  int writeIr(ModuleOp module);
  llvm::Error embedCudaImages(ModuleOp module);
  int emit();
  bool isSingle() const { return micro.counts.size() == 1; }

  MLIRContext &context;
  const Options &options;
  bool isAgain = false; // another program than the first is being compiled
  ScopedDiagnosticHandler handler;
  MicroBatches micro;
  std::vector<std::unique_ptr<ModelCompiler>> programs; // as micro.counts
  size_t start = 0; // the program that a run starts with
  /// Of several programs: the module that holds theirs.
  std::unique_ptr<ModelCompiler> gathered;
};
} // namespace

int Compiler::findCounts() {
  micro.counts = {options.microBatches};
  if (!options.globalBatch)
    return kSuccess;
  auto axis = onnx::findSampleAxis(&context, options.model, options.dims);
  if (failed(axis))
    return kFailure;
  auto found = findMicroBatches(options, *axis);
  if (!found)
    return reportError(kCompilerName, found.takeError());
  micro = std::move(*found);
  start = llvm::find(micro.counts, micro.start) - micro.counts.begin();
  return kSuccess;
}

void Compiler::noteCompression() {
  if (options.compression != "none" &&
      programs[start]->planned.plan.replicas == 1)
    llvm::WithColor::note(llvm::errs(), kCompilerName)
        << "--gradient-compression=" << options.compression
        << " does nothing: there is one replica, which sends no gradients\n";
}

/// Makes options ask for the cuts and the schedule of a program.
static void follow(Options &options, const ModelCompiler &first) {
  const pipe::PlannedModel &planned = first.planned;
  options.runAhead = first.runsAhead();
  if (planned.plan.chunks.empty())
    return; // not planned yet: --stop-after
  options.plannedSchedule = planner::scheduleName(planned.plan.schedule).str();
  options.cuts.clear();
  for (const planner::PlannedChunk &chunk :
       ArrayRef(planned.plan.chunks).drop_front())
    options.cuts.push_back(planned.costs.layers[chunk.firstLayer].name);
}

int Compiler::compileProgram(size_t at) {
  Options own = options;
  own.microBatches = micro.counts[at];
  if (!micro.dimension.empty())
    own.dims[micro.dimension] = micro.samples / micro.counts[at];
  isAgain = at != start;
  if (isAgain)
    follow(own, *programs[start]);
  std::string label =
      isSingle() ? "" : "m" + std::to_string(micro.counts[at]) + ".";
  programs[at] = std::make_unique<ModelCompiler>(context, own, label);
  int status = programs[at]->runUntil(
      options.stopAfter.empty() ? "schedule" : options.stopAfter);
  if (status != kSuccess) {
    if (!isSingle())
      llvm::errs() << llvm::formatv(
          "  note: with {0} micro-batches of {1} samples\n", micro.counts[at],
          micro.samples / micro.counts[at]);
    return status;
  }
  if (!micro.dimension.empty())
    (*programs[at]->module)
        ->setAttr(pipe::kBySampleAttr, UnitAttr::get(&context));
  return kSuccess;
}

/// Whether the loss is a mean over tokens, which does not depend on how a step
/// is cut.
static bool countsTokens(ModuleOp module) {
  auto model = module.lookupSymbol<func::FuncOp>("model");
  auto kind = model.getResultAttrOfType<StringAttr>(0, "nn.loss");
  return !kind || kind.getValue() != "mean";
}

/// The program to start with is planned freely, the others follow it.
int Compiler::compilePrograms() {
  programs.resize(micro.counts.size());
  if (int status = compileProgram(start))
    return status;
  if (!isSingle() && !countsTokens(*programs[start]->module))
    return reportError(kCompilerName,
                       "--micro-batches=MIN:MAX needs a loss that is the mean "
                       "cross-entropy of tokens; this model's is not "
                       "recognised as one, and its mean over micro-batches "
                       "would change with their number");
  for (size_t i = 0; i < programs.size(); ++i)
    if (i != start)
      if (int status = compileProgram(i))
        return status;
  isAgain = false;
  return kSuccess;
}

/// Puts the programs side by side into one module.
int Compiler::gatherPrograms() {
  gathered = std::make_unique<ModelCompiler>(context, options);
  OpBuilder builder(&context);
  gathered->module = ModuleOp::create(builder.getUnknownLoc(), "variants");
  kernels::ShareKernelsPassOptions share;
  for (auto [program, count] : llvm::zip_equal(programs, micro.counts)) {
    ModuleOp module = program->module.release();
    module.setSymName("m" + std::to_string(count));
    if (count == micro.counts[start])
      share.first = module.getSymName()->str();
    gathered->module->push_back(module);
  }
  if (!options.stopAfter.empty() && options.stopAfter != "emit")
    return kSuccess;
  int status = gathered->runPasses("variants", [&](OpPassManager &passes) {
    passes.addPass(kernels::createShareKernelsPass(share));
    passes.addPass(pipe::createCheckVariantsPass());
  });
  gathered->finishPhase("variants");
  return status;
}

int Compiler::writeIr(ModuleOp module) {
  if (options.output.empty() && !options.dumpIr.empty())
    return kSuccess;
  std::error_code code;
  llvm::ToolOutputFile file(options.output.empty() ? "-" : options.output, code,
                            llvm::sys::fs::OF_Text);
  if (code)
    return reportError(kCompilerName, "cannot write " + options.output + ": " +
                                          code.message());
  module.print(file.os());
  file.os().flush();
  if (std::error_code code = file.os().error()) {
    file.os().clear_error();
    return reportError(kCompilerName, "cannot write " +
                                          (options.output.empty()
                                               ? std::string("standard output")
                                               : options.output) +
                                          ": " + code.message());
  }
  file.keep();
  return kSuccess;
}

/// Makes cubins of the device code.
llvm::Error Compiler::embedCudaImages(ModuleOp module) {
  kernels::CudaImageOptions images;
  images.architectures = options.gpuArchs;
  images.toolkit = options.cudaToolkit;
  images.twins = options.emitTwins;
  if (options.saveTemps)
    images.keep = options.output;
  return kernels::embedImages(module.lookupSymbol<ModuleOp>("kernels"), images);
}

/// Writes tables and kernels as objects, and links them.
int Compiler::emit() {
  SmallString<256> modelPath(options.model);
  llvm::sys::fs::make_absolute(modelPath);
  llvm::sys::path::remove_dots(modelPath, /*remove_dot_dot=*/true);
  SmallVector<ModuleOp> modules;
  if (isSingle())
    modules.push_back(*programs[start]->module);
  else
    llvm::append_range(modules, gathered->module->getOps<ModuleOp>());
  std::vector<std::string> objects{options.output + ".tables.o"};
  for (ModuleOp module : modules)
    objects.push_back(options.output + ".kernels" +
                      (isSingle() ? "" : "." + module.getSymName()->str()) +
                      ".o");
  if (!options.saveTemps)
    for (const std::string &path : objects)
      llvm::sys::RemoveFileOnSignal(path);
  auto removeTemps = [&] {
    if (!options.saveTemps)
      for (const std::string &path : objects)
        llvm::sys::fs::remove(path);
  };

  llvm::LLVMContext llvmContext;
  auto data = buildTables(llvmContext, modules, start, modelPath);
  llvm::Error error = writeDataObject(*data, objects.front());
  if (!error && options.target == "cuda")
    error = embedCudaImages(modules.front());
  for (auto [i, module] : llvm::enumerate(modules))
    if (!error)
      error = mgq::kernels::writeObject(
          module.lookupSymbol<ModuleOp>("kernels"), objects[1 + i]);
  if (!error)
    error = linkExecutable(objects, options.target, options.output);
  removeTemps();
  return error ? reportError(kCompilerName, std::move(error)) : int(kSuccess);
}

int Compiler::run() {
  if (int status = findCounts())
    return status;
  if (int status = compilePrograms())
    return status;
  bool hasSchedule = options.stopAfter.empty() ||
                     options.stopAfter == "schedule" ||
                     options.stopAfter == "emit";
  if (hasSchedule)
    noteCompression();
  if (options.plan && hasSchedule) {
    std::vector<pipe::PlannedModel *> plans;
    for (const auto &program : programs)
      plans.push_back(&program->planned);
    llvm::Error error = reportPlan(options, plans, start);
    return error ? reportError(kCompilerName, std::move(error)) : int(kSuccess);
  }
  if (!isSingle())
    if (int status = gatherPrograms())
      return status;
  ModelCompiler &last = isSingle() ? *programs[start] : *gathered;
  if (!options.stopAfter.empty() && options.stopAfter != "emit")
    return writeIr(*last.module);
  if (int status = emit())
    return status;
  last.finishPhase("emit");
  return kSuccess;
}

/// Checks, before hours of work, that what will be written can be: OUT is not
/// the model, and its folder and the one for IR are there.
static int checkPlaces(const Options &options) {
  namespace fs = llvm::sys::fs;
  if (!options.dumpIr.empty())
    if (std::error_code code = fs::create_directories(options.dumpIr))
      return reportError(kCompilerName, "cannot make the folder " +
                                            options.dumpIr + ": " +
                                            code.message());
  if (options.output.empty())
    return kSuccess;
  bool same = false;
  if (!fs::equivalent(options.output, options.model, same) && same)
    return reportError(kCompilerName,
                       "cannot write " + options.output + ": it is the model");
  std::error_code code;
  bool isExecutable = options.stopAfter.empty() || options.stopAfter == "emit";
  bool isOther = false;
  if (isExecutable && !fs::is_other(options.output, isOther) && isOther)
    return reportError(kCompilerName, "cannot write " + options.output +
                                          ": it is there and no file");
  if (fs::is_directory(options.output)) {
    code = std::make_error_code(std::errc::is_a_directory);
  } else {
    StringRef folder = llvm::sys::path::parent_path(options.output);
    code = fs::access(folder.empty() ? "." : folder, fs::AccessMode::Write);
  }
  return code ? reportError(kCompilerName, "cannot write " + options.output +
                                               ": " + code.message())
              : int(kSuccess);
}

int mgq::compileMain(int argc, char **argv) {
  // A full disk comes back as an error, with a message, not as a signal.
  signal(SIGXFSZ, SIG_IGN);
  Options options;
  if (ExitStatus status = parseCommandLine(argc, argv, options))
    return status;
  DialectRegistry registry;
  registerDialects(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  context.printOpOnDiagnostic(false);
  // Passes that print IR must not run in parallel.
  if (!options.dumpIr.empty())
    context.disableMultithreading();
  if (int status = checkPlaces(options))
    return status;
  return Compiler(context, options).run();
}
