//===- FuseEpilogues.cpp - Products do what follows them ------------------===//
//
// In: linalg.generic ops on tensors as kern-fuse-elementwise leaves them. After
// it, one whose result is a sum of products, perhaps scaled by constants, and
// of at most one matrix and one bias, perhaps under a tanh GELU and rounded to
// the type of the factors, is part of the products:
//
//   %p = kern.matmul ins(%x, %w) outs(%e)
//   %y = linalg.generic ins(%bias, %x) outs(%p) { %out + %in + %in_0 }
// becomes
//   %y = kern.matmul ins(%x, %w) add(%x) bias(%bias) outs(%e)
//
// Several products become a chain: each adds the one before it.
//
// cuBLASLt (CUDA 13, cublasLtMatmul, table of supported types) takes an addend
// and a bias of the type of the result; narrow results have factors of their
// type; f64 has no bias and no GELU. An op that needs more is left alone.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Passes.h"

#include "dialects/Kern/Kern.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDAFUSEEPILOGUESPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

static std::optional<double> constantOf(Value value) {
  FloatAttr attribute;
  if (!matchPattern(value, m_Constant(&attribute)))
    return std::nullopt;
  return attribute.getValueAsDouble();
}

/// The other operand of an OpTy with a constant operand; null for other values.
template <typename OpTy>
static Value besideConstant(Value value, double &constant) {
  auto op = value.getDefiningOp<OpTy>();
  if (!op)
    return Value();
  for (bool second : {false, true})
    if (auto found = constantOf(op->getOperand(second ? 1 : 0))) {
      constant = *found;
      return op->getOperand(second ? 0 : 1);
    }
  return Value();
}

/// The same where the constant is `wanted`, as f32 has it.
template <typename OpTy>
static Value besideConstantOf(Value value, double wanted) {
  double constant = 0;
  Value other = besideConstant<OpTy>(value, constant);
  bool isIt = static_cast<float>(constant) == static_cast<float>(wanted);
  return isIt ? other : Value();
}

/// Whether `value` is x * x * x.
static bool isCube(Value value, Value x) {
  auto outer = value.getDefiningOp<arith::MulFOp>();
  if (!outer)
    return false;
  Value square = outer.getLhs() == x ? outer.getRhs() : outer.getLhs();
  auto inner = square.getDefiningOp<arith::MulFOp>();
  return (outer.getLhs() == x || outer.getRhs() == x) && inner &&
         inner.getLhs() == x && inner.getRhs() == x;
}

/// Whether `value` is 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)).
static bool isGeluFactor(Value value, Value x) {
  Value curve = besideConstantOf<arith::AddFOp>(value, 1);
  auto tanh = curve ? curve.getDefiningOp<math::TanhOp>() : math::TanhOp();
  if (!tanh)
    return false;
  Value inner = besideConstantOf<arith::MulFOp>(tanh.getOperand(),
                                                0.79788456080286535588);
  auto sum = inner ? inner.getDefiningOp<arith::AddFOp>() : arith::AddFOp();
  if (!sum || (sum.getLhs() != x && sum.getRhs() != x))
    return false;
  Value rest = sum.getLhs() == x ? sum.getRhs() : sum.getLhs();
  Value cube = besideConstantOf<arith::MulFOp>(rest, 0.044715);
  return cube && isCube(cube, x);
}

/// x where `value` is the tanh approximation of GELU of x (Lowering.h), else
/// null.
static Value geluOperand(Value value) {
  auto product = value.getDefiningOp<arith::MulFOp>();
  if (!product)
    return Value();
  for (bool second : {false, true}) {
    Value half = product->getOperand(second ? 1 : 0);
    Value x = besideConstantOf<arith::MulFOp>(half, 0.5);
    if (x && isGeluFactor(product->getOperand(second ? 0 : 1), x))
      return x;
  }
  return Value();
}

//===----------------------------------------------------------------------===//
// What an op adds
//===----------------------------------------------------------------------===//

namespace {
struct Term {
  kern::MatmulOp product;
  double alpha;
};

/// An elementwise op, read as what products can do.
class Epilogue {
public:
  explicit Epilogue(linalg::GenericOp op)
      : op(op), result(getElementTypeOrSelf(op->getResult(0).getType())) {}

  /// Whether products can do it; false for most ops.
  bool read();
  void rewrite();

private:
  bool readSum(Value value);
  bool readLeaf(Value value, double alpha);
  bool readBias(Value operand, AffineMap map);
  bool isSupported();

  linalg::GenericOp op;
  Type result; ///< of an element
  SmallVector<Term> products;
  Value addend, bias;
  bool gelu = false;
};
} // namespace

/// A product that nothing else reads, and that does nothing else yet.
static kern::MatmulOp plainProduct(Value value) {
  auto product = value.getDefiningOp<kern::MatmulOp>();
  return product && value.hasOneUse() && !product.hasEpilogue()
             ? product
             : kern::MatmulOp();
}

/// Whether a value is part of a larger one, of which its buffer is a view that
/// may begin anywhere.
static bool isPart(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<tensor::CollapseShapeOp, tensor::ExpandShapeOp>(op))
      return isa<tensor::ExtractSliceOp>(op);
    value = op->getOperand(0);
  }
  return false;
}

