//===- Link.h - From objects to an executable -----------------------------===//
#ifndef MGQ_COMPILER_DRIVER_LINK_H
#define MGQ_COMPILER_DRIVER_LINK_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/Error.h"

namespace mgq {

/// Writes a module of data as an object file of the host's format.
llvm::Error writeDataObject(llvm::Module &module, llvm::StringRef path);

/// Links objects and the runtime to the executable `output`, which appears
/// under its name only when it is complete. The runtime's archives are found
/// beside the compiler (../lib/libmgq_rt.a, and for `target` cuda
/// libmgq_rt_cuda.a); the system's C++ compiler driver does the linking.
llvm::Error linkExecutable(llvm::ArrayRef<std::string> objects,
                           llvm::StringRef target, llvm::StringRef output);

/// Folder of the runtime's archive and of its transport plugins.
std::string pluginFolder();

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_LINK_H
