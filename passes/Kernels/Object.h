//===- Object.h - Machine code of kernels ---------------------------------===//
#ifndef MGQ_PASSES_KERNELS_OBJECT_H
#define MGQ_PASSES_KERNELS_OBJECT_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Error.h"

#include <memory>
#include <optional>

namespace llvm::orc {
class LLJIT;
}

namespace mgq::kernels {

/// Object file bytes of a module of LLVM dialect functions, optimised for the
/// CPU it was lowered for (`kern.cpu`).
llvm::Expected<llvm::SmallVector<char, 0>> emitObject(mlir::ModuleOp kernels);

/// Writes them to a file.
llvm::Error writeObject(mlir::ModuleOp kernels, llvm::StringRef path);

/// A kernel in this process (runtime/include/rt.h, mgq_kernel).
using KernelFn = void (*)(void *const *args, void *scratch);

/// What kernels call (runtime/include/rt.h).
struct KernelHooks {
  void (*parallelFor)(void (*body)(void *, int64_t), void *context,
                      int64_t count);
  void (*indexError)(const char *what, int64_t index, int64_t size);
};

/// Kernels compiled into this process. Without hooks they run on the calling
/// thread, and index errors are collected.
class KernelJit {
public:
  static llvm::Expected<std::unique_ptr<KernelJit>>
  create(mlir::ModuleOp kernels, std::optional<KernelHooks> hooks = {});
  ~KernelJit();

  llvm::Expected<KernelFn> lookup(llvm::StringRef name);
  llvm::Expected<void *> lookupAddress(llvm::StringRef name);

  /// "what: index 7 outside [0, 5)" of each report since the last call.
  static std::vector<std::string> takeIndexErrors();

private:
  explicit KernelJit(std::unique_ptr<llvm::orc::LLJIT> jit);
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_OBJECT_H
