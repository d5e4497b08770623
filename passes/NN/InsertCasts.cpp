//===- InsertCasts.cpp - bf16 where the precision policy says so ----------===//
//
// In: @model and @train after nn-differentiate. After, with layered precision:
//
//   func @linear.forward(%x, %w: f32)        func @linear.forward(%x, %w: bf16)
//     %a = nn.unary gelu %x                    %a = nn.unary gelu %x
//                                              %b = nn.cast %a : f32 -> bf16
//     %y = nn.matmul %a, %w                    %y = nn.matmul %b, %w  (to f32)
//     return %y, %a                  ->        return %y, %b
//   func @linear.backward(%dy, %a: f32)      func @linear.backward(%dy, %b:
//   bf16)
//     ... %a                                   %a = nn.cast %b : bf16 -> f32
//
//   %w = nn.param_ref @w : f32               %w = nn.param_ref @w : bf16
//
// Three steps: functions are copied so that all calls of one agree in what its
// products take (Precision.h); values between calls get their types, all that
// meet in one operand or result of a function together; functions are
// rewritten (LayerPrecision.h), then calls and references of parameters.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/LayerPrecision.h"
#include "passes/NN/Passes.h"

#include "dialects/NN/NNBuild.h"
#include "dialects/NN/NNPhases.h"
#include "llvm/ADT/EquivalenceClasses.h"

namespace mgq::nn {
#define GEN_PASS_DEF_INSERTCASTSPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq::nn;

/// A call of @model or @count runs forward.
static StringRef phaseOf(func::CallOp call) {
  auto phase = call->getAttrOfType<StringAttr>(kPhaseAttr);
  return phase ? phase.getValue() : "forward";
}

//===----------------------------------------------------------------------===//
// Values between calls
//===----------------------------------------------------------------------===//

namespace {
/// Operands and results of functions, with those joined that hold the same
/// values.
class Slots {
public:
  /// What is known of a slot.
  struct Facts {
    bool isRead = false;   ///< a call takes it
    bool isFixed = false;  ///< keeps its type
    bool isStream = false; ///< passes from layer to layer
    /// From a backward call to a weight call: rounded only where products
    /// would, as if the two calls were one.
    bool isOfBackward = false;
  };
  unsigned of(Operation *function, bool isResult, unsigned index) {
    Key key{function, 2 * index + isResult};
    auto [it, isNew] = numbers.try_emplace(key, facts.size());
    if (isNew) {
      facts.push_back({});
      classes.insert(it->second);
    }
    return it->second;
  }
  void join(unsigned a, unsigned b) { classes.unionSets(a, b); }
  Facts &at(unsigned slot) { return facts[slot]; }
  bool isNarrow(unsigned slot) {
    Facts facts = together(slot);
    return facts.isRead && !facts.isFixed;
  }
  /// Of all slots joined with this one.
  Facts together(unsigned slot) {
    Facts sum;
    for (auto it = classes.findLeader(slot); it != classes.member_end(); ++it) {
      sum.isRead |= facts[*it].isRead;
      sum.isFixed |= facts[*it].isFixed;
      sum.isStream |= facts[*it].isStream;
      sum.isOfBackward |= facts[*it].isOfBackward;
    }
    return sum;
  }

private:
  using Key = std::pair<Operation *, unsigned>;
  llvm::DenseMap<Key, unsigned> numbers;
  llvm::EquivalenceClasses<unsigned> classes;
  std::vector<Facts> facts;
};

class CastInserter {
public:
  CastInserter(ModuleOp module, PrecisionPolicy policy, bool tables,
               bool progressive)
      : module(module), symbols(module), policy(std::move(policy)),
        tables(tables), progressive(progressive) {}

  void run();

private:
  func::FuncOp calleeOf(func::CallOp call) {
    return symbols.lookup<func::FuncOp>(call.getCallee());
  }
  void separateCalls();
  void joinValues();
  void joinOperand(func::CallOp reader, unsigned operand);
  void fixWhatStaysWide();
  void rewriteFunctions();
  void keepEarly(func::FuncOp function, const llvm::BitVector &weights);
  void rewriteCall(func::CallOp call);

