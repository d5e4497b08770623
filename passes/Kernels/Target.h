//===- Target.h - The CPU code is made for --------------------------------===//
#ifndef MGQ_PASSES_KERNELS_TARGET_H
#define MGQ_PASSES_KERNELS_TARGET_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include "llvm/Target/TargetMachine.h"

#include <memory>
#include <string>

namespace mgq::kernels {

/// A CPU in LLVM's terms.
struct CpuTarget {
  std::string family;   ///< x86-64-v3, x86-64-v4 or x86-64-v4-bf16
  std::string cpu;      ///< target-cpu
  std::string features; ///< target-features, "+a,-b"
  unsigned vectorBits;  ///< prefer-vector-width
};

/// Reads a value of --cpu; `native` looks at the machine.
llvm::Expected<CpuTarget> resolveCpu(llvm::StringRef name);

/// A machine for x86-64 Linux with this CPU, position-independent code.
llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
createTargetMachine(const CpuTarget &target);

/// On the module of kernels: the value of --cpu it was lowered for.
inline constexpr llvm::StringLiteral kCpuAttr = "kern.cpu";

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_TARGET_H
