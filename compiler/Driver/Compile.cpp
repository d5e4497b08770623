//===- Compile.cpp - mgq-compile, as a function ---------------------------===//

#include "compiler/Driver/Compile.h"

#include "compiler/Driver/CommandLine.h"
#include "compiler/Driver/Diagnostics.h"
#include "compiler/Driver/Link.h"
#include "compiler/Driver/PlanReport.h"
#include "compiler/Driver/Tables.h"
#include "compiler/Pipelines/Phases.h"
#include "compiler/Pipelines/Registration.h"
#include "frontends/onnx/Import.h"
#include "passes/Kernels/Cuda/Images.h"
#include "passes/Kernels/Object.h"

#include "mlir/IR/AsmState.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Signals.h"
#include "llvm/Support/ToolOutputFile.h"
#include <chrono>
#include <csignal>

using namespace mlir;
using namespace mgq;

static constexpr llvm::StringLiteral kTool = "mgq-compile";

namespace {
/// Runs one model down the road, phase by phase.
class Compiler {
public:
  Compiler(MLIRContext &context, const Options &given)
      : context(context), options(given) {
    options.planned = &planned;
  }

  int run();

private:
  int importModel();
  int runPhase(const Phase &phase);
  int fitMemory();
  llvm::Error embedCudaImages();
  int emit();
  int writeIr();
  void finishPhase(llvm::StringRef name);

  MLIRContext &context;
  Options options;
  pipe::PlannedModel planned;
  OwningOpRef<ModuleOp> module;
  OwningOpRef<ModuleOp> unplanned; // before phase `partition`
  std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();
};
} // namespace

/// Resident bytes of this process: now, and the most so far; 0 if unknown.
static std::pair<int64_t, int64_t> residentBytes() {
  int64_t now = 0, most = 0;
  auto status = llvm::MemoryBuffer::getFileAsStream("/proc/self/status");
  if (!status)
    return {0, 0};
  SmallVector<StringRef> lines;
  (*status)->getBuffer().split(lines, '\n');
  for (StringRef line : lines) {
    auto [key, value] = line.split(':');
    int64_t kilobytes = 0;
    if (value.trim().consumeInteger(10, kilobytes))
      continue;
    if (key == "VmRSS")
      now = kilobytes * 1024;
    if (key == "VmHWM")
      most = kilobytes * 1024;
  }
  return {now, most};
}

void Compiler::finishPhase(llvm::StringRef name) {
  auto now = std::chrono::steady_clock::now();
  if (options.verbose) {
    auto [resident, most] = residentBytes();
    llvm::errs() << llvm::formatv(
        "{0,-14} {1,8:f3} s  {2,6} MB  peak {3,6} MB\n", name,
        std::chrono::duration<double>(now - start).count(), resident / 1000000,
        most / 1000000);
  }
  start = now;
}

int Compiler::importModel() {
  onnx::ImportOptions import;
  import.trainable = options.trainable;
  for (const auto &dim : options.dims)
    import.dims[dim.getKey()] = dim.getValue();
  module = onnx::importModel(&context, options.model, import);
  return module ? kSuccess : kFailure;
}

int Compiler::runPhase(const Phase &phase) {
  PassManager passes(&context, ModuleOp::getOperationName());
  phase.build(passes, options);
  if (!options.dumpIr.empty()) {
    SmallString<256> folder(options.dumpIr);
    llvm::sys::path::append(folder, phase.name);
    passes.enableIRPrintingToFileTree(
        /*shouldPrintBeforePass=*/nullptr,
        [](Pass *, Operation *) { return true; },
        /*printModuleScope=*/true, /*printAfterOnlyOnChange=*/true,
        /*printAfterOnlyOnFailure=*/false, folder,
        OpPrintingFlags().elideLargeElementsAttrs(64));
  }
  return succeeded(passes.run(*module)) ? kSuccess : kFailure;
}

int Compiler::writeIr() {
  if (options.output.empty() && !options.dumpIr.empty())
    return kSuccess;
  std::error_code code;
  llvm::ToolOutputFile file(options.output.empty() ? "-" : options.output, code,
                            llvm::sys::fs::OF_Text);
  if (code)
    return reportError(kTool, "cannot write " + options.output + ": " +
                                  code.message());
  module->print(file.os());
  file.os().flush();
  if (std::error_code code = file.os().error()) {
    file.os().clear_error();
    return reportError(kTool, "cannot write " +
                                  (options.output.empty()
                                       ? std::string("standard output")
                                       : options.output) +
                                  ": " + code.message());
  }
  file.keep();
  return kSuccess;
}

