//===- Images.cpp - Cubins of device code ---------------------------------===//
//
// One after the other, LLVM makes PTX of the device code for each architecture,
// while ptxas, a process per architecture, assembles those that are done. The
// optimised LLVM module that the PTX comes from is what host twins are made of.
//
// The newest architecture's PTX is kept too: the driver compiles it for GPUs
// that came later.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Images.h"
#include "passes/Kernels/Cuda/ImageTable.h"
#include "passes/Kernels/Cuda/Passes.h"
#include "passes/Kernels/Cuda/Toolkit.h"
#include "runtime/include/rt.h"

#include "mlir/Target/LLVM/NVVM/Target.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/GPU/GPUToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"

using namespace mlir;
using namespace mgq::kernels;

/// The version of PTX that has an architecture, as LLVM names it; empty: not
/// known.
static StringRef ptxOf(StringRef architecture) {
  return llvm::StringSwitch<StringRef>(architecture)
      .Cases({"sm_80", "sm_86", "sm_87", "sm_89", "sm_90"}, "+ptx80")
      .Case("sm_100", "+ptx86")
      .Case("sm_120", "+ptx87")
      .Cases({"sm_103", "sm_121"}, "+ptx88")
      .Cases({"sm_88", "sm_110"}, "+ptx90")
      .Default("");
}

bool mgq::kernels::isCudaArchitecture(StringRef name) {
  return !ptxOf(name).empty();
}

static llvm::Error writeFile(const llvm::Twine &path, StringRef bytes) {
  std::error_code code;
  llvm::raw_fd_ostream file(path.str(), code);
  if (!code) {
    file << bytes;
    file.close();
    code = file.error();
    file.clear_error();
  }
  if (code)
    return llvm::createStringError("cannot write " + path + ": " +
                                   code.message());
  return llvm::Error::success();
}

static llvm::Expected<std::string> readFile(StringRef path) {
  auto buffer = llvm::MemoryBuffer::getFile(path);
  if (!buffer)
    return llvm::createStringError("cannot read " + path + ": " +
                                   buffer.getError().message());
  return (*buffer)->getBuffer().str();
}

/// Where the bitcode of an image is left.
static std::string twinPath(const CudaImageOptions &options, StringRef image) {
  uint64_t hash = mgq_hash(MGQ_HASH_START, image.data(), image.size());
  SmallString<256> path(options.twins);
  llvm::sys::path::append(
      path, llvm::utohexstr(hash, /*LowerCase=*/true, /*Width=*/16) + ".bc");
  return std::string(path);
}

namespace {
/// A file that is gone when this is, unless it is kept.
class TempFile {
public:
  TempFile() = default;
  TempFile(const TempFile &) = delete;
  ~TempFile() {
    if (!path.empty() && !kept)
      llvm::sys::fs::remove(path);
  }
  /// `keep`: the name without suffix under which it stays; empty: none.
  llvm::Error create(StringRef keep, StringRef suffix) {
    if (!keep.empty()) {
      path = (keep + "." + suffix).str();
      kept = true;
      return llvm::Error::success();
    }
    SmallString<128> name;
    if (std::error_code code =
            llvm::sys::fs::createTemporaryFile("mgq", suffix, name))
      return llvm::createStringError("cannot make a temporary file: " +
                                     code.message());
    path = std::string(name);
    return llvm::Error::success();
  }
  std::string path;

private:
  bool kept = false;
};

/// One architecture on its way from PTX to cubin.
class Assembly {
public:
  explicit Assembly(StringRef architecture) : architecture(architecture) {}
  llvm::Error translate(gpu::GPUModuleOp device,
                        const CudaImageOptions &options,
                        const CudaToolkit &toolkit);
  llvm::Error start(const CudaToolkit &toolkit);
  llvm::Error finish(const CudaImageOptions &options);
  /// 80: sm_80.
  int number() const {
    int number = 0;
    StringRef(architecture).drop_front(3).getAsInteger(10, number);
    return number;
  }
  CudaImage takeImage() { return {number(), std::move(cubin)}; }
  CudaImage takePtx() { return {number(), std::move(ptx), /*isPtx=*/true}; }
  /// The PTX has the same twin.
  llvm::Error linkTwin(const CudaImageOptions &options);

private:
  std::string architecture, bitcode, ptx, cubin;
  TempFile ptxFile, cubinFile, report;
  llvm::sys::ProcessInfo process;
};
} // namespace

