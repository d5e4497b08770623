//===- MarkFrozenCache.cpp - What a cache of the frozen prefix keeps ------===//
//
// In: @train of calls with chunks. Out: forward calls that a cached record can
// skip bear `pipe.kept`, the numbers of their results that are read elsewhere:
//
//   %0 = call @vit(...)     {pipe.kept = array<i64>}     only read by the next
//   %1 = call @qformer(%0)  {pipe.kept = array<i64: 0>}  read by what trains
//
// Candidates are forward calls below which nothing trains and nothing drops. A
// set of them that holds all makers of what it reads is the slice of one of
// them. Its cost is the bytes of what others read; its gain the FLOPs of its
// calls. Of the slices that save at least half of the most that one saves, the
// one of the fewest bytes is taken: 32 query tokens, not 257 of a ViT; an
// embedding of text, wide and cheap, is in none. Where nothing can be kept,
// the module says why (`pipe.no_cache`).
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/PlanModel.h"
#include "passes/Pipe/StepGraph.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_MARKFROZENCACHEPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

namespace {
/// Calls that are skipped together.
struct Slice {
  llvm::SetVector<Operation *> calls;
  int64_t flops = 0, bytes = 0;
};
} // namespace

static bool isRandom(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument)
    return false;
  auto function = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  auto name = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                    nn::kInputAttr);
  return name && name.getValue().starts_with(nn::kRandomInput);
}

/// Forward calls of chunks that follow from records and frozen parameters.
/// `drops`: one of them would, but for a random operand.
static llvm::SetVector<Operation *>
collectCandidates(ModuleOp module, func::FuncOp train, StringAttr &drops) {
  llvm::SetVector<Operation *> found;
  llvm::DenseSet<Operation *> inputsOnly;
  for (auto call : train.getOps<func::CallOp>()) {
    if (phaseOf(call) != SequenceKind::Forward)
      continue;
    bool isFrozen = true, isDropped = false;
    for (Value operand : call.getOperands()) {
      isDropped |= isRandom(operand);
      if (auto ref = operand.getDefiningOp<nn::ParamRefOp>()) {
        auto param = module.lookupSymbol<nn::ParamOp>(ref.getParam());
        isFrozen &= !param.isTrainable();
      } else if (func::CallOp maker = StepGraph::producer(operand)) {
        isFrozen &= found.contains(maker) || inputsOnly.contains(maker);
      }
    }
    if (isFrozen && isDropped && !drops)
      drops = call->getAttrOfType<StringAttr>(nn::kInstanceAttr);
    if (!isFrozen || isDropped)
      continue;
    if (StepGraph::chunkOf(call) < 0)
      inputsOnly.insert(call); // Each chunk repeats it; it is cheap.
    else
      found.insert(call);
  }
  return found;
}

/// Results of a call that something outside the slice reads.
static SmallVector<int64_t> keptResults(Operation *call, const Slice &slice) {
  SmallVector<int64_t> kept;
  for (OpResult result : call->getResults())
    if (llvm::any_of(result.getUsers(), [&](Operation *user) {
          return !slice.calls.contains(user);
        }))
      kept.push_back(result.getResultNumber());
  return kept;
}

/// A call and the candidates that it needs.
static Slice sliceOf(ModuleOp module, Operation *last,
                     const llvm::SetVector<Operation *> &candidates) {
  Slice slice;
  llvm::SetVector<Operation *> open;
  open.insert(last);
  for (size_t i = 0; i < open.size(); ++i)
    for (Value operand : open[i]->getOperands())
      if (Operation *maker = operand.getDefiningOp();
          maker && candidates.contains(maker))
        open.insert(maker);
  for (Operation *call : candidates) // In their order.
    if (open.contains(call))
      slice.calls.insert(call);
  for (Operation *op : slice.calls) {
    auto call = cast<func::CallOp>(op);
    slice.flops += flopsOf(module, call.getCallee());
    for (int64_t result : keptResults(op, slice))
      slice.bytes += byteSize(call.getResult(result).getType());
  }
  return slice;
}

static std::optional<Slice>
narrowest(ModuleOp module, const llvm::SetVector<Operation *> &candidates) {
  SmallVector<Slice, 0> slices;
  int64_t most = 0;
  for (Operation *call : candidates) {
    slices.push_back(sliceOf(module, call, candidates));
    most = std::max(most, slices.back().flops);
  }
  std::optional<Slice> best;
  for (Slice &slice : slices) {
    if (slice.flops * 2 < most || slice.flops == 0)
      continue;
    if (!best || slice.bytes < best->bytes ||
        (slice.bytes == best->bytes && slice.flops > best->flops))
      best = std::move(slice);
  }
  return best;
}

namespace {
struct MarkFrozenCachePass
    : mgq::pipe::impl::MarkFrozenCachePassBase<MarkFrozenCachePass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto train = module.lookupSymbol<func::FuncOp>("train");
    if (!train)
      return;
    StringAttr drops;
    auto candidates = collectCandidates(module, train, drops);
    Builder builder(module.getContext());
    std::optional<Slice> slice = narrowest(module, candidates);
    if (!slice) {
      std::string reason =
          drops ? "layer '" + drops.str() + "' of the frozen prefix drops"
                : "no layer comes before the first that trains";
      module->setAttr(kNoCacheAttr, builder.getStringAttr(reason));
      return;
    }
    for (Operation *call : slice->calls)
      call->setAttr(kKeptAttr,
                    builder.getDenseI64ArrayAttr(keptResults(call, *slice)));
  }
};
} // namespace
