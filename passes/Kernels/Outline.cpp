//===- Outline.cpp - Each loop nest becomes a function --------------------===//
//
// In: layer functions whose top level holds loops on memrefs (roots:
// arguments, memref.alloc, memref.get_global), views of roots and little else.
// Out: every top-level loop nest is a function of its own and a kern.launch:
//
//   scf.parallel (%i, %j) = (0, 0) to (64, 8) { ... %x ... %y ... }
// becomes
//   kern.launch @f.0(%x, %y : ...) size 512 chunk 128
//   func private @f.0(%x {noalias}, %y {noalias}, %begin: index, %end: index) {
//     scf.for %ij = %begin to %end { %i, %j = ...; ... }
//   }
//
// Two reasons. Threads: a launch is cut into chunks by the work it does, which
// is known from static shapes. Aliasing: roots are different memory while a
// nest runs (the planner never overlaps live buffers), so as arguments they are
// noalias, and LLVM vectorises without run-time checks, whose outcome would
// decide about the order of a sum.
//
// Views and constants are cloned into the nest; scalars are passed.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Passes.h"

#include "mlir/Interfaces/ViewLikeInterface.h"
#include "mlir/Transforms/RegionUtils.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_OUTLINEPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;

/// Work of a chunk, in scalar operations: some 10 us, so that a launch (1 us)
/// is small beside it. Chunks are many enough to balance threads.
static constexpr double kChunkWork = 1 << 16;
static constexpr int64_t kMaxChunks = 256;
/// Chunks of one long loop end at cache lines.
static constexpr int64_t kChunkAlignment = 64;

/// Trip count where it is constant; bounds of blocks vary, take a guess.
static double tripCount(scf::ForOp loop) {
  auto lower = getConstantIntValue(loop.getLowerBound());
  auto upper = getConstantIntValue(loop.getUpperBound());
  return lower && upper ? double(*upper - *lower) : 64.0;
}

/// Scalar operations of one run of a region.
static double workOf(Region &region) {
  double work = 0;
  for (Operation &op : region.getOps()) {
    double inside =
        isa<math::MathDialect>(op.getDialect()) && !isa<math::FmaOp>(op) ? 16
                                                                         : 1;
    // What a call does is for its chooser to weigh; it is not little.
    if (isa<func::CallOp>(op))
      inside = 4096;
    for (Region &nested : op.getRegions())
      inside += workOf(nested);
    if (auto loop = dyn_cast<scf::ForOp>(op))
      inside *= tripCount(loop);
    work += inside;
  }
  return work;
}

/// Iterations of a parallel loop that starts at 0 with step 1.
static SmallVector<int64_t> sizesOf(scf::ParallelOp loop) {
  SmallVector<int64_t> sizes;
  for (Value bound : loop.getUpperBound())
    sizes.push_back(getConstantIntValue(bound).value());
  return sizes;
}

