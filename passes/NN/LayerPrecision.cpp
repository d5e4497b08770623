//===- LayerPrecision.cpp - Precision inside a layer function -------------===//

#include "passes/NN/LayerPrecision.h"

#include "dialects/NN/NNBuild.h"

using namespace mlir;
using namespace mgq::nn;

//===----------------------------------------------------------------------===//
// Which products take bf16
//===----------------------------------------------------------------------===//

/// A product that sums in f32.
static bool isProduct(Operation *op) {
  return isa<MatmulOp, ConvOp, ConvGradInputOp, ConvGradWeightOp, AttentionOp,
             AttentionGradOp>(op) &&
         getElementTypeOrSelf(op->getResult(0)).isF32();
}

/// The operands of a product that it multiplies.
static SmallVector<OpOperand *> factorsOf(Operation *product) {
  Value mask;
  if (auto attention = dyn_cast<AttentionOp>(product))
    mask = attention.getMask();
  if (auto gradient = dyn_cast<AttentionGradOp>(product))
    mask = gradient.getMask();
  SmallVector<OpOperand *> factors;
  for (OpOperand &operand : product->getOpOperands())
    if (operand.get() != mask)
      factors.push_back(&operand);
  return factors;
}

/// Whether an op only moves elements of its first operand.
static bool isMove(Operation *op) {
  return isa<ReshapeOp, TransposeOp, BroadcastOp, SliceOp>(op);
}

static bool isWidening(Operation *op) {
  auto cast = dyn_cast<CastOp>(op);
  return cast && isFloat(cast.getInput()) && isFloat(cast.getResult()) &&
         tensorType(cast.getInput()).getElementTypeBitWidth() <
             tensorType(cast.getResult()).getElementTypeBitWidth();
}

/// The argument whose elements a value has, or null.
static BlockArgument argumentOf(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isMove(op) && !isWidening(op))
      return nullptr;
    value = op->getOperand(0);
  }
  return cast<BlockArgument>(value);
}

/// Calls `visit` with what reads a value or elements of it, moved or widened.
static void forEachRead(Value value,
                        llvm::function_ref<void(OpOperand &)> visit) {
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    if (isMove(user) || isWidening(user))
      forEachRead(user->getResult(0), visit);
    else
      visit(use);
  }
}

/// The results of the function that a product's result becomes by moves,
/// constant factors and, where it is a matrix, sums.
static void findResults(Value value, SmallVectorImpl<unsigned> &results) {
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    if (isa<func::ReturnOp>(user)) {
      results.push_back(use.getOperandNumber());
      continue;
    }
    auto scaled = dyn_cast<BinaryOp>(user);
    auto sum = dyn_cast<ReduceOp>(user);
    if (isMove(user) ||
        (scaled && scaled.getKind() == BinaryKind::Mul &&
         scaled->getOperand(1 - use.getOperandNumber())
             .getDefiningOp<ConstantOp>()) ||
        (sum && tensorType(sum.getResult()).getRank() >= 2))
      findResults(user->getResult(0), results);
  }
}

/// f32 where any is.
static void narrowest(Precision &sum, Precision more) {
  if (more != Precision::none && sum != Precision::f32)
    sum = more;
}

LayerPrecision::LayerPrecision(func::FuncOp layer,
                               const CallPrecision &precision)
    : layer(layer), precision(precision) {
  for (Operation &op : layer.getBody().front().without_terminator()) {
    if (!isProduct(&op))
      continue;
    Precision own = Precision::none;
    for (OpOperand *factor : factorsOf(&op))
      if (BlockArgument argument = argumentOf(factor->get()))
        narrowest(own, precision.operands[argument.getArgNumber()]);
    SmallVector<unsigned> results;
    for (Value result : op.getResults())
      findResults(result, results);
    for (unsigned result : results)
      narrowest(own, precision.results[result]);
    if (own == Precision::none)
      own = precision.rest;
    if (own == Precision::bf16)
      narrowProducts.insert(&op);
  }
}

//===----------------------------------------------------------------------===//
// What may be bf16 in memory
//===----------------------------------------------------------------------===//

