//===- mgq-twin.cpp - Makes host twins of device code ---------------------===//
//
//   mgq-twin [--unchecked] DIR|FILE.bc...
//   mgq-twin --list-barriers FILE.bc
//   mgq-twin --omit-barrier=N FILE.bc
//
// Each FILE.bc, or DIR/*.bc, which mgq-compile --emit-twins wrote, becomes a
// shared library FILE.so beside it. One that is there and newer is kept; one of
// a link is a link. The other forms are for tests of the checks: each barrier
// has a number.
//
//===----------------------------------------------------------------------===//

#include "test/device/twin/Convert.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/WithColor.h"
#include "llvm/Support/raw_ostream.h"
#include <filesystem>

using namespace llvm;
using namespace mgq::twin;

static cl::OptionCategory category("Options");
static cl::list<std::string> inputs(cl::Positional, cl::OneOrMore,
                                    cl::desc("DIR|FILE.bc..."),
                                    cl::cat(category));
static cl::opt<bool>
    unchecked("unchecked", cl::cat(category),
              cl::desc("without checks of memory accesses: faster code"));
static cl::opt<bool>
    listBarriers("list-barriers", cl::cat(category),
                 cl::desc("print the function of each barrier, no more"));
static cl::opt<int>
    omitBarrier("omit-barrier", cl::init(-1), cl::cat(category),
                cl::desc("leave out a barrier, by its place in that list"));
static cl::opt<std::string>
    leavesFile("leaves", cl::cat(category),
               cl::desc("bitcode of Leaves.c, default: beside this program"));

/// DIR/*.bc for a folder, else the file itself.
static Error expandInput(StringRef input, std::vector<std::string> &files) {
  if (!sys::fs::is_directory(input)) {
    files.push_back(input.str());
    return Error::success();
  }
  std::error_code code;
  for (sys::fs::directory_iterator it(input, code), end; it != end && !code;
       it.increment(code))
    if (sys::path::extension(it->path()) == ".bc")
      files.push_back(it->path());
  return code ? createStringError(code, "cannot read " + input)
              : Error::success();
}

static bool isNewer(StringRef file, StringRef than) {
  sys::fs::file_status left, right;
  return !sys::fs::status(file, left) && !sys::fs::status(than, right) &&
         left.getLastModificationTime() > right.getLastModificationTime();
}

static Expected<std::unique_ptr<Module>> readModule(StringRef path,
                                                    LLVMContext &context) {
  SMDiagnostic diagnostic;
  std::unique_ptr<Module> module = parseIRFile(path, diagnostic, context);
  if (!module)
    return createStringError(diagnostic.getMessage());
  return std::move(module);
}

/// Of a link to other bitcode: a link to that one's library.
static Error linkTwin(StringRef input, StringRef output) {
  std::error_code code;
  std::filesystem::path target =
      std::filesystem::read_symlink(input.str(), code);
  if (code)
    return createStringError(code, "cannot read the link");
  sys::fs::remove(output);
  code = sys::fs::create_link(target.replace_extension("so").string(), output);
  if (code)
    return createStringError(code, "cannot make the link " + output);
  return Error::success();
}

static Error makeTwin(StringRef input, StringRef output, StringRef leavesPath) {
  LLVMContext context;
  Expected<std::unique_ptr<Module>> module = readModule(input, context);
  if (!module)
    return module.takeError();
  if (listBarriers || omitBarrier >= 0) {
    std::vector<CallInst *> barriers = findBarriers(**module);
    if (listBarriers) {
      for (CallInst *barrier : barriers)
        outs() << barrier->getFunction()->getName() << "\n";
      return Error::success();
    }
    if (omitBarrier >= int(barriers.size()))
      return createStringError("has " + Twine(barriers.size()) + " barriers");
    barriers[omitBarrier]->eraseFromParent();
  }
  Expected<Facts> facts = convertToHost(**module);
  if (!facts)
    return facts.takeError();
  if (!unchecked)
    instrument(**module);
  dropAlignment(**module);
  addTable(**module, *facts, !unchecked);
  Expected<std::unique_ptr<Module>> leaves = readModule(leavesPath, context);
  if (!leaves)
    return leaves.takeError();
  if (Error error = linkLeaves(**module, std::move(*leaves)))
    return error;
  return writeSharedLibrary(**module, output);
}

static std::string defaultLeaves(const char *program) {
  static int anchor;
  SmallString<256> path(sys::fs::getMainExecutable(program, &anchor));
  sys::path::remove_filename(path);
  sys::path::append(path, "..", "lib", "mgq-twin-leaves.bc");
  return path.str().str();
}

int main(int argc, char **argv) {
  cl::HideUnrelatedOptions(category);
  cl::ParseCommandLineOptions(argc, argv, "Makes host twins of device code\n");
  std::string program = sys::fs::getMainExecutable(argv[0], (void *)&main);
  std::string leaves =
      leavesFile.empty() ? defaultLeaves(argv[0]) : leavesFile.getValue();
  std::vector<std::string> files;
  for (const std::string &input : inputs)
    if (Error error = expandInput(input, files)) {
      WithColor::error(errs(), "mgq-twin")
          << toString(std::move(error)) << "\n";
      return 1;
    }
  int status = 0;
  for (const std::string &file : files) {
    SmallString<256> output(file);
    sys::path::replace_extension(output, "so");
    bool makes = !listBarriers && omitBarrier < 0;
    if (makes && isNewer(output, file) && isNewer(output, program) &&
        isNewer(output, leaves))
      continue;
    bool links = makes && sys::fs::is_symlink_file(file);
    if (Error error =
            links ? linkTwin(file, output) : makeTwin(file, output, leaves)) {
      WithColor::error(errs(), "mgq-twin")
          << file << ": " << toString(std::move(error)) << "\n";
      status = 1;
    }
  }
  return status;
}
