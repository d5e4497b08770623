//===- Link.cpp - From objects to an executable ---------------------------===//

#include "compiler/Driver/Link.h"

#include "llvm/IR/LegacyPassManager.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/Signals.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"

using namespace llvm;

/// An error with a message in formatv's style.
template <typename... Args>
static Error makeError(const char *format, const Args &...args) {
  return createStringError(formatv(format, args...).str());
}

Error mgq::writeDataObject(Module &module, StringRef path) {
  InitializeNativeTarget();
  InitializeNativeTargetAsmPrinter();
  Triple triple(sys::getDefaultTargetTriple());
  std::string message;
  const Target *target = TargetRegistry::lookupTarget(triple, message);
  if (!target)
    return makeError("no code generator for this machine: {0}", message);
  std::unique_ptr<TargetMachine> machine(target->createTargetMachine(
      triple, "generic", "", TargetOptions(), Reloc::PIC_));
  module.setTargetTriple(triple);
  module.setDataLayout(machine->createDataLayout());

  std::error_code code;
  raw_fd_ostream os(path, code);
  if (code)
    return makeError("cannot write {0}: {1}", path, code.message());
  legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, os, nullptr,
                                   CodeGenFileType::ObjectFile))
    return makeError("this machine's code generator writes no object files");
  passes.run(module);
  os.close();
  if (os.has_error()) {
    std::string text = os.error().message();
    os.clear_error();
    return makeError("cannot write {0}: {1}", path, text);
  }
  return Error::success();
}

std::string mgq::pluginFolder() {
  static int anchor;
  std::string tool = sys::fs::getMainExecutable("mgq-compile", &anchor);
  SmallString<256> path(sys::path::parent_path(tool));
  sys::path::append(path, "..", "lib");
  sys::path::remove_dots(path, /*remove_dot_dot=*/true);
  return path.str().str();
}

/// An archive of the runtime, beside the compiler that runs.
static Expected<std::string> findRuntime(StringRef name) {
  SmallString<256> path(mgq::pluginFolder());
  sys::path::append(path, name);
  if (!sys::fs::exists(path))
    return makeError("the runtime {0} is missing; {1}scripts/build.sh makes it",
                     path,
                     name.contains("cuda")
                         ? "scripts/setup.sh --cuda installs what it needs, "
                         : "");
  return path.str().str();
}

/// A compiler driver that links C++ programs.
static Expected<std::string> findLinker() {
  for (StringRef name : {"c++", "g++", "clang++-22", "clang++"})
    if (ErrorOr<std::string> path = sys::findProgramByName(name))
      return *path;
  return makeError("no linker: none of c++, g++, clang++-22, clang++ is in "
                   "PATH; install g++");
}

Error mgq::linkExecutable(ArrayRef<std::string> objects, StringRef target,
                          StringRef output) {
  std::vector<std::string> runtime;
  // What refers to the other comes first.
  for (StringRef name : {"libmgq_rt_cuda.a", "libmgq_rt.a"}) {
    if (name.contains("cuda") && target != "cuda")
      continue;
    Expected<std::string> path = findRuntime(name);
    if (!path)
      return path.takeError();
    runtime.push_back(std::move(*path));
  }
  Expected<std::string> linker = findLinker();
  if (!linker)
    return linker.takeError();

  std::string partial = (output + ".partial").str();
  sys::RemoveFileOnSignal(partial);
  SmallVector<StringRef> args{*linker, "-o", partial};
  llvm::append_range(args, objects);
  llvm::append_range(args, runtime);
  args.append({"-lpthread", "-ldl", "-lm"});

  SmallString<128> log;
  if (std::error_code code =
          sys::fs::createTemporaryFile("mgq-link", "log", log))
    return makeError("cannot make a temporary file: {0}", code.message());
  std::optional<StringRef> redirects[] = {StringRef(), StringRef(log),
                                          StringRef(log)};
  std::string message;
  int status = sys::ExecuteAndWait(*linker, args, /*Env=*/std::nullopt,
                                   redirects, 0, 0, &message);
  std::string text;
  if (auto buffer = MemoryBuffer::getFile(log))
    text = (*buffer)->getBuffer().take_front(2000).str();
  sys::fs::remove(log);
  if (status != 0) {
    sys::fs::remove(partial);
    return makeError("linking {0} failed: {1}{2}", output, message,
                     StringRef(text).rtrim());
  }
  if (std::error_code code = sys::fs::rename(partial, output)) {
    sys::fs::remove(partial);
    return makeError("cannot write {0}: {1}", output, code.message());
  }
  return Error::success();
}
