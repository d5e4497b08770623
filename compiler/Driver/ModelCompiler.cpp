//===- ModelCompiler.cpp - One model, from file to schedule ---------------===//

#include "compiler/Driver/ModelCompiler.h"

#include "compiler/Driver/CommandLine.h"
#include "compiler/Driver/Diagnostics.h"
#include "compiler/Driver/PlanReport.h"
#include "frontends/onnx/Import.h"

#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace mgq;

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

ModelCompiler::ModelCompiler(MLIRContext &context, const Options &given,
                             std::string label)
    : context(context), options(given), label(std::move(label)) {
  options.planned = &planned;
}

void ModelCompiler::finishPhase(StringRef name) {
  auto now = std::chrono::steady_clock::now();
  if (options.verbose) {
    auto [resident, most] = residentBytes();
    llvm::errs() << llvm::formatv(
        "{0,-14} {1,8:f3} s  {2,6} MB  peak {3,6} MB\n", label + name.str(),
        std::chrono::duration<double>(now - start).count(), resident / 1000000,
        most / 1000000);
  }
  start = now;
}

int ModelCompiler::importModel() {
  onnx::ImportOptions import;
  import.trainable = options.trainable;
  for (const auto &dim : options.dims)
    import.dims[dim.getKey()] = dim.getValue();
  module = onnx::importModel(&context, options.model, import);
  return module ? kSuccess : kFailure;
}

int ModelCompiler::runPasses(StringRef name,
                             llvm::function_ref<void(OpPassManager &)> build) {
  PassManager passes(&context, ModuleOp::getOperationName());
  build(passes);
  if (!options.dumpIr.empty()) {
    SmallString<256> folder(options.dumpIr);
    llvm::sys::path::append(folder, label + name);
    passes.enableIRPrintingToFileTree(
        /*shouldPrintBeforePass=*/nullptr,
        [](Pass *, Operation *) { return true; },
        /*printModuleScope=*/true, /*printAfterOnlyOnChange=*/true,
        /*printAfterOnlyOnFailure=*/false, folder,
        OpPrintingFlags().elideLargeElementsAttrs(64));
  }
  return succeeded(passes.run(*module)) ? kSuccess : kFailure;
}

int ModelCompiler::runPhase(const Phase &phase) {
  return runPasses(
      phase.name, [&](OpPassManager &passes) { phase.build(passes, options); });
}

/// Plans again what phase `partition` started from.
int ModelCompiler::planAgain() {
  module = unplanned->clone();
  for (const Phase &phase : allPhases())
    if (phase.name == "partition" || phase.name == "schedule")
      if (int status = runPhase(phase))
        return status;
  takeExactMemory(*module, planned);
  return kSuccess;
}

/// Plans again with `bytes` of each device held back; false, without a word,
/// if the planner finds nothing then.
FailureOr<bool> ModelCompiler::planLeaving(int64_t bytes) {
  options.reserveBytes = bytes;
  bool fits = true;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (!StringRef(diagnostic.str()).starts_with("no plan fits"))
      return failure(); // Others print it.
    fits = false;
    return success();
  });
  int status = planAgain();
  if (status && fits)
    return failure();
  return fits;
}

/// The planner estimates; the memory plan knows. Where a rank turns out not to
/// fit, plans again with as much held back: more until it fits; less where the
/// planner finds nothing any more.
int ModelCompiler::fitMemory() {
  constexpr int kAttempts = 10;
  takeExactMemory(*module, planned);
  // First what is kept from step to step goes.
  if (lackingBytes(planned) > 0 && options.overlap && options.runAhead &&
      planned.plan.replicas > 1) {
    options.runAhead = false;
    if (int status = planAgain())
      return status;
  }
  std::string lack = llvm::toString(memoryError(planned));
  int64_t tooLittle = 0, tooMuch = 0, given = options.reserveBytes;
  for (int i = 0; i < kAttempts && !lack.empty(); ++i) {
    int64_t held = (tooLittle + tooMuch) / 2;
    if (!tooMuch) {
      // More each time: another cut lacks something else.
      int64_t least = planned.plan.ranks.front().memoryBytes() / 64;
      held = tooLittle + std::max(lackingBytes(planned), least) * (i + 2) / 2;
    }
    FailureOr<bool> found = planLeaving(given + held);
    if (failed(found))
      return kFailure;
    if (!*found) {
      tooMuch = held;
      continue;
    }
    lack = llvm::toString(memoryError(planned));
    tooLittle = held;
  }
  unplanned = nullptr;
  if (lack.empty())
    return kSuccess;
  return reportError(kCompilerName, llvm::createStringError(lack));
}

int ModelCompiler::runUntil(StringRef last) {
  for (const Phase &phase : allPhases()) {
    if (phase.name == "emit")
      break;
    if (phase.name == "partition")
      unplanned = module->clone();
    if (int status = phase.build ? runPhase(phase) : importModel())
      return status;
    if (phase.name == "schedule")
      if (int status = fitMemory())
        return status;
    finishPhase(phase.name);
    if (phase.name == last)
      break;
  }
  return kSuccess;
}
