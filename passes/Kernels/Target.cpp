//===- Target.cpp - The CPU code is made for ------------------------------===//

#include "passes/Kernels/Target.h"

#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/TargetParser/Host.h"

using namespace mgq::kernels;

static CpuTarget levelTarget(llvm::StringRef family) {
  bool wide = family.starts_with("x86-64-v4");
  CpuTarget target;
  target.family = family.str();
  target.cpu = wide ? "x86-64-v4" : "x86-64-v3";
  target.features = family == "x86-64-v4-bf16" ? "+avx512bf16" : "";
  target.vectorBits = wide ? 512 : 256;
  return target;
}

static llvm::Expected<CpuTarget> nativeTarget() {
  llvm::StringMap<bool> host = llvm::sys::getHostCPUFeatures();
  auto has = [&](std::initializer_list<const char *> names) {
    return llvm::all_of(names,
                        [&](const char *name) { return host.lookup(name); });
  };
  if (!has({"avx2", "fma", "bmi2", "f16c"}))
    return llvm::createStringError(
        "this machine's CPU has no AVX2 and FMA; choose --cpu for the machine "
        "that runs the program");
  bool wide = has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"});
  CpuTarget target = levelTarget(!wide                 ? "x86-64-v3"
                                 : has({"avx512bf16"}) ? "x86-64-v4-bf16"
                                                       : "x86-64-v4");
  target.cpu = llvm::sys::getHostCPUName().str();
  std::vector<std::string> features;
  for (const auto &feature : host)
    features.push_back((feature.second ? "+" : "-") + feature.first().str());
  llvm::sort(features);
  target.features = llvm::join(features, ",");
  return target;
}

llvm::Expected<CpuTarget> mgq::kernels::resolveCpu(llvm::StringRef name) {
  if (name == "native")
    return nativeTarget();
  if (name == "x86-64-v3" || name == "x86-64-v4" || name == "x86-64-v4-bf16")
    return levelTarget(name);
  return llvm::createStringError(
      "unknown CPU '" + name +
      "'; supported: native, x86-64-v3, x86-64-v4, x86-64-v4-bf16");
}

llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
mgq::kernels::createTargetMachine(const CpuTarget &target) {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  llvm::Triple triple("x86_64-unknown-linux-gnu");
  std::string message;
  const llvm::Target *llvmTarget =
      llvm::TargetRegistry::lookupTarget(triple, message);
  if (!llvmTarget)
    return llvm::createStringError(message);
  std::unique_ptr<llvm::TargetMachine> machine(llvmTarget->createTargetMachine(
      triple, target.cpu, target.features, llvm::TargetOptions(),
      llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Aggressive));
  if (!machine)
    return llvm::createStringError("LLVM has no machine for " + target.cpu);
  return machine;
}
