//===- LowerLoops.cpp - linalg and kern ops on buffers to loops -----------===//
//
// In: linalg ops, kern.matmul, kern.loops and memref.copy on memrefs of static
// layout. Out: scf.parallel outermost (what may run on threads), scf.for
// inside.
//
// A linalg op is seen as loops over linear addresses: each operand has one
// step per loop dimension. Dimensions that every operand walks as one are
// merged, then one dimension, contiguous for most operands, becomes the inner
// loop, which LLVM vectorises:
//
//   elementwise          parallel outer { for inner }, or one parallel loop
//   transposition        blocks of 32 x 32, so that lines of both sides stay
//                        in the cache
//   sum along rows       parallel { for inner, carried in a register }
//   sum along columns    parallel blocks of columns { for rows { for columns }
//   }
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Products.h"
#include "passes/Kernels/Cuda/RestoreRows.h"
#include "passes/Kernels/Lowering.h"
#include "passes/Kernels/Passes.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_LOWERLOOPSPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

/// Side of a block of a transposition, and columns of a block of a sum along
/// columns (a few cache lines, and sums that stay in the first-level cache).
static constexpr int64_t kTransposeBlock = 32;
static constexpr int64_t kColumnBlock = 256;

namespace {
/// A buffer as the loops see it.
struct Access {
  Value flat;                ///< memref<?xT> of one dimension
  SmallVector<int64_t> step; ///< elements per iteration of each dimension
  int64_t start = 0;
};

struct Dimension {
  int64_t size;
  bool isReduction;
};

/// The nest of one op.
struct Nest {
  SmallVector<Dimension> dims;
  SmallVector<Access> inputs, outputs;

  void merge();
  void dropUnits();
  int innermost() const;
  std::optional<int> transposedWith(int inner) const;
  template <typename Fn>
  void forEachAccess(Fn fn) {
    llvm::for_each(inputs, fn);
    llvm::for_each(outputs, fn);
  }
};
} // namespace

/// Reads a linear expression: coefficients by dimension and the constant.
static LogicalResult linearTerms(AffineExpr expr, int64_t factor,
                                 MutableArrayRef<int64_t> steps,
                                 int64_t &start) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
    steps[dim.getPosition()] += factor;
    return success();
  }
  if (auto constant = dyn_cast<AffineConstantExpr>(expr)) {
    start += factor * constant.getValue();
    return success();
  }
  auto binary = dyn_cast<AffineBinaryOpExpr>(expr);
  if (binary && binary.getKind() == AffineExprKind::Add)
    return success(
        succeeded(linearTerms(binary.getLHS(), factor, steps, start)) &&
        succeeded(linearTerms(binary.getRHS(), factor, steps, start)));
  if (binary && binary.getKind() == AffineExprKind::Mul)
    if (auto by = dyn_cast<AffineConstantExpr>(binary.getRHS()))
      return linearTerms(binary.getLHS(), factor * by.getValue(), steps, start);
  return failure();
}

/// Access of `buffer` at `map` of the loop dimensions.
static FailureOr<Access> accessOf(OpBuilder &builder, Location loc,
                                  Value buffer, AffineMap map) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)) ||
      ShapedType::isDynamic(offset) ||
      llvm::any_of(strides, ShapedType::isDynamic))
    return failure();
  Access access;
  access.step.assign(map.getNumDims(), 0);
  for (auto [expr, stride] : llvm::zip_equal(map.getResults(), strides))
    if (failed(linearTerms(expr, stride, access.step, access.start)))
      return failure();
  int64_t extent = 1;
  for (auto [dim, stride] : llvm::zip_equal(type.getShape(), strides))
    extent += (dim - 1) * stride;
  access.flat = memref::ReinterpretCastOp::create(
      builder, loc,
      MemRefType::get(
          {extent}, type.getElementType(),
          StridedLayoutAttr::get(builder.getContext(), offset, {1})),
      buffer, offset, ArrayRef<int64_t>{extent}, ArrayRef<int64_t>{1});
  return access;
}

void Nest::dropUnits() {
  for (size_t d = dims.size(); d-- > 0;) {
    if (dims[d].size != 1)
      continue;
    dims.erase(dims.begin() + d);
    forEachAccess([&](Access &a) { a.step.erase(a.step.begin() + d); });
  }
}