/// One element per column: `map` is (0, ..., 0, last dimension).
bool Epilogue::readBias(Value operand, AffineMap map) {
  auto type = cast<RankedTensorType>(operand.getType());
  int64_t columns =
      cast<ShapedType>(op->getResult(0).getType()).getShape().back();
  unsigned last = op.getNumLoops() - 1;
  if (bias || type.getRank() == 0 || type.getNumElements() != columns ||
      map.getResults().back() != getAffineDimExpr(last, op.getContext()))
    return false;
  bias = operand;
  return true;
}

bool Epilogue::readLeaf(Value value, double alpha) {
  if (auto widened = value.getDefiningOp<arith::ExtFOp>())
    value = widened.getIn();
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument || argument.getOwner() != op.getBody())
    return false;
  OpOperand &operand = op->getOpOperand(argument.getArgNumber());
  if (!isa<RankedTensorType>(operand.get().getType()))
    return false;
  AffineMap map = op.getMatchingIndexingMap(&operand);
  if (map.isIdentity())
    if (kern::MatmulOp product = plainProduct(operand.get())) {
      bool isNew = llvm::none_of(
          products, [&](const Term &term) { return term.product == product; });
      products.push_back({product, alpha});
      return isNew &&
             getElementTypeOrSelf(product.getInit().getType()).isF64() ==
                 result.isF64();
    }
  if (alpha != 1 || getElementTypeOrSelf(operand.get().getType()) != result ||
      isPart(operand.get()))
    return false;
  if (!map.isIdentity())
    return readBias(operand.get(), map);
  if (addend)
    return false;
  addend = operand.get();
  return true;
}

bool Epilogue::readSum(Value value) {
  if (auto sum = value.getDefiningOp<arith::AddFOp>())
    return readSum(sum.getLhs()) && readSum(sum.getRhs());
  double alpha = 1;
  if (Value scaled = besideConstant<arith::MulFOp>(value, alpha))
    return readLeaf(scaled, alpha);
  return readLeaf(value, 1);
}

/// What cuBLASLt has, by types.
bool Epilogue::isSupported() {
  if (result.isF64())
    return !bias && !gelu;
  if (result.isF32())
    return true;
  if (products.size() != 1)
    return false;
  kern::MatmulOp product = products.front().product;
  return getElementTypeOrSelf(product.getLhs().getType()) == result &&
         getElementTypeOrSelf(product.getRhs().getType()) == result;
}

bool Epilogue::read() {
  if (op.getNumResults() != 1 || op.getNumReductionLoops() != 0 ||
      op.getNumLoops() < 2 || !isa<FloatType>(result) ||
      !op.getIndexingMapsArray().back().isIdentity())
    return false;
  Value value = op.getBody()->getTerminator()->getOperand(0);
  if (auto rounded = value.getDefiningOp<arith::TruncFOp>())
    value = rounded.getIn();
  if (Value inner = geluOperand(value)) {
    gelu = true;
    value = inner;
  }
  return readSum(value) && !products.empty() && isSupported();
}

/// The later of two values; block arguments are there from the start.
static Operation *later(Operation *op, Value value) {
  Operation *other = value ? value.getDefiningOp() : nullptr;
  return other && op->isBeforeInBlock(other) ? other : op;
}

void Epilogue::rewrite() {
  llvm::sort(products, [](Term a, Term b) {
    return a.product->isBeforeInBlock(b.product);
  });
  Type type = op->getResult(0).getType();
  Location loc = op.getLoc();
  Value sum = addend;
  for (Term &term : products) {
    kern::MatmulOp product = term.product;
    bool isLast = &term == &products.back();
    OpBuilder b(op);
    // Others stay where they are, so that what they read need not live longer.
    if (!isLast)
      b.setInsertionPointAfter(later(product, sum));
    Value init = product.getInit(), vector;
    if (init.getType() != type)
      init = tensor::EmptyOp::create(
          b, loc, cast<RankedTensorType>(type).getShape(), result);
    if (isLast && bias) {
      vector = bias;
      int64_t rank = cast<ShapedType>(bias.getType()).getRank();
      if (rank > 1)
        vector = tensor::CollapseShapeOp::create(
            b, loc, bias,
            ReassociationIndices(llvm::to_vector(llvm::seq<int64_t>(0, rank))));
    }
    auto unit = [&](bool set) { return set ? b.getUnitAttr() : UnitAttr(); };
    sum =
        kern::MatmulOp::create(
            b, FusedLoc::get(b.getContext(), {product.getLoc(), loc}),
            TypeRange(type), product.getLhs(), product.getRhs(), sum, vector,
            init, unit(product.getTransposeA()), unit(product.getTransposeB()),
            unit(isLast && gelu), b.getF64FloatAttr(term.alpha))
            .getResult(0);
  }
  op->getResult(0).replaceAllUsesWith(sum);
  op.erase();
  for (Term &term : products)
    term.product.erase();
}

namespace {
struct CudaFuseEpiloguesPass
    : kernels::impl::CudaFuseEpiloguesPassBase<CudaFuseEpiloguesPass> {
  void runOnOperation() override {
    SmallVector<linalg::GenericOp> ops;
    getOperation().walk([&](linalg::GenericOp op) {
      if (op.hasPureTensorSemantics())
        ops.push_back(op);
    });
    for (linalg::GenericOp op : ops)
      if (Epilogue epilogue(op); epilogue.read())
        epilogue.rewrite();
  }
};
} // namespace
