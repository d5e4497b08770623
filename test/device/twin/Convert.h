//===- Convert.h - Device code becomes host code ----------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_TWIN_CONVERT_H
#define MGQ_TEST_DEVICE_TWIN_CONVERT_H

#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/Error.h"
#include <memory>
#include <string>
#include <vector>

namespace mgq::twin {

/// What is known of a kernel before its module is rewritten.
struct Kernel {
  llvm::Function *function;
  std::string name;
  std::vector<int32_t> maxThreads;   ///< nvvm.maxntid, or empty.
  std::vector<int32_t> exactThreads; ///< nvvm.reqntid, or empty.
  int64_t sharedBytes = 0;           ///< Its static shared variables.
};

/// What the table of a twin says.
struct Facts {
  std::vector<Kernel> kernels;
};

/// Barriers of a device module, kernel by kernel.
std::vector<llvm::CallInst *> findBarriers(llvm::Module &module);

/// Turns a module for NVPTX into one for x86-64. Address spaces stay: x86 code
/// treats those of NVPTX as flat. Attributes and metadata go, for many are
/// false on the host; intrinsics and inline assembly become calls of leaves;
/// shared variables become offsets into the running block's memory, aligned as
/// declared and no better, so that too little alignment shows.
llvm::Expected<Facts> convertToHost(llvm::Module &module);

/// Whether the leaf `name` is a function of libcuda.so.1, which gets the number
/// of the call as a last argument: duplicates that optimisation makes of a call
/// stay the same barrier.
bool isCollective(llvm::StringRef name);

/// Calls mgq_twin_access before loads, stores, atomics and memory intrinsics,
/// and lowers their alignment to one byte: a wrong claim is reported, and does
/// not crash.
void instrument(llvm::Module &module);

/// The IR keeps alignment claims; without checks they must not crash either.
void dropAlignment(llvm::Module &module);

/// Adds `mgq_twin_table` and what it points at.
void addTable(llvm::Module &module, const Facts &facts, bool checked);

/// Links Leaves.c's bitcode. Fails for calls that no leaf answers, and names
/// them.
llvm::Error linkLeaves(llvm::Module &module,
                       std::unique_ptr<llvm::Module> leaves);

/// Optimises the module for x86-64-v3 and writes a shared library.
llvm::Error writeSharedLibrary(llvm::Module &module, llvm::StringRef path);

} // namespace mgq::twin

#endif // MGQ_TEST_DEVICE_TWIN_CONVERT_H
