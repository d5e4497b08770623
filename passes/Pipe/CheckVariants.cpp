//===- CheckVariants.cpp - Programs that may take turns -------------------===//
//
// A run changes the number of micro-batches between two steps. It goes on with
// the arena as it is, so programs must agree on all that outlives a step.
// Gradients, activations and scratch do not.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"

#include "mlir/IR/OperationSupport.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_CHECKVARIANTSPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

namespace {
/// A program: the plan and the ranks of a module.
struct Variant {
  PlanOp plan;
  SmallVector<RankOp> ranks;
};
} // namespace

static FailureOr<Variant> readVariant(ModuleOp module) {
  Variant variant;
  for (PlanOp plan : module.getOps<PlanOp>())
    variant.plan = plan;
  if (!variant.plan)
    return module.emitError("holds no pipe.plan");
  llvm::append_range(variant.ranks, module.getOps<RankOp>());
  return variant;
}

/// Where a rank keeps parameters and optimizer states.
static SmallVector<Attribute> parameters(RankOp rank) {
  SmallVector<Attribute> places;
  for (PlaceParamOp place : rank.getOps<PlaceParamOp>()) {
    NamedAttrList attrs(place->getAttrDictionary());
    attrs.erase(place.getGradientAttrName());
    places.push_back(attrs.getDictionary(rank.getContext()));
  }
  return places;
}

/// What compressed gradients keep, and which gradients go together: residuals
/// lie as the gradients do.
static SmallVector<Attribute> residuals(RankOp rank) {
  SmallVector<Attribute> found;
  for (PlaceResidualsOp place : rank.getOps<PlaceResidualsOp>())
    found.push_back(place->getAttrDictionary());
  if (found.empty())
    return found;
  for (AllReduceOp reduce : rank.getOps<AllReduceOp>()) {
    found.push_back(reduce.getParamsAttr());
    found.push_back(reduce.getPlaceAttr());
  }
  return found;
}

/// Kernels and places of the calls that a rank makes once; their scratch may
/// lie anywhere.
static SmallVector<std::pair<Attribute, Attribute>>
preparations(RankOp rank, SequenceKind kind) {
  SmallVector<std::pair<Attribute, Attribute>> calls;
  if (SequenceOp sequence = rank.getSequence(kind, -1))
    for (CallOp call : sequence.getBody().getOps<CallOp>())
      calls.emplace_back(call.getKernelAttr(), call.getArgs());
  return calls;
}

/// What two ranks of a stage keep at other places; empty: nothing.
static StringRef difference(RankOp first, RankOp second) {
  if (first.getStage() != second.getStage())
    return "stages";
  if (parameters(first) != parameters(second))
    return "parameters";
  if (residuals(first) != residuals(second))
    return "residuals of compressed gradients";
  for (SequenceKind kind :
       {SequenceKind::PrepareFrozen, SequenceKind::PrepareTrainable})
    if (preparations(first, kind) != preparations(second, kind))
      return "packed weights";
  return "";
}

static LogicalResult compare(const Variant &first, const Variant &second) {
  PlanOp one = first.plan, other = second.plan;
  auto fail = [&](const Twine &text) -> LogicalResult {
    InFlightDiagnostic diag = other.emitError("not supported yet: ") << text;
    diag.attachNote(one.getLoc())
        << "compared with " << one.getMicroBatches() << " micro-batches";
    return diag;
  };
  std::string with =
      "with " + std::to_string(other.getMicroBatches()) + " micro-batches ";
  if (other.getMicroBatches() <= one.getMicroBatches())
    return other.emitError("has ")
           << other.getMicroBatches() << " micro-batches, the program before "
           << one.getMicroBatches() << "; expected ascending numbers";
  if (one.getStages() != other.getStages() ||
      one.getReplicas() != other.getReplicas() ||
      first.ranks.size() != second.ranks.size())
    return fail(with + "the model is cut into other stages");
  for (size_t stage = 0; stage < first.ranks.size(); ++stage)
    if (StringRef what = difference(first.ranks[stage], second.ranks[stage]);
        !what.empty())
      return fail(with + "stage " + Twine(stage) + " keeps other " + what +
                  ", or at other places");
  return success();
}

namespace {
struct CheckVariantsPass
    : mgq::pipe::impl::CheckVariantsPassBase<CheckVariantsPass> {
  void runOnOperation() override {
    std::optional<Variant> last;
    for (ModuleOp module : getOperation().getOps<ModuleOp>()) {
      FailureOr<Variant> variant = readVariant(module);
      if (failed(variant) || (last && failed(compare(*last, *variant))))
        return signalPassFailure();
      last = std::move(*variant);
    }
  }
};
} // namespace
