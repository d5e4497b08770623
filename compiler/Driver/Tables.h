//===- Tables.h - A program as constant tables ----------------------------===//
#ifndef MGQ_COMPILER_DRIVER_TABLES_H
#define MGQ_COMPILER_DRIVER_TABLES_H

#include "dialects/Pipe/Pipe.h"
#include "runtime/include/rt.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/IR/Module.h"

namespace mgq {

/// The runtime's code of an element type.
mgq_type typeCode(mlir::Type type);

/// Builds the constant `mgq_program_table` of runtime/include/rt.h for the
/// ranks of a module: an LLVM module of data only, which refers to the kernels
/// by name. Of several `programs` it is the one at `start`, which lists them.
/// `modelPath` is where the model (and with it the weights) was found.
std::unique_ptr<llvm::Module>
buildTables(llvm::LLVMContext &context, llvm::ArrayRef<mlir::ModuleOp> programs,
            size_t start, llvm::StringRef modelPath);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_TABLES_H
