//===- Jit.cpp - Runs generated kernels in the test's process -------------===//

#include "test/kernels/Jit.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/ToolOutputFile.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/Transforms/Utils/Cloning.h"

#include <atomic>
#include <thread>

using namespace mlir;
using namespace mgq::test;

static std::atomic<int> threadCount{1};

static void parallelFor(void (*body)(void *, int64_t), void *context,
                        int64_t count) {
  std::atomic<int64_t> next{0};
  auto work = [&] {
    for (int64_t i; (i = next++) < count;)
      body(context, i);
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < threadCount; ++t)
    threads.emplace_back(work);
  work();
  for (std::thread &thread : threads)
    thread.join();
}

/// Returns the value or ends the program with the error's text.
template <typename T>
static T take(llvm::Expected<T> value) {
  if (!value)
    llvm::report_fatal_error(value.takeError());
  return std::move(*value);
}

static void lower(ModuleOp module) {
  PassManager pm(module.getContext());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(createConvertVectorToLLVMPass());
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createFinalizeMemRefToLLVMConversionPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  if (failed(pm.run(module)))
    llvm::report_fatal_error("lowering of kernels failed");
}

static void writeAssembly(llvm::Module &module, llvm::TargetMachine &machine,
                          StringRef path) {
  std::error_code error;
  llvm::ToolOutputFile file(path, error, llvm::sys::fs::OF_None);
  llvm::legacy::PassManager pm;
  if (error || machine.addPassesToEmitFile(pm, file.os(), nullptr,
                                           llvm::CodeGenFileType::AssemblyFile))
    llvm::report_fatal_error("cannot write assembly");
  std::unique_ptr<llvm::Module> copy = llvm::CloneModule(module);
  pm.run(*copy);
  file.keep();
}

namespace mgq::test {

std::unique_ptr<MLIRContext> makeContext() {
  DialectRegistry registry;
  registry
      .insert<arith::ArithDialect, cf::ControlFlowDialect, func::FuncDialect,
              LLVM::LLVMDialect, math::MathDialect, memref::MemRefDialect,
              scf::SCFDialect, vector::VectorDialect>();
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  auto context = std::make_unique<MLIRContext>(registry);
  context->loadAllAvailableDialects();
  return context;
}

bool canRun(StringRef cpu) {
  auto features = llvm::sys::getHostCPUFeatures();
  if (cpu.starts_with("x86-64-v4"))
    return (cpu == "x86-64-v4" || features["avx512bf16"]) &&
           features["avx512f"] && features["avx512vl"] &&
           features["avx512dq"] && features["avx512bw"];
  return features["avx2"] && features["fma"];
}

void Jit::setThreads(int threads) { threadCount = threads; }

Jit::Jit(ModuleOp module, StringRef cpu) {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  module.walk([](LLVM::LLVMFuncOp function) {
    function.setLinkage(LLVM::Linkage::External);
  });
  lower(module);
  auto llvmContext = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> llvmModule =
      translateModuleToLLVMIR(module, *llvmContext);
  if (!llvmModule)
    llvm::report_fatal_error("translation of kernels failed");
  bool isWide = cpu.starts_with("x86-64-v4"), hasUnits = cpu.ends_with("-bf16");
  StringRef level = isWide ? "x86-64-v4" : "x86-64-v3";
  for (llvm::Function &function : *llvmModule) {
    function.addFnAttr("target-cpu", level);
    if (hasUnits)
      function.addFnAttr("target-features", "+avx512bf16");
    function.addFnAttr("prefer-vector-width", isWide ? "512" : "256");
  }

  llvm::orc::JITTargetMachineBuilder target =
      take(llvm::orc::JITTargetMachineBuilder::detectHost());
  target.setCPU(level.str());
  target.getFeatures() = llvm::SubtargetFeatures(hasUnits ? "+avx512bf16" : "");
  target.setCodeGenOptLevel(llvm::CodeGenOptLevel::Aggressive);
  std::unique_ptr<llvm::TargetMachine> machine =
      take(target.createTargetMachine());
  llvmModule->setDataLayout(machine->createDataLayout());
  llvmModule->setTargetTriple(machine->getTargetTriple());

  llvm::PassBuilder builder(machine.get());
  llvm::LoopAnalysisManager lam;
  llvm::FunctionAnalysisManager fam;
  llvm::CGSCCAnalysisManager cgam;
  llvm::ModuleAnalysisManager mam;
  builder.registerModuleAnalyses(mam);
  builder.registerCGSCCAnalyses(cgam);
  builder.registerFunctionAnalyses(fam);
  builder.registerLoopAnalyses(lam);
  builder.crossRegisterProxies(lam, fam, cgam, mam);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O3)
      .run(*llvmModule, mam);
  if (const char *path = std::getenv("MGQ_TEST_ASM"))
    writeAssembly(*llvmModule, *machine, path);

  jit = take(
      llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(target).create());
  llvm::orc::SymbolMap symbols;
  symbols[jit->mangleAndIntern("mgq_parallel_for")] = {
      llvm::orc::ExecutorAddr::fromPtr(&parallelFor),
      llvm::JITSymbolFlags::Exported};
  llvm::cantFail(jit->getMainJITDylib().define(
      llvm::orc::absoluteSymbols(std::move(symbols))));
  jit->getMainJITDylib().addGenerator(
      take(llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(
          jit->getDataLayout().getGlobalPrefix())));
  llvm::cantFail(jit->addIRModule(llvm::orc::ThreadSafeModule(
      std::move(llvmModule), std::move(llvmContext))));
}

void *Jit::address(StringRef name) {
  return take(jit->lookup(name)).toPtr<void *>();
}

} // namespace mgq::test
