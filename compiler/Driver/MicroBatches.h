//===- MicroBatches.h - How a step may be cut into micro-batches ----------===//
#ifndef MGQ_COMPILER_DRIVER_MICROBATCHES_H
#define MGQ_COMPILER_DRIVER_MICROBATCHES_H

#include "compiler/Pipelines/Options.h"
#include "frontends/onnx/Import.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Error.h"

namespace mgq {

/// Numbers of micro-batches that an executable can run a step with.
struct MicroBatches {
  llvm::SmallVector<int64_t> counts; ///< Ascending, per replica.
  int64_t start = 1;                 ///< The one of `counts` to start with.
  /// The symbolic leading dimension, which is bound to samples / count; empty:
  /// the micro-batch size is fixed, and there is one count.
  std::string dimension;
  int64_t samples = 0; ///< Of a step and replica, where `dimension` is given.
};

/// What --micro-batches and --global-batch allow for a model whose inputs lead
/// with `axis`. Error in the user's words.
llvm::Expected<MicroBatches> findMicroBatches(const Options &options,
                                              const onnx::SampleAxis &axis);

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_MICROBATCHES_H
