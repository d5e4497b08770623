//===- KernDialect.cpp - The kern dialect's ops ---------------------------===//

#include "dialects/Kern/Kern.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace mgq::kern;

#include "dialects/Kern/KernDialect.cpp.inc"

void KernDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Kern/KernOps.cpp.inc"
      >();
}

using Effects = SmallVectorImpl<MemoryEffects::EffectInstance>;

/// On buffers inputs are read, destinations read and written; tensors are
/// values.
static void destinationEffects(DestinationStyleOpInterface op,
                               Effects &effects) {
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isa<MemRefType>(operand.get().getType()))
      continue;
    effects.emplace_back(MemoryEffects::Read::get(), &operand, 0, false,
                         SideEffects::DefaultResource::get());
    if (op.isDpsInit(&operand))
      effects.emplace_back(MemoryEffects::Write::get(), &operand, 0, false,
                           SideEffects::DefaultResource::get());
  }
}

void MatmulOp::getEffects(Effects &effects) {
  destinationEffects(*this, effects);
}
void AttentionOp::getEffects(Effects &effects) {
  destinationEffects(*this, effects);
}
void AttentionGradOp::getEffects(Effects &effects) {
  destinationEffects(*this, effects);
}
void LoopsOp::getEffects(Effects &effects) {
  destinationEffects(*this, effects);
}

MatmulOp::Sizes MatmulOp::getSizes() {
  auto a = cast<ShapedType>(getLhs().getType()).getShape();
  auto c = cast<ShapedType>(getInit().getType()).getShape();
  return {c.size() == 3 ? c[0] : 1, c[c.size() - 2], c.back(),
          getTransposeA() ? a[a.size() - 2] : a.back()};
}

void MatmulOp::build(OpBuilder &builder, OperationState &state, Type result,
                     Value lhs, Value rhs, Value init, bool transposeA,
                     bool transposeB) {
  build(builder, state, TypeRange(result), lhs, rhs, Value(), Value(), init,
        transposeA, transposeB, /*gelu=*/false, llvm::APFloat(1.0));
}

static Type elementOf(Value value) {
  return cast<ShapedType>(value.getType()).getElementType();
}

bool MatmulOp::hasEpilogue() {
  Type element = elementOf(getInit());
  return getAddend() || getBias() || getGelu() ||
         !getAlpha().isExactlyValue(1) || element.isBF16() || element.isF16();
}

/// matmul_c2.
static LogicalResult verifyEpilogue(MatmulOp op) {
  auto c = cast<ShapedType>(op.getInit().getType());
  Value addend = op.getAddend(), bias = op.getBias();
  if (addend && (elementOf(addend) != c.getElementType() ||
                 cast<ShapedType>(addend.getType()).getShape() != c.getShape()))
    return op.emitOpError("adds ")
           << addend.getType() << ", expected the shape and element type of "
           << c;
  if (bias &&
      (elementOf(bias) != c.getElementType() ||
       cast<ShapedType>(bias.getType()).getShape() != c.getShape().take_back()))
    return op.emitOpError("has a bias of type ")
           << bias.getType() << ", expected " << c.getShape().back()
           << " elements of type " << c.getElementType();
  if (op.hasEpilogue() && !isa<FloatType>(c.getElementType()))
    return op.emitOpError("of elements of type ")
           << c.getElementType() << " has an epilogue, which floats have only";
  return success();
}

LogicalResult MatmulOp::verify() {
  auto a = cast<ShapedType>(getLhs().getType()).getShape();
  auto b = cast<ShapedType>(getRhs().getType()).getShape();
  auto c = cast<ShapedType>(getInit().getType()).getShape();
  auto isMatrix = [](ArrayRef<int64_t> s) {
    return s.size() == 2 || s.size() == 3;
  };
  if (!isMatrix(a) || !isMatrix(b) || c.size() != std::max(a.size(), b.size()))
    return emitOpError("operands have ranks ")
           << a.size() << ", " << b.size() << " and " << c.size()
           << ", expected 2 or 3 and the larger of both";
  auto matrix = [](ArrayRef<int64_t> s, bool transposed) {
    s = s.take_back(2);
    return transposed ? std::pair(s[1], s[0]) : std::pair(s[0], s[1]);
  };
  auto [m, k] = matrix(a, getTransposeA());
  auto [k2, n] = matrix(b, getTransposeB());
  bool batch =
      (a.size() == 2 || a[0] == c[0]) && (b.size() == 2 || b[0] == c[0]);
  if (k != k2 || matrix(c, false) != std::pair(m, n) || !batch)
    return emitOpError("shapes ")
           << getLhs().getType() << ", " << getRhs().getType() << " and "
           << getInit().getType() << " do not fit";
  return verifyEpilogue(*this);
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto callee =
      symbols.lookupNearestSymbolFrom<func::FuncOp>(*this, getCalleeAttr());
  if (!callee)
    return emitOpError("calls ") << getCallee() << ", which is no function";
  if (callee.getNumArguments() != getInputs().size() + 2)
    return emitOpError("passes ")
           << getInputs().size() << " operands to a function of "
           << callee.getNumArguments() << " arguments, expected two less";
  return success();
}

#define GET_OP_CLASSES
#include "dialects/Kern/KernOps.cpp.inc"
