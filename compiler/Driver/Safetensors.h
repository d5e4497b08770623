//===- Safetensors.h - Tensors in files, for mgq-run ----------------------===//
#ifndef MGQ_COMPILER_DRIVER_SAFETENSORS_H
#define MGQ_COMPILER_DRIVER_SAFETENSORS_H

#include "mlir/IR/BuiltinTypes.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/MemoryBuffer.h"
#include <map>

namespace mgq {

/// A tensor of a file: its type and its bytes, dense and row-major.
struct FileTensor {
  mlir::RankedTensorType type;
  llvm::ArrayRef<char> bytes;
};

/// A safetensors file that stays mapped.
struct SafetensorsFile {
  std::unique_ptr<llvm::MemoryBuffer> buffer;
  std::map<std::string, FileTensor> tensors;
};

/// Opens and checks a file; the error names it and what is wrong.
llvm::Expected<SafetensorsFile> readSafetensors(mlir::MLIRContext *context,
                                                llvm::StringRef path);

/// Writes tensors under a temporary name, then renames.
llvm::Error writeSafetensors(llvm::StringRef path,
                             const std::map<std::string, FileTensor> &tensors);

/// Bytes of a tensor in memory and in files (a boolean takes one).
int64_t tensorBytes(mlir::RankedTensorType type);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_SAFETENSORS_H
