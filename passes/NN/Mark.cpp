#include "passes/NN/Passes.h"

namespace mgq::nn {
#define GEN_PASS_DEF_MARKPASS
#include "passes/NN/Passes.h.inc"
} // namespace mgq::nn

namespace {
struct MarkPass : mgq::nn::impl::MarkPassBase<MarkPass> {
  using MarkPassBase::MarkPassBase;
  void runOnOperation() override {}
};
} // namespace