/// Joins neighbours that every operand walks as one dimension.
void Nest::merge() {
  for (size_t d = dims.size(); d-- > 1;) {
    bool joins = dims[d - 1].isReduction == dims[d].isReduction;
    int64_t size = dims[d].size;
    forEachAccess(
        [&](Access &a) { joins &= a.step[d - 1] == a.step[d] * size; });
    if (!joins)
      continue;
    dims[d - 1].size *= size;
    dims.erase(dims.begin() + d);
    forEachAccess([&](Access &a) {
      a.step[d - 1] = a.step[d];
      a.step.erase(a.step.begin() + d);
    });
  }
}

/// The dimension most operands walk contiguously; strides count against it.
/// Stores weigh more than loads, unless a sum keeps its output in registers.
int Nest::innermost() const {
  int best = -1, bestScore = 0;
  bool sums = llvm::any_of(dims, [](Dimension d) { return d.isReduction; });
  for (int d = 0, e = dims.size(); d < e; ++d) {
    int score = 0;
    auto count = [&](const Access &a, int weight) {
      if (a.step[d] == 1)
        score += 2 * weight;
      else if (a.step[d] != 0)
        score -= weight;
    };
    for (const Access &a : inputs)
      count(a, sums ? 2 : 1);
    for (const Access &a : outputs)
      count(a, sums ? 1 : 2);
    if (best < 0 || score >= bestScore)
      best = d, bestScore = score;
  }
  return best;
}

