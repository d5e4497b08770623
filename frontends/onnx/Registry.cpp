//===- Registry.cpp - Which function imports which operator ---------------===//

#include "frontends/onnx/Registry.h"

#include "frontends/onnx/Import.h"

using namespace mgq::onnx;

const Registry &mgq::onnx::registry() {
  static const Registry instance = [] {
    Registry result;
    // Graph.cpp imports these itself: they need more than their node.
    result["Constant"] = nullptr;
    result["If"] = nullptr;
    result["SequenceAt"] = nullptr;
    result["SplitToSequence"] = nullptr;
    registerAttention(result);
    registerDropout(result);
    registerElementwise(result);
    registerLinear(result);
    registerLoss(result);
    registerMovement(result);
    registerNorm(result);
    registerPool(result);
    registerReduce(result);
    registerResize(result);
    registerShape(result);
    return result;
  }();
  return instance;
}

std::vector<llvm::StringRef> mgq::onnx::supportedOperators() {
  std::vector<llvm::StringRef> names;
  for (const auto &entry : registry())
    names.push_back(entry.getKey());
  llvm::sort(names);
  return names;
}
