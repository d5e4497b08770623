//===- Import.cpp - ONNX in, nn out ---------------------------------------===//

#include "frontends/onnx/Import.h"

#include "frontends/onnx/Graph.h"
#include "frontends/onnx/Registry.h"

#include "llvm/ADT/ScopeExit.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::onnx;

/// Globs of trainable parameters: options first, else the model's metadata.
static std::vector<std::string>
trainableTexts(const ImportOptions &options, const ::onnx::ModelProto &model) {
  if (!options.trainable.empty())
    return options.trainable;
  std::vector<std::string> texts;
  for (const auto &entry : model.metadata_props()) {
    if (entry.key() != "mgq.trainable")
      continue;
    SmallVector<StringRef> parts;
    StringRef(entry.value()).split(parts, ',', -1, /*KeepEmpty=*/false);
    for (StringRef part : parts)
      texts.push_back(part.trim().str());
  }
  return texts;
}

OwningOpRef<ModuleOp> mgq::onnx::importModel(MLIRContext *context,
                                             StringRef path,
                                             const ImportOptions &given) {
  context->loadDialect<nn::NNDialect, func::FuncDialect>();
  Location loc = NameLoc::get(StringAttr::get(context, path));
  ::onnx::ModelProto model;
  ModelFiles files;
  if (failed(files.open(loc, path, model)))
    return {};
  ImportOptions options = given;
  options.trainable = trainableTexts(given, model);
  std::vector<llvm::GlobPattern> globs;
  for (const std::string &text : options.trainable) {
    auto glob = llvm::GlobPattern::create(text);
    if (!glob) {
      emitError(loc) << "bad pattern --trainable=" << text << ": "
                     << llvm::toString(glob.takeError());
      return {};
    }
    globs.push_back(std::move(*glob));
  }
  return GraphImporter(context, options, files, model, std::move(globs)).run();
}
