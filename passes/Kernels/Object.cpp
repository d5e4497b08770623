//===- Object.cpp - Machine code of kernels -------------------------------===//

#include "passes/Kernels/Object.h"
#include "passes/Kernels/Target.h"

#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/ToolOutputFile.h"

#include <mutex>

using namespace mgq::kernels;

/// -O3 with loop and SLP vectorisation, knowing the machine.
static void optimize(llvm::Module &module, llvm::TargetMachine &machine) {
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = true;
  tuning.SLPVectorization = true;
  tuning.LoopInterleaving = true;
  llvm::PassBuilder builder(&machine, tuning);
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graph;
  llvm::ModuleAnalysisManager modules;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graph);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graph, modules);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O3)
      .run(module, modules);
}

llvm::Expected<llvm::SmallVector<char, 0>>
mgq::kernels::emitObject(mlir::ModuleOp kernels) {
  auto cpu = kernels->getAttrOfType<mlir::StringAttr>(kCpuAttr);
  auto target = resolveCpu(cpu ? cpu.getValue() : "native");
  if (!target)
    return target.takeError();
  auto machine = createTargetMachine(*target);
  if (!machine)
    return machine.takeError();
  mlir::registerBuiltinDialectTranslation(*kernels.getContext());
  mlir::registerLLVMDialectTranslation(*kernels.getContext());
  llvm::LLVMContext context;
  auto module = mlir::translateModuleToLLVMIR(kernels, context, "kernels");
  if (!module)
    return llvm::createStringError("the kernels do not translate to LLVM IR");
  module->setTargetTriple((*machine)->getTargetTriple());
  module->setDataLayout((*machine)->createDataLayout());
  optimize(*module, **machine);

  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager emitter;
  if ((*machine)->addPassesToEmitFile(emitter, stream, nullptr,
                                      llvm::CodeGenFileType::ObjectFile))
    return llvm::createStringError("LLVM cannot emit an object file");
  emitter.run(*module);
  return bytes;
}

llvm::Error mgq::kernels::writeObject(mlir::ModuleOp kernels,
                                      llvm::StringRef path) {
  auto bytes = emitObject(kernels);
  if (!bytes)
    return bytes.takeError();
  std::error_code code;
  llvm::ToolOutputFile file(path, code, llvm::sys::fs::OF_None);
  if (code)
    return llvm::createStringError("cannot write " + path + ": " +
                                   code.message());
  file.os().write(bytes->data(), bytes->size());
  file.os().flush();
  if (std::error_code fault = file.os().error()) {
    file.os().clear_error(); // a stream that dies with its error aborts
    return llvm::createStringError("cannot write " + path + ": " +
                                   fault.message());
  }
  file.keep();
  return llvm::Error::success();
}

//===----------------------------------------------------------------------===//
// In this process
//===----------------------------------------------------------------------===//

static std::mutex errorsMutex;
static std::vector<std::string> errors;

static void parallelFor(void (*body)(void *, int64_t), void *context,
                        int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    body(context, i);
}

static void indexError(const char *what, int64_t index, int64_t size) {
  std::lock_guard<std::mutex> lock(errorsMutex);
  errors.push_back(std::string(what) + ": index " + std::to_string(index) +
                   " outside [0, " + std::to_string(size) + ")");
}

std::vector<std::string> KernelJit::takeIndexErrors() {
  std::lock_guard<std::mutex> lock(errorsMutex);
  return std::exchange(errors, {});
}

KernelJit::KernelJit(std::unique_ptr<llvm::orc::LLJIT> jit)
    : jit(std::move(jit)) {}
KernelJit::~KernelJit() = default;

llvm::Expected<std::unique_ptr<KernelJit>>
KernelJit::create(mlir::ModuleOp kernels, std::optional<KernelHooks> hooks) {
  auto bytes = emitObject(kernels);
  if (!bytes)
    return bytes.takeError();
  auto jit = llvm::orc::LLJITBuilder().create();
  if (!jit)
    return jit.takeError();
  llvm::orc::JITDylib &library = (*jit)->getMainJITDylib();
  auto process = llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(
      (*jit)->getDataLayout().getGlobalPrefix());
  if (!process)
    return process.takeError();
  library.addGenerator(std::move(*process));
  llvm::orc::SymbolMap symbols;
  auto add = [&](const char *name, auto *address) {
    symbols[(*jit)->mangleAndIntern(name)] = {
        llvm::orc::ExecutorAddr::fromPtr(address),
        llvm::JITSymbolFlags::Exported};
  };
  KernelHooks own{&parallelFor, &indexError};
  add("mgq_parallel_for", hooks.value_or(own).parallelFor);
  add("mgq_index_error", hooks.value_or(own).indexError);
  if (llvm::Error error =
          library.define(llvm::orc::absoluteSymbols(std::move(symbols))))
    return error;
  auto buffer = llvm::MemoryBuffer::getMemBufferCopy(
      llvm::StringRef(bytes->data(), bytes->size()), "kernels");
  if (llvm::Error error = (*jit)->addObjectFile(std::move(buffer)))
    return error;
  return std::unique_ptr<KernelJit>(new KernelJit(std::move(*jit)));
}

llvm::Expected<void *> KernelJit::lookupAddress(llvm::StringRef name) {
  auto address = jit->lookup(name);
  if (!address)
    return address.takeError();
  return address->toPtr<void *>();
}

llvm::Expected<KernelFn> KernelJit::lookup(llvm::StringRef name) {
  auto address = lookupAddress(name);
  if (!address)
    return address.takeError();
  return reinterpret_cast<KernelFn>(*address);
}