bool LayerPrecision::mayBeNarrow(unsigned operand, bool isStream) const {
  bool fits = true;
  forEachRead(func::FuncOp(layer).getArgument(operand), [&](OpOperand &use) {
    Operation *user = use.getOwner();
    bool needsWide =
        isa<CrossEntropyOp, CrossEntropyGradOp, SoftmaxOp, LogSoftmaxOp>(user);
    if (!isStream)
      needsWide |=
          (isProduct(user) && !narrowProducts.contains(user)) ||
          isa<LayerNormOp, LayerNormGradOp, RMSNormOp, RMSNormGradOp>(user);
    fits &= !needsWide;
  });
  return fits;
}

bool LayerPrecision::readsNarrow(unsigned operand) const {
  Value value = func::FuncOp(layer).getArgument(operand);
  bool fits = !value.use_empty();
  forEachRead(value, [&](OpOperand &use) {
    fits &= narrowProducts.contains(use.getOwner());
  });
  return fits;
}

bool LayerPrecision::isNarrowWeight(unsigned operand, bool tables) const {
  if (!precision.frozen[operand])
    return false;
  Value weight = func::FuncOp(layer).getArgument(operand);
  Type element = tensorType(weight).getElementType();
  bool isTable = tables && precision.operands[operand] == Precision::bf16 &&
                 !weight.use_empty();
  forEachRead(weight, [&](OpOperand &use) {
    isTable &= isa<GatherOp>(use.getOwner());
  });
  return (isTable || readsNarrow(operand)) &&
         (element.isF32() ||
          (element.isF16() && llvm::all_of(weight.getUsers(), isWidening)));
}

//===----------------------------------------------------------------------===//
// Casts
//===----------------------------------------------------------------------===//

/// The value as bf16: moved rather than rounded again where it is moved.
Value LayerPrecision::narrow(Value value) {
  auto type = tensorType(value);
  if (type.getElementType().isBF16())
    return value;
  Value &known = rounded[value];
  if (known)
    return known;
  Operation *op = value.getDefiningOp();
  Type bf16 = BFloat16Type::get(layer.getContext());
  if (op && isWidening(op) &&
      tensorType(op->getOperand(0)).getElementType().isBF16())
    return known = op->getOperand(0);
  OpBuilder builder(layer.getContext());
  if (op && isMove(op)) {
    Value source = narrow(op->getOperand(0));
    builder.setInsertionPointAfter(op);
    Operation *moved = builder.clone(*op);
    moved->setOperand(0, source);
    moved->getResult(0).setType(type.clone(bf16));
    // `known` may have moved when other values came in.
    return rounded[value] = moved->getResult(0);
  }
  builder.setInsertionPointAfterValue(value);
  return known =
             CastOp::create(builder, value.getLoc(), type.clone(bf16), value);
}

/// Erases what nothing reads any more, and gives the function its type.
static void finish(func::FuncOp layer) {
  Block &body = layer.getBody().front();
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op))
      op.erase();
  layer.setType(FunctionType::get(layer.getContext(), body.getArgumentTypes(),
                                  body.getTerminator()->getOperandTypes()));
}

void LayerPrecision::narrowOperands(func::FuncOp layer,
                                    const llvm::BitVector &operands) {
  Block &body = layer.getBody().front();
  OpBuilder builder(layer.getContext());
  builder.setInsertionPointToStart(&body);
  Type bf16 = builder.getBF16Type();
  for (unsigned i : operands.set_bits()) {
    BlockArgument argument = body.getArgument(i);
    auto type = tensorType(argument);
    argument.setType(type.clone(bf16));
    auto wide = CastOp::create(builder, argument.getLoc(),
                               type.clone(builder.getF32Type()), argument);
    if (type.getElementType().isF16())
      for (Operation *user : llvm::to_vector(argument.getUsers()))
        if (user != wide) // It widened f16.
          user->getResult(0).replaceAllUsesWith(wide);
    argument.replaceAllUsesExcept(wide, wide);
  }
  finish(layer);
}

void LayerPrecision::insertCasts(const llvm::BitVector &operands,
                                 const llvm::BitVector &results) {
  narrowOperands(layer, operands);
  for (Operation *product : narrowProducts)
    for (OpOperand *factor : factorsOf(product))
      factor->set(narrow(factor->get()));
  Operation *terminator = layer.getBody().front().getTerminator();
  for (unsigned i : results.set_bits())
    terminator->setOperand(i, narrow(terminator->getOperand(i)));
  finish(layer);
}
