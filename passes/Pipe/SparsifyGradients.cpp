//===- SparsifyGradients.cpp - Gradients in fewer bytes -------------------===//
//
// In: ranks whose programs sum gradients over replicas. Out: these sums are
// compressed, and the rank keeps what is lost of them:
//
//   pipe.rank @r0 stage(0) {              pipe.rank @r0 stage(0) {
//                                           pipe.place_residuals
//     ...                                   ...
//     %5 = pipe.all_reduce                  %5 = pipe.all_reduce compress
//     sparse24
//
// The memory plan gives residuals and exchange their room.
//
//===----------------------------------------------------------------------===//

#include "passes/Pipe/Passes.h"

#include "llvm/ADT/StringSwitch.h"

namespace mgq::pipe {
#define GEN_PASS_DEF_SPARSIFYGRADIENTSPASS
#include "passes/Pipe/Passes.h.inc"
} // namespace mgq::pipe

using namespace mlir;
using namespace mgq::pipe;

namespace {
struct SparsifyGradientsPass
    : mgq::pipe::impl::SparsifyGradientsPassBase<SparsifyGradientsPass> {
  using SparsifyGradientsPassBase::SparsifyGradientsPassBase;

  void runOnOperation() override {
    auto kind = llvm::StringSwitch<std::optional<Compression>>(compression)
                    .Case("bf16", Compression::Bf16)
                    .Case("sparse24", Compression::Sparse24)
                    .Case("sparse24-int8", Compression::Sparse24Int8)
                    .Default(std::nullopt);
    if (!kind) {
      getOperation().emitError("sparsify-gradients: compression is '")
          << compression << "', expected bf16, sparse24 or sparse24-int8";
      return signalPassFailure();
    }
    for (RankOp rank : getOperation().getOps<RankOp>())
      compress(rank, *kind);
  }

  static void compress(RankOp rank, Compression kind) {
    auto reductions = llvm::to_vector(rank.getOps<AllReduceOp>());
    if (reductions.empty())
      return;
    for (AllReduceOp reduce : reductions)
      reduce.setCompression(kind);
    OpBuilder builder = OpBuilder::atBlockBegin(&rank.getBody().front());
    PlaceResidualsOp::create(builder, rank.getLoc(), ArenaAttr(), ArrayAttr(),
                             ArrayAttr());
  }
};
} // namespace