llvm::Error Assembly::translate(gpu::GPUModuleOp device,
                                const CudaImageOptions &options,
                                const CudaToolkit &toolkit) {
  MLIRContext *context = device.getContext();
  auto target =
      NVVM::NVVMTargetAttr::get(context, /*optLevel=*/3, "nvptx64-nvidia-cuda",
                                architecture, ptxOf(architecture));
  auto grab = [&](llvm::Module &module) {
    llvm::raw_string_ostream stream(bitcode);
    llvm::WriteBitcodeToFile(module, stream);
  };
  gpu::TargetOptions translation(
      toolkit.folder, {}, "", "", gpu::CompilationTarget::Assembly, {}, {}, {},
      options.twins.empty() ? llvm::function_ref<void(llvm::Module &)>()
                            : grab);
  auto text = cast<gpu::TargetAttrInterface>(Attribute(target))
                  .serializeToObject(device, translation);
  if (!text)
    return llvm::createStringError("the device code has no PTX for " +
                                   architecture);
  ptx = StringRef(text->data(), text->size()).rtrim('\0').str();
  std::string keep =
      options.keep.empty() ? std::string() : options.keep + "." + architecture;
  if (llvm::Error error = ptxFile.create(keep, "ptx"))
    return error;
  if (llvm::Error error = cubinFile.create("", "cubin"))
    return error;
  if (llvm::Error error = report.create(keep, "ptxas.txt"))
    return error;
  return writeFile(ptxFile.path, ptx);
}

llvm::Error Assembly::start(const CudaToolkit &toolkit) {
  std::string arch = "-arch=" + architecture;
  StringRef arguments[] = {toolkit.ptxas, "-v", "-O3",         arch,
                           ptxFile.path,  "-o", cubinFile.path};
  std::optional<StringRef> redirects[] = {StringRef(""), StringRef(report.path),
                                          StringRef(report.path)};
  std::string message;
  bool failed = false;
  process = llvm::sys::ExecuteNoWait(toolkit.ptxas, arguments, std::nullopt,
                                     redirects, 0, &message, &failed);
  if (failed)
    return llvm::createStringError("cannot run " + toolkit.ptxas + ": " +
                                   message);
  return llvm::Error::success();
}

llvm::Error Assembly::finish(const CudaImageOptions &options) {
  std::string message;
  auto ended = llvm::sys::Wait(process, std::nullopt, &message);
  if (ended.ReturnCode != 0) {
    auto text = readFile(report.path);
    if (text)
      message = *text;
    else
      llvm::consumeError(text.takeError());
    return llvm::createStringError("ptxas refuses the code for " +
                                   architecture + ": " + message);
  }
  auto bytes = readFile(cubinFile.path);
  if (!bytes)
    return bytes.takeError();
  cubin = std::move(*bytes);
  if (options.twins.empty())
    return llvm::Error::success();
  return writeFile(twinPath(options, cubin), bitcode);
}

llvm::Error Assembly::linkTwin(const CudaImageOptions &options) {
  if (options.twins.empty())
    return llvm::Error::success();
  std::string link = twinPath(options, ptx);
  llvm::sys::fs::remove(link); // of an earlier run
  std::string to = llvm::sys::path::filename(twinPath(options, cubin)).str();
  if (std::error_code code = llvm::sys::fs::create_link(to, link))
    return llvm::createStringError("cannot make the link " + link + ": " +
                                   code.message());
  return llvm::Error::success();
}

static void registerTranslations(MLIRContext &context) {
  DialectRegistry registry;
  registerBuiltinDialectTranslation(registry);
  registerGPUDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
  NVVM::registerNVVMTargetInterfaceExternalModels(registry);
  context.appendDialectRegistry(registry);
}

llvm::Error mgq::kernels::embedImages(ModuleOp kernels,
                                      const CudaImageOptions &options) {
  auto toolkit = findCudaToolkit(options.toolkit);
  if (!toolkit)
    return toolkit.takeError();
  if (!options.twins.empty())
    if (std::error_code code = llvm::sys::fs::create_directories(options.twins))
      return llvm::createStringError("cannot make the folder " + options.twins +
                                     ": " + code.message());
  registerTranslations(*kernels.getContext());
  gpu::GPUModuleOp device = getCudaModule(kernels);
  std::vector<std::unique_ptr<Assembly>> assemblies;
  llvm::Error error = llvm::Error::success();
  for (const std::string &architecture : options.architectures) {
    auto assembly = std::make_unique<Assembly>(architecture);
    error = assembly->translate(device, options, *toolkit);
    if (!error)
      error = assembly->start(*toolkit);
    if (error)
      break;
    assemblies.push_back(std::move(assembly));
  }
  // Also after a fault: no process stays behind.
  for (auto &assembly : assemblies)
    error = llvm::joinErrors(std::move(error), assembly->finish(options));
  if (error)
    return error;
  auto &newest = **llvm::max_element(
      assemblies, [](auto &a, auto &b) { return a->number() < b->number(); });
  if (llvm::Error fault = newest.linkTwin(options))
    return fault;
  std::vector<CudaImage> images{newest.takePtx()};
  for (auto &assembly : assemblies)
    images.push_back(assembly->takeImage());
  addImageTable(kernels, device, images);
  device.erase();
  return llvm::Error::success();
}