/// Makes cubins of the device code.
llvm::Error Compiler::embedCudaImages() {
  kernels::CudaImageOptions images;
  images.architectures = options.gpuArchs;
  images.toolkit = options.cudaToolkit;
  images.twins = options.emitTwins;
  if (options.saveTemps)
    images.keep = options.output;
  return kernels::embedImages(module->lookupSymbol<ModuleOp>("kernels"),
                              images);
}

/// Writes tables and kernels as objects, and links them.
int Compiler::emit() {
  SmallString<256> modelPath(options.model);
  llvm::sys::fs::make_absolute(modelPath);
  llvm::sys::path::remove_dots(modelPath, /*remove_dot_dot=*/true);
  std::string tables = options.output + ".tables.o",
              kernels = options.output + ".kernels.o";
  if (!options.saveTemps)
    for (const std::string &path : {tables, kernels})
      llvm::sys::RemoveFileOnSignal(path);
  auto removeTemps = [&] {
    if (options.saveTemps)
      return;
    llvm::sys::fs::remove(tables);
    llvm::sys::fs::remove(kernels);
  };

  if (options.target == "cuda")
    if (llvm::Error error = embedCudaImages())
      return reportError(kTool, std::move(error));
  llvm::LLVMContext llvmContext;
  auto data = buildTables(llvmContext, *module, modelPath);
  int status = kSuccess;
  if (llvm::Error error = writeDataObject(*data, tables))
    status = reportError(kTool, std::move(error));
  else if (llvm::Error error = mgq::kernels::writeObject(
               module->lookupSymbol<ModuleOp>("kernels"), kernels))
    status = reportError(kTool, std::move(error));
  else if (options.target == "cuda")
    status = reportError(kTool, "not supported yet: an executable of "
                                "--target=cuda; supported: --plan, "
                                "--stop-after=schedule");
  else if (llvm::Error error =
               linkExecutable({tables, kernels}, options.output))
    status = reportError(kTool, std::move(error));
  removeTemps();
  return status;
}

/// The planner estimates; the memory plan knows. Where a rank turns out not to
/// fit, plans again with as much held back.
int Compiler::fitMemory() {
  constexpr int kAttempts = 8;
  takeExactMemory(*module, planned);
  for (int i = 0; i < kAttempts && lackingBytes(planned) > 0; ++i) {
    // More each time: another cut lacks something else.
    int64_t least = planned.plan.ranks.front().memoryBytes() / 64;
    options.reserveBytes +=
        std::max(lackingBytes(planned), least) * (i + 2) / 2;
    module = unplanned->clone();
    for (const Phase &phase : allPhases())
      if (phase.name == "partition" || phase.name == "schedule")
        if (int status = runPhase(phase))
          return status;
    takeExactMemory(*module, planned);
  }
  unplanned = nullptr;
  llvm::Error error = memoryError(planned);
  return error ? reportError(kTool, std::move(error)) : int(kSuccess);
}

int Compiler::run() {
  for (const Phase &phase : allPhases()) {
    if (phase.name == "partition")
      unplanned = module->clone();
    int status = phase.build              ? runPhase(phase)
                 : phase.name == "import" ? importModel()
                                          : emit();
    if (status != kSuccess)
      return status;
    if (phase.name == "schedule")
      if (int status = fitMemory())
        return status;
    finishPhase(phase.name);
    if (phase.name == "schedule" && options.plan) {
      llvm::Error error = reportPlan(options, planned);
      return error ? reportError(kTool, std::move(error)) : int(kSuccess);
    }
    if (phase.name == options.stopAfter && phase.name != "emit")
      return writeIr();
  }
  return kSuccess;
}

/// Checks, before hours of work, that what will be written can be: OUT is not
/// the model, and its folder and the one for IR are there.
static int checkPlaces(const Options &options) {
  namespace fs = llvm::sys::fs;
  if (!options.dumpIr.empty())
    if (std::error_code code = fs::create_directories(options.dumpIr))
      return reportError(kTool, "cannot make the folder " + options.dumpIr +
                                    ": " + code.message());
  if (options.output.empty())
    return kSuccess;
  bool same = false;
  if (!fs::equivalent(options.output, options.model, same) && same)
    return reportError(kTool,
                       "cannot write " + options.output + ": it is the model");
  std::error_code code;
  if (fs::is_directory(options.output)) {
    code = std::make_error_code(std::errc::is_a_directory);
  } else {
    StringRef folder = llvm::sys::path::parent_path(options.output);
    code = fs::access(folder.empty() ? "." : folder, fs::AccessMode::Write);
  }
  return code ? reportError(kTool, "cannot write " + options.output + ": " +
                                       code.message())
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
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    printDiagnostic(kTool, options.model, diagnostic);
    return success();
  });
  if (int status = checkPlaces(options))
    return status;
  return Compiler(context, options).run();
}