  ModuleOp module;
  SymbolTable symbols;
  PrecisionPolicy policy;
  bool tables, progressive;
  SmallVector<func::CallOp> calls;
  /// Calls that compute from inputs alone, such as masks.
  llvm::DenseSet<Operation *> inputsOnly;
  /// The functions that are called, all calls of each alike.
  llvm::MapVector<Operation *, LayerPrecision> layers;
  Slots slots;
  llvm::DenseMap<std::pair<Operation *, Type>, Value> references;
};
} // namespace

/// Gives each kind of call of a function a copy of its own.
void CastInserter::separateCalls() {
  using Copies = SmallVector<std::pair<CallPrecision, func::FuncOp>, 1>;
  llvm::DenseMap<Operation *, Copies> known;
  for (func::CallOp call : calls) {
    func::FuncOp callee = calleeOf(call);
    CallPrecision precision = policy.of(call);
    Copies &copies = known[callee];
    auto same = llvm::find_if(
        copies, [&](const auto &copy) { return copy.first == precision; });
    if (same == copies.end()) {
      func::FuncOp function = callee;
      if (!copies.empty()) {
        function = callee.clone();
        function.setName(
            (callee.getName() + ".precision." + Twine(copies.size())).str());
        symbols.insert(function, ++copies.back().second->getIterator());
      }
      layers.insert({function, LayerPrecision(function, precision)});
      copies.push_back({precision, function});
      same = std::prev(copies.end());
    }
    call.setCallee(same->second.getName());
  }
}

/// Notes whether a value that `reader` takes from another call may be bf16.
void CastInserter::joinOperand(func::CallOp reader, unsigned operand) {
  Value value = reader.getOperand(operand);
  unsigned read = slots.of(calleeOf(reader), false, operand);
  slots.at(read).isRead = true;
  auto maker = value.getDefiningOp<func::CallOp>();
  if (!maker) {
    slots.at(read).isFixed = true;
    return;
  }
  func::FuncOp function = calleeOf(maker);
  unsigned made =
      slots.of(function, true, cast<OpResult>(value).getResultNumber());
  slots.join(read, made);
  // Gradients are f32.
  bool mayBeNarrow = phaseOf(maker) == "forward" ? !inputsOnly.contains(maker)
                                                 : phaseOf(reader) == "weight";
  bool readForward = phaseOf(reader) == "forward";
  bool isResidual = llvm::none_of(value.getUsers(), [](Operation *user) {
    auto call = dyn_cast<func::CallOp>(user);
    return call && phaseOf(call) == "forward";
  });
  // Layers may be in different phases of progressive precision.
  if (progressive && instanceOf(maker) != instanceOf(reader))
    mayBeNarrow = false;
  if (readForward)
    mayBeNarrow &= policy.hasNarrowStream();
  else if (isResidual) // f32 where the layer's products are.
    mayBeNarrow &= layers.find(function)->second.rest() == Precision::bf16;
  slots.at(made).isStream |= readForward;
  slots.at(made).isOfBackward |= phaseOf(maker) == "backward";
  slots.at(made).isFixed |= !mayBeNarrow;
}

void CastInserter::joinValues() {
  for (func::CallOp call : calls) {
    for (unsigned i = 0, e = call.getNumOperands(); i < e; ++i)
      joinOperand(call, i);
    for (OpResult result : call.getResults())
      if (llvm::any_of(result.getUsers(), [](Operation *user) {
            return isa<func::ReturnOp>(user);
          }))
        slots.at(slots.of(calleeOf(call), true, result.getResultNumber()))
            .isFixed = true;
  }
}

/// What is not f32, and what a function needs in f32.
void CastInserter::fixWhatStaysWide() {
  SmallVector<unsigned> fixed;
  for (auto &[op, layer] : layers) {
    auto function = cast<func::FuncOp>(op);
    for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
      unsigned slot = slots.of(op, false, i);
      Slots::Facts facts = slots.together(slot);
      if (!getElementTypeOrSelf(function.getArgumentTypes()[i]).isF32() ||
          !(facts.isOfBackward ? layer.readsNarrow(i)
                               : layer.mayBeNarrow(i, facts.isStream)))
        fixed.push_back(slot);
    }
    for (unsigned i = 0, e = function.getNumResults(); i < e; ++i)
      if (!getElementTypeOrSelf(function.getResultTypes()[i]).isF32())
        fixed.push_back(slots.of(op, true, i));
  }
  for (unsigned slot : fixed)
    slots.at(slot).isFixed = true;
}

