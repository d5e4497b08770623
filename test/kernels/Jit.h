//===- Jit.h - Runs generated kernels in the test's process ---------------===//
#ifndef MGQ_TEST_KERNELS_JIT_H
#define MGQ_TEST_KERNELS_JIT_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"

#include <memory>
#include <string>

namespace mgq::test {

/// Makes a context with the dialects kernels are written in.
std::unique_ptr<mlir::MLIRContext> makeContext();

/// Whether this machine runs code for `cpu` (x86-64-v3 or x86-64-v4).
bool canRun(llvm::StringRef cpu);

/// Machine code of a module of kernels. Calls of mgq_parallel_for go to a plain
/// implementation on setThreads() threads.
class Jit {
public:
  /// Lowers `module`, whose functions all become visible. Exits with a message
  /// on failure. Writes assembly to $MGQ_TEST_ASM if that is set.
  Jit(mlir::ModuleOp module, llvm::StringRef cpu);

  template <typename Function>
  Function *find(llvm::StringRef name) {
    return reinterpret_cast<Function *>(address(name));
  }

  static void setThreads(int threads);

private:
  void *address(llvm::StringRef name);
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

} // namespace mgq::test

#endif // MGQ_TEST_KERNELS_JIT_H