/// A parallel dimension that an operand walks contiguously while it jumps
/// along the inner one.
std::optional<int> Nest::transposedWith(int inner) const {
  for (const auto *list : {&inputs, &outputs})
    for (const Access &a : *list)
      if (a.step[inner] != 0 && std::abs(a.step[inner]) != 1)
        for (int d = 0, e = dims.size(); d < e; ++d)
          if (d != inner && a.step[d] == 1 && !dims[d].isReduction &&
              dims[d].size > 1)
            return d;
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Emission
//===----------------------------------------------------------------------===//

namespace {
/// Writes the loops of a nest. `body` maps loaded inputs and the outputs' old
/// values (empty for a pure elementwise nest) to the new values.
class NestEmitter {
public:
  using BodyFn = llvm::function_ref<SmallVector<Value>(ValueRange, ValueRange)>;
  NestEmitter(LoopBuilder &b, Nest &nest, bool readsOutputs, BodyFn body)
      : b(b), nest(nest), readsOutputs(readsOutputs), body(body),
        ivs(nest.dims.size()) {}
  void emit();

private:
  Value address(const Access &access);
  SmallVector<Value> loadAll(ArrayRef<Access> accesses);
  void storeAll(ValueRange values);
  void point();
  void carriedSum(ArrayRef<int> order);
  void blocks(ArrayRef<int> outer, ArrayRef<std::pair<int, int64_t>> blocked,
              llvm::function_ref<void()> inside);
  void within(int dim, int64_t block, Value base,
              llvm::function_ref<void()> inside);

  LoopBuilder &b;
  Nest &nest;
  bool readsOutputs;
  BodyFn body;
  SmallVector<Value> ivs; ///< by dimension; null outside its loop
};
} // namespace

Value NestEmitter::address(const Access &access) {
  Value sum;
  for (auto [iv, step] : llvm::zip_equal(ivs, access.step)) {
    if (step == 0 || !iv)
      continue;
    Value term = step == 1 ? iv : b.mul(iv, b.index(step));
    sum = sum ? b.add(sum, term) : term;
  }
  if (!sum)
    return b.index(access.start);
  return access.start ? b.add(sum, b.index(access.start)) : sum;
}

SmallVector<Value> NestEmitter::loadAll(ArrayRef<Access> accesses) {
  SmallVector<Value> values;
  for (const Access &access : accesses)
    values.push_back(
        memref::LoadOp::create(b.builder, b.loc, access.flat, address(access)));
  return values;
}

void NestEmitter::storeAll(ValueRange values) {
  for (auto [access, value] : llvm::zip_equal(nest.outputs, values))
    memref::StoreOp::create(b.builder, b.loc, value, access.flat,
                            address(access));
}

void NestEmitter::point() {
  SmallVector<Value> inputs = loadAll(nest.inputs);
  SmallVector<Value> old;
  if (readsOutputs)
    old = loadAll(nest.outputs);
  storeAll(body(inputs, old));
}

/// Loops over reductions with the outputs in registers.
void NestEmitter::carriedSum(ArrayRef<int> order) {
  std::function<SmallVector<Value>(ArrayRef<int>, ValueRange)> run =
      [&](ArrayRef<int> rest, ValueRange sums) {
        if (rest.empty())
          return body(loadAll(nest.inputs), sums);
        int dim = rest.front();
        SmallVector<Value> result = b.carry(
            nest.dims[dim].size, sums, [&](Value iv, ValueRange carried) {
              ivs[dim] = iv;
              return run(rest.drop_front(), carried);
            });
        ivs[dim] = Value();
        return result;
      };
  SmallVector<Value> first = loadAll(nest.outputs);
  storeAll(run(order, first));
}

/// A parallel loop over `outer` and over the blocks of `blocked` dimensions;
/// for those, ivs holds the first index of the block.
void NestEmitter::blocks(ArrayRef<int> outer,
                         ArrayRef<std::pair<int, int64_t>> blocked,
                         llvm::function_ref<void()> inside) {
  SmallVector<int64_t> sizes;
  for (int dim : outer)
    sizes.push_back(nest.dims[dim].size);
  for (auto [dim, block] : blocked)
    sizes.push_back((nest.dims[dim].size + block - 1) / block);
  b.parallel(sizes, [&](ValueRange indices) {
    for (auto [dim, iv] :
         llvm::zip_equal(outer, indices.take_front(outer.size())))
      ivs[dim] = iv;
    for (auto [entry, iv] :
         llvm::zip_equal(blocked, indices.drop_front(outer.size())))
      ivs[entry.first] = b.mul(iv, b.index(entry.second));
    inside();
  });
}

/// Loop over a block that starts at `base`, cut at the dimension's end.
void NestEmitter::within(int dim, int64_t block, Value base,
                         llvm::function_ref<void()> inside) {
  int64_t size = nest.dims[dim].size;
  Value end = b.add(base, b.index(block));
  if (size % block)
    end = arith::MinSIOp::create(b.builder, b.loc, end, b.index(size));
  auto loop = scf::ForOp::create(b.builder, b.loc, base, end, b.index(1));
  OpBuilder::InsertionGuard guard(b.builder);
  b.builder.setInsertionPoint(loop.getBody()->getTerminator());
  ivs[dim] = loop.getInductionVar();
  inside();
  ivs[dim] = base;
}

void NestEmitter::emit() {
  if (nest.dims.empty())
    return point();
  int inner = nest.innermost();
  SmallVector<int> outer, reductions;
  for (int d = 0, e = nest.dims.size(); d < e; ++d) {
    if (nest.dims[d].isReduction)
      reductions.push_back(d);
    else if (d != inner)
      outer.push_back(d);
  }
  if (nest.dims[inner].isReduction) {
    // The inner dimension is the last of the reductions.
    llvm::erase(reductions, inner);
    reductions.push_back(inner);
    return blocks(outer, {}, [&] { carriedSum(reductions); });
  }
  if (!reductions.empty()) {
    std::pair<int, int64_t> columns(inner, kColumnBlock);
    return blocks(outer, columns, [&] {
      Value base = ivs[inner];
      std::function<void(ArrayRef<int>)> rows = [&](ArrayRef<int> rest) {
        if (rest.empty())
          return within(inner, kColumnBlock, base, [&] { point(); });
        b.loop(nest.dims[rest.front()].size, [&](Value iv) {
          ivs[rest.front()] = iv;
          rows(rest.drop_front());
        });
      };
      rows(reductions);
    });
  }
  if (std::optional<int> other = nest.transposedWith(inner)) {
    llvm::erase(outer, *other);
    std::pair<int, int64_t> both[] = {{*other, kTransposeBlock},
                                      {inner, kTransposeBlock}};
    return blocks(outer, both, [&] {
      Value base = ivs[inner];
      within(*other, kTransposeBlock, ivs[*other],
             [&] { within(inner, kTransposeBlock, base, [&] { point(); }); });
    });
  }
  // One dimension: the threads' chunks are ranges of the vectorised loop.
  if (outer.empty())
    return blocks(inner, {}, [&] { point(); });
  blocks(outer, {}, [&] {
    b.loop(nest.dims[inner].size, [&](Value iv) {
      ivs[inner] = iv;
      point();
    });
  });
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

static LogicalResult lowerLinalg(linalg::LinalgOp op) {
  OpBuilder builder(op);
  Block &block = op->getRegion(0).front();
  if (!op.hasPureBufferSemantics() || op.hasDynamicShape() ||
      !block.getOps<linalg::IndexOp>().empty())
    return op->emitOpError("is not a loop nest of static buffers");
  Nest nest;
  for (auto [size, kind] :
       llvm::zip_equal(op.getStaticLoopRanges(), op.getIteratorTypesArray()))
    nest.dims.push_back({size, kind == utils::IteratorType::reduction});
  // An empty tensor needs no loop.
  for (Dimension dim : nest.dims)
    if (dim.size == 0)
      return op->erase(), success();
  // Block arguments by where they come from: scalars, inputs, outputs.
  IRMapping scalars;
  SmallVector<BlockArgument> inputArguments, outputArguments;
  for (OpOperand &operand : op->getOpOperands()) {
    BlockArgument argument = op.getMatchingBlockArgument(&operand);
    if (!isa<MemRefType>(operand.get().getType())) {
      scalars.map(argument, operand.get());
      continue;
    }
    bool isOutput = op.isDpsInit(&operand);
    if (!isOutput && argument.use_empty())
      continue;
    auto access = accessOf(builder, op.getLoc(), operand.get(),
                           op.getMatchingIndexingMap(&operand));
    if (failed(access))
      return op->emitOpError("accesses a buffer whose layout is not static");
    (isOutput ? nest.outputs : nest.inputs).push_back(*access);
    (isOutput ? outputArguments : inputArguments).push_back(argument);
  }
  bool readsOutputs = llvm::any_of(outputArguments, [](BlockArgument argument) {
    return !argument.use_empty();
  });
  nest.dropUnits();
  nest.merge();

  LoopBuilder loops(builder, op.getLoc());
  auto body = [&](ValueRange inputs, ValueRange old) {
    IRMapping mapping(scalars);
    mapping.map(inputArguments, inputs);
    if (!old.empty())
      mapping.map(outputArguments, old);
    for (Operation &inner : block.without_terminator())
      builder.clone(inner, mapping);
    SmallVector<Value> results;
    for (Value value : block.getTerminator()->getOperands())
      results.push_back(mapping.lookupOrDefault(value));
    return results;
  };
  NestEmitter(loops, nest, readsOutputs, body).emit();
  op->erase();
  return success();
}

static LogicalResult lowerCopy(memref::CopyOp op) {
  OpBuilder builder(op);
  auto type = cast<MemRefType>(op.getSource().getType());
  AffineMap map = builder.getMultiDimIdentityMap(type.getRank());
  auto from = accessOf(builder, op.getLoc(), op.getSource(), map);
  auto to = accessOf(builder, op.getLoc(), op.getTarget(), map);
  if (failed(from) || failed(to))
    return op.emitOpError("copies a buffer whose layout is not static");
  Nest nest;
  for (int64_t size : type.getShape())
    nest.dims.push_back({size, false});
  nest.inputs.push_back(*from);
  nest.outputs.push_back(*to);
  nest.dropUnits();
  nest.merge();
  LoopBuilder loops(builder, op.getLoc());
  if (type.getNumElements() != 0)
    NestEmitter(loops, nest, false, [](ValueRange in, ValueRange) {
      return SmallVector<Value>(in);
    }).emit();
  op.erase();
  return success();
}

/// Indices of an element of a product's matrix.
static SmallVector<Value> at(Value buffer, Value batch, Value row, Value column,
                             bool transposed) {
  if (transposed)
    std::swap(row, column);
  SmallVector<Value> indices{row, column};
  if (cast<MemRefType>(buffer.getType()).getRank() == 3)
    indices.insert(indices.begin(), batch);
  return indices;
}

/// Any product with an epilogue, more slowly: one element of c after the other,
/// whose sum is wider than c may be.
static void lowerFused(kern::MatmulOp op) {
  OpBuilder builder(op);
  LoopBuilder b(builder, op.getLoc());
  auto sizes = op.getSizes();
  Value a = op.getLhs(), w = op.getRhs(), c = op.getInit();
  Type type = computeType(elementOf(c));
  b.parallel({sizes.batch, sizes.m, sizes.n}, [&](ValueRange ivs) {
    Value sum = b.fold(sizes.k, b.constant(type, 0), [&](Value k, Value sum) {
      Value x = b.load(a, at(a, ivs[0], ivs[1], k, op.getTransposeA()));
      Value y = b.load(w, at(w, ivs[0], k, ivs[2], op.getTransposeB()));
      return b.fma(b.cast(x, type, false, false), b.cast(y, type, false, false),
                   sum);
    });
    double alpha = op.getAlpha().convertToDouble();
    if (alpha != 1)
      sum = b.mul(sum, b.constant(type, alpha));
    SmallVector<Value> target = at(c, ivs[0], ivs[1], ivs[2], false);
    if (Value addend = op.getAddend())
      sum = b.add(sum, b.load(addend, target));
    if (Value bias = op.getBias())
      sum = b.add(sum, b.load(bias, ivs[2]));
    b.store(op.getGelu() ? geluTanh(b, sum) : sum, c, target);
  });
  op.erase();
}

/// Any product, slowly: a row of c is summed in place, k outside.
static void lowerMatmul(kern::MatmulOp op) {
  if (op.hasEpilogue())
    return lowerFused(op);
  OpBuilder builder(op);
  LoopBuilder b(builder, op.getLoc());
  auto sizes = op.getSizes();
  Value a = op.getLhs(), w = op.getRhs(), c = op.getInit();
  Type type = elementOf(c);
  b.parallel({sizes.batch, sizes.m}, [&](ValueRange ivs) {
    Value zero = b.constant(type, 0);
    b.loop(sizes.n,
           [&](Value j) { b.store(zero, c, at(c, ivs[0], ivs[1], j, false)); });
    b.loop(sizes.k, [&](Value k) {
      Value x = b.load(a, at(a, ivs[0], ivs[1], k, op.getTransposeA()));
      x = b.cast(x, type, false, false);
      b.loop(sizes.n, [&](Value j) {
        Value y = b.load(w, at(w, ivs[0], k, j, op.getTransposeB()));
        y = b.cast(y, type, false, false);
        SmallVector<Value> target = at(c, ivs[0], ivs[1], j, false);
        b.store(b.fma(x, y, b.load(c, target)), c, target);
      });
    });
  });
  op.erase();
}

/// Puts the region in the op's place.
static void inlineLoops(kern::LoopsOp op) {
  Block &body = op.getBody().front();
  for (auto [argument, buffer] :
       llvm::zip_equal(body.getArguments(), op->getOperands()))
    argument.replaceAllUsesWith(buffer);
  op->getBlock()->getOperations().splice(op->getIterator(),
                                         body.getOperations());
  op.erase();
}

static LogicalResult lowerFunction(func::FuncOp function, bool keepProducts) {
  SmallVector<Operation *> ops;
  for (Operation &op : function.getBody().front())
    ops.push_back(&op);
  for (Operation *op : ops) {
    LogicalResult result = success();
    if (auto loops = dyn_cast<kern::LoopsOp>(op)) {
      if (keepProducts) // for GPUs
        restoreRows(loops.getBody().front());
      inlineLoops(loops);
    } else if (auto matmul = dyn_cast<kern::MatmulOp>(op)) {
      if (!keepProducts || !isLibraryProduct(matmul))
        lowerMatmul(matmul);
    } else if (auto copy = dyn_cast<memref::CopyOp>(op))
      result = lowerCopy(copy);
    else if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op))
      result = lowerLinalg(linalgOp);
    else if (isa<kern::AttentionOp, kern::AttentionGradOp>(op) && !keepProducts)
      result = op->emitOpError("was left by kern-lower-matmul: no kernel for "
                               "these operands");
    if (failed(result))
      return failure();
  }
  return success();
}

namespace {
struct LowerLoopsPass : mgq::kernels::impl::LowerLoopsPassBase<LowerLoopsPass> {
  using Base::Base;

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function->hasAttr(nn::kLayerAttr) && !function.isExternal() &&
          failed(lowerFunction(function, keepProducts)))
        return signalPassFailure();
  }
};
} // namespace
