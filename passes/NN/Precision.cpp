//===- Precision.cpp - What each product of a model computes in -----------===//

#include "passes/NN/Precision.h"

#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::nn;

StringRef mgq::nn::instanceOf(func::CallOp call) {
  if (auto name = call->getAttrOfType<StringAttr>(kInstanceAttr))
    return name.getValue();
  Location loc = call.getLoc();
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      if (isa<NameLoc>(part))
        loc = part;
  auto name = dyn_cast<NameLoc>(loc);
  return name ? name.getName().getValue() : call.getCallee();
}

/// Calls `visit` with each call of a layer.
static void forEachCall(ModuleOp module,
                        llvm::function_ref<void(func::CallOp)> visit) {
  for (auto function : module.getOps<func::FuncOp>())
    if (!function->hasAttr(kLayerAttr))
      for (auto call : function.getOps<func::CallOp>())
        visit(call);
}

static ParamOp paramOf(Value value, const SymbolTable &symbols) {
  auto ref = value.getDefiningOp<ParamRefOp>();
  return ref ? symbols.lookup<ParamOp>(ref.getParam()) : nullptr;
}

FailureOr<PrecisionPolicy>
PrecisionPolicy::create(ModuleOp module, StringRef precision,
                        ArrayRef<std::string> overrides) {
  PrecisionPolicy policy(module);
  auto base = llvm::StringSwitch<std::optional<Base>>(precision)
                  .Case("f32", Base::f32)
                  .Case("layered", Base::layered)
                  .Case("bf16", Base::bf16)
                  .Default(std::nullopt);
  if (!base)
    return emitError(module.getLoc(), "precision '")
           << precision << "': expected f32, layered or bf16";
  policy.base = *base;
  for (StringRef text : overrides)
    if (failed(policy.addOverride(module, text)))
      return failure();
  policy.chooseRest(module);
  return policy;
}

LogicalResult PrecisionPolicy::addOverride(ModuleOp module, StringRef text) {
  auto [globText, word] = text.rsplit('=');
  auto precision = llvm::StringSwitch<Precision>(word)
                       .Case("f32", Precision::f32)
                       .Case("bf16", Precision::bf16)
                       .Default(Precision::none);
  if (precision == Precision::none || globText.empty())
    return emitError(module.getLoc(), "--precision-of=")
           << text << ": expected GLOB=f32 or GLOB=bf16";
  auto glob = Glob::create(globText);
  if (!glob)
    return emitError(module.getLoc(), "--precision-of=")
           << text << ": '" << globText
           << "' is not a glob: " << llvm::toString(glob.takeError());
  SmallVector<StringRef> names;
  for (auto param : module.getOps<ParamOp>())
    names.push_back(param.getSymName());
  llvm::StringMap<bool> seen;
  forEachCall(module, [&](func::CallOp call) {
    if (seen.try_emplace(instanceOf(call)).second)
      names.push_back(instanceOf(call));
  });
  if (llvm::none_of(names, [&](StringRef name) { return glob->match(name); })) {
    InFlightDiagnostic diag = emitError(module.getLoc(), "--precision-of=")
                              << text << ": no parameter or layer matches '"
                              << globText << "'";
    if (!names.empty()) {
      diag << "; nearest: ";
      llvm::interleaveComma(nearestNames(globText, names), diag);
    }
    return diag;
  }
  overrides.push_back({std::move(*glob), precision});
  return success();
}

Precision PrecisionPolicy::ofParam(ParamOp param, StringRef instance) const {
  Precision precision = base == Base::f32 ? Precision::f32
                        : base == Base::layered && param.isTrainable()
                            ? Precision::f32
                            : Precision::bf16;
  for (const Override &override : overrides)
    if (override.glob.match(param.getSymName()) ||
        override.glob.match(instance))
      precision = override.precision;
  return precision;
}

/// Products without a parameter follow their layer: f32 where all its matrices
/// are read in f32.
void PrecisionPolicy::chooseRest(ModuleOp module) {
  struct Weights {
    bool any = false, anyNarrow = false;
  };
  llvm::StringMap<Weights> found;
  forEachCall(module, [&](func::CallOp call) {
    StringRef instance = instanceOf(call);
    Weights &weights = found[instance];
    for (Value operand : call.getOperands()) {
      ParamOp param = paramOf(operand, symbols);
      if (!param || param.getTensorType().getRank() < 2)
        continue;
      weights.any = true;
      weights.anyNarrow |= ofParam(param, instance) == Precision::bf16;
    }
  });
  for (auto &entry : found) {
    const Weights &weights = entry.second;
    Precision precision = base == Base::f32                   ? Precision::f32
                          : base == Base::bf16                ? Precision::bf16
                          : weights.any && !weights.anyNarrow ? Precision::f32
                                                              : Precision::bf16;
    for (const Override &override : overrides)
      if (override.glob.match(entry.first()))
        precision = override.precision;
    rest[entry.first()] = precision;
  }
}

/// Calls `visit` with each result of a call that is a gradient, and its
/// parameter.
static void forEachGradient(func::CallOp call, const SymbolTable &symbols,
                            llvm::function_ref<void(unsigned, ParamOp)> visit) {
  auto function = call->getParentOfType<func::FuncOp>();
  for (auto [i, result] : llvm::enumerate(call.getResults()))
    for (OpOperand &use : result.getUses()) {
      if (!isa<func::ReturnOp>(use.getOwner()))
        continue;
      auto name = function.getResultAttrOfType<FlatSymbolRefAttr>(
          use.getOperandNumber(), kGradientAttr);
      if (auto param = name ? symbols.lookup<ParamOp>(name.getAttr()) : nullptr)
        visit(i, param);
    }
}

CallPrecision PrecisionPolicy::of(func::CallOp call) {
  StringRef instance = instanceOf(call);
  CallPrecision precision;
  precision.operands.assign(call.getNumOperands(), Precision::none);
  precision.results.assign(call.getNumResults(), Precision::none);
  precision.frozen.resize(call.getNumOperands());
  for (auto [i, operand] : llvm::enumerate(call.getOperands()))
    if (ParamOp param = paramOf(operand, symbols)) {
      precision.operands[i] = ofParam(param, instance);
      precision.frozen[i] = !param.isTrainable();
    }
  forEachGradient(call, symbols, [&](unsigned result, ParamOp param) {
    precision.results[result] = ofParam(param, instance);
  });
  precision.rest = rest.lookup(instance);
  return precision;
}
