//===- Emit.cpp - Host IR becomes a shared library ------------------------===//

#include "test/device/twin/Convert.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Linker/Linker.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/IPO/Internalize.h"

using namespace llvm;
using namespace mgq::twin;

static constexpr const char *processor = "x86-64-v3";

Error mgq::twin::linkLeaves(Module &module, std::unique_ptr<Module> leaves) {
  leaves->setTargetTriple(module.getTargetTriple());
  leaves->setDataLayout(module.getDataLayout());
  if (Linker::linkModules(module, std::move(leaves), Linker::LinkOnlyNeeded))
    return createStringError("cannot link the leaves");
  std::string missing;
  for (Function &function : module) {
    StringRef name = function.getName();
    if (function.isDeclaration() && name.starts_with("twin_") &&
        !isCollective(name))
      missing += ("\n  " + name).str();
  }
  if (!missing.empty())
    return createStringError(
        "uses what has no twin (test/device/twin/Leaves.c and "
        "CollectiveLeaves.inc have all that do):" +
        missing);
  return Error::success();
}

static std::unique_ptr<TargetMachine> makeTarget(const Module &module) {
  InitializeNativeTarget();
  InitializeNativeTargetAsmPrinter();
  std::string error;
  const Target *target =
      TargetRegistry::lookupTarget(module.getTargetTriple(), error);
  if (!target)
    return nullptr;
  TargetOptions options;
  options.AllowFPOpFusion = FPOpFusion::Strict; // The IR says what is fused.
  return std::unique_ptr<TargetMachine>(target->createTargetMachine(
      module.getTargetTriple(), processor, "", options, Reloc::PIC_));
}

static void optimize(Module &module, TargetMachine &target) {
  internalizeModule(module, [](const GlobalValue &value) {
    return value.getName() == "mgq_twin_table";
  });
  for (Function &function : module)
    if (!function.isDeclaration()) {
      function.addFnAttr("target-cpu", processor);
      function.removeFnAttr("target-features");
    }
  LoopAnalysisManager loops;
  FunctionAnalysisManager functions;
  CGSCCAnalysisManager components;
  ModuleAnalysisManager modules;
  PassBuilder builder(&target);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  builder.buildPerModuleDefaultPipeline(OptimizationLevel::O2)
      .run(module, modules);
}

static Error emitObject(Module &module, TargetMachine &target, StringRef path) {
  std::error_code code;
  raw_fd_ostream stream(path, code);
  if (code)
    return createStringError(code, "cannot write " + path);
  legacy::PassManager passes;
  if (target.addPassesToEmitFile(passes, stream, nullptr,
                                 CodeGenFileType::ObjectFile))
    return createStringError("cannot emit objects for the host");
  passes.run(module);
  return Error::success();
}

/// Links with ld.lld, or else the system's C compiler.
static Error linkShared(StringRef object, StringRef path) {
  std::string error;
  SmallVector<StringRef> words;
  ErrorOr<std::string> linker = std::make_error_code(std::errc::not_supported);
  for (const char *name : {"ld.lld-22", "ld.lld", "cc"})
    if ((linker = sys::findProgramByName(name)))
      break;
  if (!linker)
    return createStringError("needs ld.lld-22 or cc in PATH");
  words = {*linker, "-shared", "-o", path, object};
  if (sys::ExecuteAndWait(*linker, words, std::nullopt, {}, 0, 0, &error) != 0)
    return createStringError("cannot link " + path + " " + error);
  return Error::success();
}

Error mgq::twin::writeSharedLibrary(Module &module, StringRef path) {
  std::unique_ptr<TargetMachine> target = makeTarget(module);
  if (!target)
    return createStringError("LLVM has no code generator for x86-64");
  std::string fault;
  raw_string_ostream stream(fault);
  if (verifyModule(module, &stream))
    return createStringError("the conversion made invalid IR: " + fault);
  optimize(module, *target);
  std::string object = (path + ".o").str(), unfinished = (path + ".tmp").str();
  if (Error error = emitObject(module, *target, object))
    return error;
  Error error = linkShared(object, unfinished);
  sys::fs::remove(object);
  if (error)
    return error;
  if (std::error_code code = sys::fs::rename(unfinished, path))
    return createStringError(code, "cannot write " + path);
  return Error::success();
}
