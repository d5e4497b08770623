//===- PipeToy.h - A hand-written pipeline ----------------------*- C++ -*-===//
//
// Stands in for a planner: the same model on any number of stages, replicas and
// chunks, with the same bits. Width 8, 2 samples a micro-batch:
//
//   h[0] = x * tied                      tied [8], trainable
//   h[l + 1] = tanh(h[l] w[l]^T + b[l])  w [8, 8] trainable where l is odd,
//                                        b [8] trainable everywhere
//   loss = sum over labels != -100 of cross entropy of h[6] * tied
//
// The parameters are in pipe.weights: tied, then w and b of each layer.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_TEST_RUNTIME_PIPETOY_H
#define MGQ_TEST_RUNTIME_PIPETOY_H

#include "runtime/include/rt.h"

namespace pipetoy {
constexpr int batch = 2, width = 8, layers = 6;

struct Plan {
  int stages = 1, replicas = 1;
  int chunks = 1; ///< Of each rank.
  int microBatches = 4;
  int slots = 4;          ///< Of each chunk.
  bool split = false;     ///< Weight gradients are ops of their own.
  bool eager = false;     ///< Forward ops go first (gpipe), else backward ones.
  const char *hash = "a"; ///< Of the plan.
  int hugeStage = -1;     ///< Its plan needs more memory than there is.
};

/// The plan of TOY_STAGES, TOY_REPLICAS, TOY_CHUNKS, TOY_MICRO_BATCHES,
/// TOY_SLOTS, TOY_SPLIT, TOY_EAGER, TOY_HASH, TOY_HUGE.
///
/// The running program heeds, at the tenth forward call of a stage: TOY_STALL
/// (stage that sleeps), TOY_DIE (stage whose process kills itself), TOY_INDEX
/// (stage with an index fault). TOY_SLEEP: microseconds each call takes;
/// TOY_COUNT: prints the number of allocations at the end.
Plan planOfEnvironment();

/// The program of a plan; it lives until the process ends.
mgq_program makeProgram(const Plan &plan);
} // namespace pipetoy

#endif // MGQ_TEST_RUNTIME_PIPETOY_H
