//===- PlanLanes.cpp - Which loops of a row lanes may share ---------------===//
//
// A loop is cut if each carried value is a sum (or maximum, ...) whose order is
// free, and if no two iterations touch the same element of a buffer that the
// loop writes. The second is shown for one dimension of the buffer, in which
// every access of the loop has the index
//
//   factor * iteration + (the same values from outside) + constant
//
// with one factor, and constants such that no two iterations meet: softmax has
// j, rotary embedding j and j + half, or 2 j and 2 j + 1.
//
// All else in the row is done by every lane alike, but for stores, which lane 0
// does. Where an element that one lane wrote is touched by another, lanes wait
// for each other in between. Two cut loops that have the same index in that
// dimension and the same first iteration give each element to the same lane,
// and need not wait; nor do runs of one cut loop, if that index is the same in
// each of them (a window of a pool moves on: it is not).
//
// If a loop that stores cannot be cut, the row has one lane.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Distribute.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

#include <map>

using namespace mlir;
using namespace mgq::kernels;

/// Rows of at most this many elements are summed by one thread.
static constexpr int64_t kSmallSum = 16;
/// Rows of more elements than this get a block of threads, ...
static constexpr int64_t kLongRow = 1024;
static constexpr int64_t kBlockLanes = 256;
/// ... and of more than this, a larger one.
static constexpr int64_t kVeryLongRow = 16384;
static constexpr int64_t kLargeBlockLanes = 512;

namespace {
/// factor * iteration + terms (value -> factor) + constant.
struct Linear {
  int64_t factor = 0, constant = 0;
  std::map<void *, int64_t> terms;
};

/// An element access of the row.
struct Access {
  Operation *op;
  Value buffer; ///< as accessed
  Value root;   ///< the kernel's argument it is a view of
  bool isStore;
  ValueRange indices;
  scf::ForOp loop; ///< the cut loop it is in; null: all lanes do it
};
} // namespace

static Value rootOf(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewLikeOpInterface>())
    buffer = view.getViewSource();
  return buffer;
}