static int64_t chunkOf(scf::ParallelOp loop, int64_t size) {
  double work = workOf(loop.getRegion()) * size;
  int64_t chunks =
      std::clamp<int64_t>(int64_t(work / kChunkWork), 1,
                          std::min(kMaxChunks, std::max<int64_t>(size, 1)));
  int64_t chunk = (size + chunks - 1) / chunks;
  if (loop.getNumLoops() == 1 && chunk > kChunkAlignment)
    chunk = (chunk + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  return std::max<int64_t>(chunk, 1);
}

/// Whether an op is repeated inside a nest rather than passed to it.
static bool isCloned(Operation *op) {
  return isa<ViewLikeOpInterface>(op) ||
         op->hasTrait<OpTrait::ConstantLike>() || isa<LLVM::AddressOfOp>(op);
}

namespace {
/// What a nest uses from outside.
struct Captures {
  llvm::SetVector<Value> passed;       ///< roots and scalars
  llvm::SetVector<Operation *> cloned; ///< in dominance order
};
} // namespace

static void capture(Value value, Captures &captures) {
  Operation *op = value.getDefiningOp();
  if (!op || !isCloned(op)) {
    captures.passed.insert(value);
    return;
  }
  if (captures.cloned.contains(op))
    return;
  for (Value operand : op->getOperands())
    capture(operand, captures);
  captures.cloned.insert(op);
}

/// Replaces `loop` by a sequential one over linear indices [begin, end).
static void linearize(scf::ParallelOp loop, Value begin, Value end) {
  OpBuilder builder(loop);
  Location loc = loop.getLoc();
  Value one = arith::ConstantIndexOp::create(builder, loc, 1);
  auto linear = scf::ForOp::create(builder, loc, begin, end, one);
  SmallVector<int64_t> sizes = sizesOf(loop);
  builder.setInsertionPointToStart(linear.getBody());
  SmallVector<Value> ivs(sizes.size());
  Value rest = linear.getInductionVar();
  for (size_t i = sizes.size(); i-- > 1;) {
    Value size = arith::ConstantIndexOp::create(builder, loc, sizes[i]);
    ivs[i] = arith::RemUIOp::create(builder, loc, rest, size);
    rest = arith::DivUIOp::create(builder, loc, rest, size);
  }
  ivs[0] = rest;
  Block *body = loop.getBody();
  body->getTerminator()->erase();
  for (auto [argument, iv] : llvm::zip_equal(body->getArguments(), ivs))
    argument.replaceAllUsesWith(iv);
  linear.getBody()->getOperations().splice(
      linear.getBody()->getTerminator()->getIterator(), body->getOperations());
  loop.erase();
}

/// Stack blocks must not grow with the trip count.
static void hoistStackBlocks(func::FuncOp nest) {
  Block &entry = nest.getBody().front();
  nest.walk([&](memref::AllocaOp alloca) {
    if (alloca.getDynamicSizes().empty())
      alloca->moveBefore(&entry, entry.begin());
  });
}

/// Moves the loop `op` into a function and launches that.
static void outline(Operation *op, func::FuncOp layer, unsigned number) {
  Captures captures;
  auto addOperands = [&](Operation *inner) {
    for (Value operand : inner->getOperands())
      if (!op->isAncestor(operand.getParentBlock()->getParentOp()))
        capture(operand, captures);
  };
  op->walk(addOperands);

  OpBuilder builder(layer);
  Location loc = op->getLoc();
  SmallVector<Value> passed = captures.passed.takeVector();
  SmallVector<Type> types(ValueRange(passed).getTypes());
  types.append(2, builder.getIndexType());
  std::string name =
      (layer.getName() + ".loop." + std::to_string(number)).str();
  auto nest = func::FuncOp::create(builder, loc, name,
                                   builder.getFunctionType(types, {}));
  nest.setPrivate();
  Block *entry = nest.addEntryBlock();
  IRMapping mapping;
  for (auto [i, value] : llvm::enumerate(passed)) {
    mapping.map(value, entry->getArgument(i));
    if (isa<MemRefType>(value.getType()))
      nest.setArgAttr(i, LLVM::LLVMDialect::getNoAliasAttrName(),
                      builder.getUnitAttr());
  }

  int64_t size = 1, chunk = 1;
  auto parallel = dyn_cast<scf::ParallelOp>(op);
  if (parallel) {
    for (int64_t extent : sizesOf(parallel))
      size *= extent;
    chunk = chunkOf(parallel, size);
  }
  builder.setInsertionPoint(op);
  kern::LaunchOp::create(builder, loc, name, passed, size, chunk);

  builder.setInsertionPointToStart(entry);
  for (Operation *cloned : captures.cloned)
    builder.clone(*cloned, mapping);
  func::ReturnOp::create(builder, loc);
  op->moveBefore(entry->getTerminator());
  op->walk([&](Operation *inner) {
    for (OpOperand &operand : inner->getOpOperands())
      operand.set(mapping.lookupOrDefault(operand.get()));
  });
  unsigned count = entry->getNumArguments();
  if (parallel)
    linearize(parallel, entry->getArgument(count - 2),
              entry->getArgument(count - 1));
  hoistStackBlocks(nest);
}

/// Parallel loops inside nests run on the thread they are on.
static void serializeInner(func::FuncOp layer) {
  SmallVector<scf::ParallelOp> inner;
  layer.walk([&](scf::ParallelOp loop) {
    if (loop->getParentOp() != layer)
      inner.push_back(loop);
  });
  for (scf::ParallelOp loop : inner) {
    OpBuilder builder(loop);
    int64_t size = 1;
    for (int64_t extent : sizesOf(loop))
      size *= extent;
    linearize(loop, arith::ConstantIndexOp::create(builder, loop.getLoc(), 0),
              arith::ConstantIndexOp::create(builder, loop.getLoc(), size));
  }
}

namespace {
struct OutlinePass : mgq::kernels::impl::OutlinePassBase<OutlinePass> {
  void runOnOperation() override {
    for (auto layer : llvm::to_vector(getOperation().getOps<func::FuncOp>())) {
      if (!layer->hasAttr(nn::kLayerAttr) || layer.isExternal())
        continue;
      serializeInner(layer);
      unsigned number = 0;
      for (Operation &op : llvm::make_early_inc_range(layer.getBody().front()))
        if (isa<scf::ParallelOp, scf::ForOp, scf::IfOp>(op))
          if (op.getNumResults() == 0 || op.use_empty())
            outline(&op, layer, number++);
    }
  }
};
} // namespace
