//===- Mark.cpp - What trains, and what the loss is a mean of
//---------------===//
//
// In: @model, simplified; its first result is the loss. After it:
//
// - every nn.param is `trainable` or `frozen`, by the globs of the options or
//   else the model's metadata `mgq.trainable`; each trainable parameter is
//   proven to reach the loss through differentiable ops.
// - trainable parameters stored as bf16 or f16 are f32 (WidenTrainable.cpp).
// - where the loss is a mean cross-entropy, its sum and its count are results:
//
//     %sum = nn.reduce sum %losses ...         %sum = ...
//     %n   = nn.reduce sum %weights ...   ->   %n = ...
//     %l   = nn.binary div %sum, %n            return %sum, %n
//     return %l
//
//   and @count computes the count from the inputs it needs: before a step all
//   ranks add their counts, and gradients start from 1 / count. So a mean over
//   several micro-batches is exact. Another loss stays a mean.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Activity.h"
#include "passes/NN/Globs.h"
#include "passes/NN/Passes.h"
#include "passes/NN/WidenTrainable.h"

#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringSet.h"

namespace mgq::nn {
#define GEN_PASS_DEF_MARKPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

using namespace mlir;
using namespace mgq;
using namespace mgq::nn;

//===----------------------------------------------------------------------===//
// Which parameters train
//===----------------------------------------------------------------------===//

/// The metadata entry `mgq.trainable` of a model, or empty.
static StringRef trainableMetadata(ModuleOp module) {
  auto metadata = module->getAttrOfType<DictionaryAttr>(kMetadataAttr);
  auto entry = metadata ? metadata.getAs<StringAttr>("mgq.trainable") : nullptr;
  return entry ? entry.getValue() : StringRef();
}

/// Name of the constant that was an initializer of the model, from its
/// location.
static StringRef constantName(ConstantOp op) {
  auto name = dyn_cast<NameLoc>(op.getLoc());
  return name ? name.getName().getValue() : StringRef();
}

/// Reports a glob without a float parameter: what it hit instead, or the
/// nearest names.
static LogicalResult reportNoMatch(ModuleOp module, const Glob &glob) {
  SmallVector<StringRef> names;
  for (auto param : module.getOps<ParamOp>()) {
    names.push_back(param.getSymName());
    if (glob.match(param.getSymName()))
      return emitError(param.getLoc(), "'")
             << glob.getText() << "' names '" << param.getSymName()
             << "' of type " << param.getType() << ", not a float parameter";
  }
  if (auto dead = module->getAttrOfType<ArrayAttr>(kDeadParamsAttr))
    for (auto name : dead.getAsRange<StringAttr>())
      if (glob.match(name.getValue()))
        return emitError(module.getLoc(), "parameter '")
               << name.getValue() << "' is to be trained (by '"
               << glob.getText() << "'), but nothing in the graph uses it";
  ConstantOp constant;
  module.walk([&](ConstantOp op) {
    if (!constantName(op).empty() && glob.match(constantName(op)))
      constant = op;
  });
  if (constant)
    return emitError(constant.getLoc(), "'")
           << glob.getText() << "' names '" << constantName(constant)
           << "', a constant of type " << constant.getType()
           << ", not a float parameter";
  InFlightDiagnostic diag = emitError(module.getLoc(), "no parameter matches '")
                            << glob.getText() << "'";
  if (!names.empty()) {
    diag << "; nearest: ";
    llvm::interleaveComma(nearestNames(glob.getText(), names), diag);
  }
  return diag;
}

/// Adds the float parameters that match `glob` to `matched`.
static LogicalResult matchParams(ModuleOp module, StringRef text,
                                 llvm::StringSet<> &matched) {
  auto glob = Glob::create(text);
  if (!glob)
    return emitError(module.getLoc(), "'")
           << text << "' is not a glob: " << llvm::toString(glob.takeError());
  bool any = false;
  for (auto param : module.getOps<ParamOp>()) {
    if (!isa<FloatType>(param.getTensorType().getElementType()) ||
        !glob->match(param.getSymName()))
      continue;
    // The importer froze what is no parameter of the model, as buffers are;
    // only its very name means it.
    if (param.getTrainability() == Trainability::Frozen &&
        glob->getText() != param.getSymName())
      continue;
    any = true;
    matched.insert(param.getSymName());
  }
  return any ? success() : reportNoMatch(module, *glob);
}

/// Sets `trainability` of every parameter.
static LogicalResult markParams(ModuleOp module,
                                ArrayRef<std::string> trainable,
                                ArrayRef<std::string> freeze) {
  SmallVector<std::string> globs(trainable);
  if (globs.empty())
    globs = splitGlobs(trainableMetadata(module));
  if (globs.empty())
    return emitError(module.getLoc(),
                     "nothing is to be trained: give --trainable=GLOB[,...] or "
                     "the model's metadata 'mgq.trainable'");
  llvm::StringSet<> trained, frozen;
  for (StringRef glob : globs)
    if (failed(matchParams(module, glob, trained)))
      return failure();
  for (StringRef glob : freeze)
    if (failed(matchParams(module, glob, frozen)))
      return failure();
  bool any = false;
  for (auto param : module.getOps<ParamOp>()) {
    bool trains = trained.contains(param.getSymName()) &&
                  !frozen.contains(param.getSymName());
    any |= trains;
    Type element = param.getTensorType().getElementType();
    if (trains && !element.isF32() && !element.isBF16() && !element.isF16())
      return emitError(param.getLoc(), "not supported yet: training parameter ")
             << param.getSymName() << " of type " << element
             << "; supported: f32, bf16, f16";
    param.setTrainability(trains ? Trainability::Trainable
                                 : Trainability::Frozen);
  }
  if (!any)
    return emitError(module.getLoc(),
                     "nothing is to be trained: --freeze takes out all that "
                     "--trainable names");
  return success();
}

/// Proves that every trainable parameter has a gradient.
static LogicalResult checkReach(func::FuncOp model, Value loss) {
  auto module = model->getParentOfType<ModuleOp>();
  SymbolTable symbols(module);
  Activity activity(
      model, [&](Value value) { return isTrainableParam(value, symbols); },
      loss);
  llvm::StringSet<> reaching;
  for (auto ref : model.getOps<ParamRefOp>())
    if (activity.isActive(ref.getResult()))
      reaching.insert(ref.getParam());
  for (auto param : module.getOps<ParamOp>())
    if (param.isTrainable() && !reaching.contains(param.getSymName()))
      return emitError(param.getLoc(), "parameter '")
             << param.getSymName()
             << "' is to be trained, but no gradient of the loss reaches it; "
                "take it out with --freeze="
             << param.getSymName();
  return success();
}

//===----------------------------------------------------------------------===//
// The loss
//===----------------------------------------------------------------------===//

/// The scalar behind casts between float types and reshapes to one element.
static Value stripScalar(Value value) {
  while (auto reshape = value.getDefiningOp<ReshapeOp>())
    value = reshape.getInput();
  return value;
}

/// The op of kind `Op` whose elements `value` sums up, or null.
template <typename Op>
static Op summedOp(Value value) {
  auto sum = stripScalar(value).getDefiningOp<ReduceOp>();
  if (!sum || sum.getKind() != ReduceKind::Sum ||
      cast<RankedTensorType>(sum.getResult().getType()).getNumElements() != 1)
    return nullptr;
  Value summed = sum.getInput();
  while (auto reshape = summed.getDefiningOp<ReshapeOp>())
    summed = reshape.getInput();
  return summed.getDefiningOp<Op>();
}

/// The division of a mean cross-entropy, or null.
static BinaryOp findMean(Value loss) {
  auto div = stripScalar(loss).getDefiningOp<BinaryOp>();
  if (!div || div.getKind() != BinaryKind::Div)
    return nullptr;
  auto losses = summedOp<CrossEntropyOp>(div.getLhs());
  auto weights = summedOp<LabelWeightsOp>(div.getRhs());
  // Sum and count must be of the same rows.
  if (!losses || !weights || losses.getLabels() != weights.getLabels() ||
      losses.getWeight() != weights.getWeight() ||
      losses.getIgnoreIndexAttr() != weights.getIgnoreIndexAttr())
    return nullptr;
  return div;
}

/// `value` as a tensor of rank 0.
static Value toScalar(OpBuilder &builder, Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  if (type.getRank() == 0)
    return value;
  return ReshapeOp::create(builder, value.getLoc(),
                           RankedTensorType::get({}, type.getElementType()),
                           value);
}

/// Adds @count: `count` of `model` from the inputs that it needs.
static LogicalResult addCount(func::FuncOp model, Value count) {
  SetVector<Operation *> slice;
  BackwardSliceOptions options;
  options.inclusive = true;
  if (failed(getBackwardSlice(count, &slice, options)))
    return failure();
  OpBuilder builder(model->getContext());
  builder.setInsertionPointAfter(model);
  SmallVector<BlockArgument> needed;
  SmallVector<DictionaryAttr> attributes;
  for (BlockArgument argument : model.getArguments()) {
    if (llvm::none_of(argument.getUsers(),
                      [&](Operation *user) { return slice.contains(user); }))
      continue;
    needed.push_back(argument);
    attributes.push_back(builder.getDictionaryAttr(builder.getNamedAttr(
        kInputAttr, model.getArgAttr(argument.getArgNumber(), kInputAttr))));
  }
  auto type =
      builder.getFunctionType(ValueRange(needed).getTypes(), count.getType());
  auto function = func::FuncOp::create(builder, count.getLoc(), "count", type);
  function.setAllArgAttrs(attributes);
  Block *body = function.addEntryBlock();
  builder.setInsertionPointToStart(body);
  IRMapping mapping;
  mapping.map(ValueRange(needed), body->getArguments());
  for (Operation &op : model.getBody().front())
    if (slice.contains(&op))
      builder.clone(op, mapping);
  func::ReturnOp::create(builder, count.getLoc(), mapping.lookup(count));
  return success();
}

/// Gives `model` results `values` with attributes `attributes`.
static void setResults(func::FuncOp model, ArrayRef<Value> values,
                       ArrayRef<DictionaryAttr> attributes) {
  auto returned = cast<func::ReturnOp>(model.getBody().front().getTerminator());
  returned.getOperandsMutable().assign(values);
  model.setType(FunctionType::get(model.getContext(), model.getArgumentTypes(),
                                  ValueRange(values).getTypes()));
  model.setAllResultAttrs(attributes);
}

/// Splits the loss and proves that gradients reach all that trains.
static LogicalResult markLoss(func::FuncOp model) {
  auto returned = cast<func::ReturnOp>(model.getBody().front().getTerminator());
  Builder attrs(model.getContext());
  if (returned.getNumOperands() == 0)
    return model.emitError("the graph has no output; the first one must be "
                           "the loss, a float scalar");
  auto type = cast<RankedTensorType>(returned.getOperand(0).getType());
  auto name = model.getResultAttrOfType<StringAttr>(0, kOutputAttr);
  if (!type.hasStaticShape() || type.getNumElements() != 1 ||
      !isa<FloatType>(type.getElementType()))
    return model.emitError("the first output ")
           << (name ? name.getValue() : StringRef("")) << " has type " << type
           << "; it must be the loss, a float scalar";
  if (failed(checkReach(model, returned.getOperand(0))))
    return failure();

  auto withRole = [&](DictionaryAttr dictionary, StringRef role) {
    NamedAttrList list(dictionary);
    list.set(kLossAttr, attrs.getStringAttr(role));
    return list.getDictionary(model.getContext());
  };
  SmallVector<Value> values(returned.getOperands());
  SmallVector<DictionaryAttr> attributes;
  for (unsigned i = 0; i < values.size(); ++i) {
    auto dictionary = model.getResultAttrDict(i);
    attributes.push_back(dictionary ? dictionary : attrs.getDictionaryAttr({}));
  }
  OpBuilder builder(returned);
  BinaryOp mean = findMean(values[0]);
  if (!mean) {
    values[0] = toScalar(builder, values[0]);
    attributes[0] = withRole(attributes[0], "mean");
    setResults(model, values, attributes);
    return success();
  }
  values[0] = toScalar(builder, mean.getLhs());
  attributes[0] = withRole(attributes[0], "sum");
  values.insert(values.begin() + 1, toScalar(builder, mean.getRhs()));
  attributes.insert(attributes.begin() + 1, withRole({}, "count"));
  setResults(model, values, attributes);
  return addCount(model, values[1]);
}

/// Erases what nothing uses any more (the division of the mean).
static void eraseDead(func::FuncOp function) {
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(function.getBody().front())))
    if (isOpTriviallyDead(&op))
      op.erase();
}

namespace {
struct MarkPass : mgq::nn::impl::MarkPassBase<MarkPass> {
  using MarkPassBase::MarkPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto model = module.lookupSymbol<func::FuncOp>("model");
    if (!model) {
      emitError(module.getLoc(), "the module has no function @model");
      return signalPassFailure();
    }
    if (failed(markParams(module, llvm::to_vector(trainable),
                          llvm::to_vector(freeze))))
      return signalPassFailure();
    widenTrainable(model);
    if (failed(markLoss(model)))
      return signalPassFailure();
    eraseDead(model);
    module->removeAttr(kDeadParamsAttr);
  }
};
} // namespace