static std::optional<Access> accessOf(Operation *op) {
  if (auto load = dyn_cast<memref::LoadOp>(op))
    return Access{op,    load.getMemRef(),  rootOf(load.getMemRef()),
                  false, load.getIndices(), {}};
  if (auto store = dyn_cast<memref::StoreOp>(op))
    return Access{op,   store.getMemRef(),  rootOf(store.getMemRef()),
                  true, store.getIndices(), {}};
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Indices
//===----------------------------------------------------------------------===//

static std::optional<int64_t> constantOf(Value value) {
  return getConstantIntValue(value);
}

/// Reads `value` as a linear function of `iteration`; false if it is none.
static bool addLinear(Value value, int64_t factor, scf::ForOp loop,
                      Linear &result) {
  if (value == loop.getInductionVar()) {
    result.factor += factor;
    return true;
  }
  if (auto constant = constantOf(value)) {
    result.constant += factor * *constant;
    return true;
  }
  if (!loop->isAncestor(value.getParentBlock()->getParentOp())) {
    result.terms[value.getAsOpaquePointer()] += factor;
    return true;
  }
  Operation *op = value.getDefiningOp();
  if (!op)
    return false;
  if (auto add = dyn_cast<arith::AddIOp>(op))
    return addLinear(add.getLhs(), factor, loop, result) &&
           addLinear(add.getRhs(), factor, loop, result);
  if (auto sub = dyn_cast<arith::SubIOp>(op))
    return addLinear(sub.getLhs(), factor, loop, result) &&
           addLinear(sub.getRhs(), -factor, loop, result);
  if (auto mul = dyn_cast<arith::MulIOp>(op)) {
    if (auto by = constantOf(mul.getRhs()))
      return addLinear(mul.getLhs(), factor * *by, loop, result);
    if (auto by = constantOf(mul.getLhs()))
      return addLinear(mul.getRhs(), factor * *by, loop, result);
  }
  return false;
}

static std::optional<Linear> linearIn(Value value, scf::ForOp loop) {
  Linear result;
  if (!addLinear(value, 1, loop, result))
    return std::nullopt;
  for (auto term = result.terms.begin(); term != result.terms.end();)
    term = term->second == 0 ? result.terms.erase(term) : std::next(term);
  return result;
}

static std::optional<int64_t> tripCount(scf::ForOp loop) {
  auto first = constantOf(loop.getLowerBound());
  auto end = constantOf(loop.getUpperBound());
  if (!first || !end)
    return std::nullopt;
  return std::max<int64_t>(*end - *first, 0);
}

/// Whether the indices differ between any two iterations, or are equal in the
/// same iteration only. `aligned` asks for the second alone.
static bool neverMeet(const Linear &a, const Linear &b,
                      std::optional<int64_t> trip) {
  if (a.factor == 0 || a.factor != b.factor || a.terms != b.terms)
    return false;
  int64_t apart = b.constant - a.constant;
  if (apart % a.factor != 0)
    return true;
  int64_t iterations = std::abs(apart / a.factor);
  return iterations == 0 || (trip && iterations >= *trip);
}

/// Whether iterations of `loop` touch elements of their own in the buffers that
/// it writes.
static bool isIndependent(scf::ForOp loop) {
  SmallVector<Access> accesses;
  loop.walk([&](Operation *op) {
    if (auto access = accessOf(op))
      accesses.push_back(*access);
  });
  auto trip = tripCount(loop);
  for (const Access &store : accesses) {
    if (!store.isStore)
      continue;
    bool shown = false;
    for (unsigned d = 0; d < store.indices.size() && !shown; ++d) {
      auto mine = linearIn(store.indices[d], loop);
      shown = mine && mine->factor != 0;
      for (const Access &other : accesses) {
        if (!shown || other.root != store.root)
          continue;
        auto theirs = other.buffer == store.buffer
                          ? linearIn(other.indices[d], loop)
                          : std::nullopt;
        shown = theirs && neverMeet(*mine, *theirs, trip);
      }
    }
    if (!shown)
      return false;
  }
  return true;
}

/// Whether a value may differ between runs of a cut loop: it depends on a loop
/// around it.
static bool varies(Value value, scf::ForOp loop) {
  auto outer = loop->getParentOfType<scf::ForOp>();
  for (; outer; outer = outer->getParentOfType<scf::ForOp>())
    if (outer->isAncestor(value.getParentBlock()->getParentOp()))
      break;
  if (!outer)
    return false;
  Operation *op = value.getDefiningOp();
  return !op || op->getNumRegions() > 0 || !isMemoryEffectFree(op) ||
         llvm::any_of(op->getOperands(),
                      [&](Value operand) { return varies(operand, loop); });
}

/// Whether `a` and `b`, each in a cut loop, give an element to one lane: the
/// same index in a dimension, whichever runs of the loops they are of, and the
/// same first iteration.
static bool sameLane(const Access &a, const Access &b) {
  if (!a.loop || !b.loop || a.buffer != b.buffer)
    return false;
  scf::ForOp first = a.loop, second = b.loop;
  if (getAsOpFoldResult(first.getLowerBound()) !=
          getAsOpFoldResult(second.getLowerBound()) ||
      (!constantOf(first.getLowerBound()) &&
       varies(first.getLowerBound(), first)))
    return false;
  for (unsigned d = 0; d < a.indices.size(); ++d) {
    auto mine = linearIn(a.indices[d], a.loop);
    auto theirs = linearIn(b.indices[d], b.loop);
    if (mine && theirs && mine->factor != 0 && mine->factor == theirs->factor &&
        mine->terms == theirs->terms && mine->constant == theirs->constant &&
        llvm::none_of(mine->terms, [&](const auto &term) {
          return varies(Value::getFromOpaquePointer(term.first), first);
        }))
      return true;
  }
  // Accesses of one run of a loop were shown not to meet.
  return first == second && !first->getParentOfType<scf::ForOp>();
}

//===----------------------------------------------------------------------===//
// Sums
//===----------------------------------------------------------------------===//

/// Whether the order of a combination is free.
static bool isFreeOrder(Operation *op) {
  if (auto add = dyn_cast<arith::AddFOp>(op))
    return arith::bitEnumContainsAll(add.getFastmath(),
                                     arith::FastMathFlags::reassoc);
  return isa<arith::MaximumFOp, arith::MinimumFOp, arith::AddIOp,
             arith::MaxSIOp, arith::MaxUIOp, arith::MinSIOp, arith::MinUIOp>(
      op);
}

/// The carried values as sums; nothing if one is none.
static std::optional<SmallVector<LaneSum>> readSums(scf::ForOp loop) {
  SmallVector<LaneSum> sums;
  auto yield = cast<scf::YieldOp>(loop.getBody()->getTerminator());
  for (unsigned i = 0; i < loop.getNumRegionIterArgs(); ++i) {
    Value carried = loop.getRegionIterArg(i);
    Operation *op = yield.getOperand(i).getDefiningOp();
    // Used once: the term does not depend on it.
    if (!op || op->getBlock() != loop.getBody() || !isFreeOrder(op) ||
        !carried.hasOneUse() || *carried.user_begin() != op ||
        !op->getResult(0).hasOneUse())
      return std::nullopt;
    sums.push_back({i, op});
  }
  return sums;
}

//===----------------------------------------------------------------------===//
// The plan
//===----------------------------------------------------------------------===//

namespace {
/// Builds a plan for a row.
class Planner {
public:
  explicit Planner(Block &row) : row(row) {}
  LanePlan plan();

private:
  bool findLoops(Block &block);
  void chooseVector();
  void chooseLanes();
  void visit(Block &block);
  void visitLoop(scf::ForOp loop);
  void touch(Operation *before, const Access &access);

  Block &row;
  LanePlan result;
  bool anySums = false;
  /// Accesses since lanes last waited.
  SmallVector<Access> open;
  llvm::DenseSet<Operation *> stores; ///< the uniform ones
};
} // namespace

/// Finds the loops to cut, outermost first; false if the row must have one
/// lane.
bool Planner::findLoops(Block &block) {
  for (Operation &op : block) {
    if (auto loop = dyn_cast<scf::ForOp>(op)) {
      auto sums = getConstantIntValue(loop.getStep()) == 1 ? readSums(loop)
                                                           : std::nullopt;
      if (sums && isIndependent(loop)) {
        anySums |= !sums->empty();
        result.loops[loop] = {loop, *sums};
        continue;
      }
    } else if (isa<memref::StoreOp>(op)) {
      if (stores.insert(&op).second)
        result.uniformStores.push_back(&op);
      continue;
    } else if (isa<scf::WhileOp, scf::ParallelOp>(op)) {
      return false;
    }
    for (Region &region : op.getRegions())
      for (Block &inner : region)
        if (!findLoops(inner))
          return false;
  }
  return true;
}

void Planner::chooseLanes() {
  int64_t longest = 0;
  for (auto &entry : result.loops)
    longest = std::max(longest,
                       tripCount(entry.second.loop).value_or(kBlockLanes * 4));
  if (longest <= (anySums ? kSmallSum : 1))
    result.lanes = 1;
  else if (longest > kVeryLongRow)
    result.lanes = kLargeBlockLanes;
  else if (longest > kLongRow)
    result.lanes = kBlockLanes;
  else
    result.lanes =
        std::min<int64_t>(llvm::PowerOf2Ceil(longest / result.vector), kWarp);
}

/// All cut loops have the same groups, so that an element has one lane.
void Planner::chooseVector() {
  result.vector = vectorOf(row);
  for (auto &entry : result.loops) {
    scf::ForOp loop = entry.second.loop;
    auto trip = tripCount(loop);
    if (!trip || *trip % result.vector != 0 ||
        constantOf(loop.getLowerBound()) != 0)
      result.vector = 1;
  }
}

/// Notes an access; lanes wait before `before` if another lane's is in its way.
void Planner::touch(Operation *before, const Access &access) {
  for (const Access &other : open) {
    if (other.root != access.root || (!other.isStore && !access.isStore) ||
        sameLane(other, access))
      continue;
    // Lane 0 alone does both.
    if (!other.loop && !access.loop && other.isStore && access.isStore)
      continue;
    result.barriers.insert(before);
    open.clear();
    break;
  }
  open.push_back(access);
}

void Planner::visitLoop(scf::ForOp loop) {
  loop.walk([&](Operation *op) {
    if (auto access = accessOf(op)) {
      access->loop = loop;
      touch(loop, *access);
    }
  });
  // Combining sums lets a whole block wait.
  if (!result.loops[loop].sums.empty() && result.lanes > kWarp)
    open.clear();
}

void Planner::visit(Block &block) {
  for (Operation &op : block) {
    if (result.loops.contains(&op)) {
      visitLoop(cast<scf::ForOp>(op));
      continue;
    }
    if (auto access = accessOf(&op)) {
      touch(&op, *access);
      continue;
    }
    if (auto branch = dyn_cast<scf::IfOp>(op)) {
      SmallVector<Access> before = open;
      visit(*branch.thenBlock());
      if (branch.elseBlock()) {
        SmallVector<Access> after = open;
        open = before;
        visit(*branch.elseBlock());
        llvm::append_range(open, after);
      } else {
        llvm::append_range(open, before);
      }
      continue;
    }
    // A second time for what an iteration leaves for the next.
    for (int time = 0; time < 2; ++time)
      for (Region &region : op.getRegions())
        for (Block &inner : region)
          visit(inner);
  }
}

LanePlan Planner::plan() {
  if (!findLoops(row))
    return LanePlan();
  chooseVector();
  chooseLanes();
  if (result.lanes == 1)
    return LanePlan();
  visit(row);
  // Lanes that wait for each other, or sum, are a warp or a block: a warp's
  // rows run in step only then.
  if (!result.barriers.empty() || anySums)
    result.lanes = std::max(result.lanes, kWarp);
  return result;
}

int64_t mgq::kernels::vectorOf(Block &block) {
  unsigned widest = 16;
  block.walk([&](Operation *op) {
    if (auto access = accessOf(op)) {
      Type type = cast<MemRefType>(access->buffer.getType()).getElementType();
      widest = std::max(
          widest, type.isIntOrFloat() ? type.getIntOrFloatBitWidth() : 64);
    }
  });
  return 128 / widest;
}

bool LanePlan::hasSums() const {
  return llvm::any_of(
      loops, [](const auto &entry) { return !entry.second.sums.empty(); });
}

LanePlan mgq::kernels::planLanes(Block &row) { return Planner(row).plan(); }