/// Puts a copy that computes in f32 into the place of a function, which becomes
/// what it is later. The calls' types stay those of the copy: f32, so that
/// memory is planned for the larger.
void CastInserter::keepEarly(func::FuncOp function,
                             const llvm::BitVector &weights) {
  func::FuncOp early = function.clone();
  std::string name = function.getName().str();
  symbols.remove(function);
  function.setName(name + ".late");
  symbols.insert(early, function->getIterator());
  symbols.insert(function, ++early->getIterator());
  early->setAttr(kLateAttr, FlatSymbolRefAttr::get(function.getNameAttr()));
  LayerPrecision::narrowOperands(early, weights);
}

void CastInserter::rewriteFunctions() {
  for (auto &[op, layer] : layers) {
    auto function = cast<func::FuncOp>(op);
    llvm::BitVector operands(function.getNumArguments());
    llvm::BitVector results(function.getNumResults()), weights(operands);
    for (unsigned i = 0, e = operands.size(); i < e; ++i) {
      weights[i] = layer.isNarrowWeight(i, tables);
      operands[i] = weights[i] || slots.isNarrow(slots.of(op, false, i));
    }
    for (unsigned i = 0, e = results.size(); i < e; ++i)
      results[i] = slots.isNarrow(slots.of(op, true, i));
    bool changes = operands.any() || results.any() || layer.takesNarrow();
    if (progressive && changes)
      keepEarly(function, weights);
    layer.insertCasts(operands, results);
  }
}

/// Gives results the types of the function, and reads parameters as it does.
void CastInserter::rewriteCall(func::CallOp call) {
  FunctionType type = calleeOf(call).getFunctionType();
  for (auto [result, to] :
       llvm::zip_equal(call.getResults(), type.getResults()))
    result.setType(to);
  for (OpOperand &operand : call->getOpOperands()) {
    auto reference = operand.get().getDefiningOp<ParamRefOp>();
    Type to = type.getInput(operand.getOperandNumber());
    if (!reference || reference.getType() == to)
      continue;
    Value &narrow = references[{reference, to}];
    if (!narrow) {
      OpBuilder builder(reference);
      narrow = ParamRefOp::create(builder, reference.getLoc(), to,
                                  reference.getParamAttr());
    }
    operand.set(narrow);
    if (reference->use_empty())
      reference.erase();
  }
}

void CastInserter::run() {
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function->hasAttr(kLayerAttr))
      continue;
    for (auto call : function.getOps<func::CallOp>()) {
      calls.push_back(call);
      if (llvm::all_of(call.getOperands(), [&](Value operand) {
            return isa<BlockArgument>(operand) ||
                   inputsOnly.contains(operand.getDefiningOp());
          }))
        inputsOnly.insert(call);
    }
  }
  separateCalls();
  joinValues();
  fixWhatStaysWide();
  rewriteFunctions();
  for (func::CallOp call : calls)
    rewriteCall(call);
}

namespace {
struct InsertCastsPass : mgq::nn::impl::InsertCastsPassBase<InsertCastsPass> {
  using Base::Base;

  void runOnOperation() override {
    auto policy =
        PrecisionPolicy::create(getOperation(), precision, precisionOf);
    if (failed(policy))
      return signalPassFailure();
    bool isProgressive = fp32Steps > 0 || bf16Ramp > 0;
    if (isProgressive) {
      Builder builder(&getContext());
      getOperation()->setAttr(kFp32StepsAttr,
                              builder.getI64IntegerAttr(fp32Steps));
      getOperation()->setAttr(kBf16RampAttr,
                              builder.getI64IntegerAttr(bf16Ramp));
    }
    if (policy->isNeeded())
      CastInserter(getOperation(), std::move(*policy), tables, isProgressive)
          .run();
  }
};
} // namespace
