//===- NNPhases.cpp - Progressive precision: when layers change -----------===//

#include "dialects/NN/NNPhases.h"

#include "mlir/IR/SymbolTable.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

FlatSymbolRefAttr mgq::nn::lateOf(Operation *module, StringRef name) {
  Operation *layer = SymbolTable::lookupSymbolIn(module, name);
  return layer ? layer->getAttrOfType<FlatSymbolRefAttr>(kLateAttr) : nullptr;
}

int64_t mgq::nn::lateFrom(Operation *module, int64_t layer, int64_t count) {
  auto number = [&](StringRef name) {
    auto attr = module->getAttrOfType<IntegerAttr>(name);
    return attr ? attr.getInt() : 0;
  };
  // Layer 0 changes after the steps in f32, all have after the ramp.
  return number(kFp32StepsAttr) +
         llvm::divideCeil(layer * number(kBf16RampAttr), count);
}
