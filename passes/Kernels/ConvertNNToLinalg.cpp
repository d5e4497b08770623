#include "passes/Kernels/Passes.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CONVERTNNTOLINALGPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

namespace {
struct ConvertNNToLinalgPass
    : mgq::kernels::impl::ConvertNNToLinalgPassBase<ConvertNNToLinalgPass> {
  void runOnOperation() override {}
};
} // namespace
