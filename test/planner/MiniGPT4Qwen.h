//===- MiniGPT4Qwen.h - Costs of the reference model ------------*- C++ -*-===//
#ifndef MGQ_TEST_PLANNER_MINIGPT4QWEN_H
#define MGQ_TEST_PLANNER_MINIGPT4QWEN_H

#include "passes/Planner/Plan.h"

namespace mgq::planner {

/// Costs in GFLOP per sample; a device of one GFLOP/s makes them seconds.
struct MiniGPT4Qwen {
  int length = 256; ///< Text tokens: 256, 512 or 1536.
  int images = 1;
  /// Cuts inside blocks: attention and MLP are layers.
  bool halves = false;
  /// MPP-LLaVA's layer list: prefix and word embedding in one layer, identity
  /// layers, norm, head, loss, a linear that does nothing.
  bool mppList = false;
  /// Each Qwen block runs forward again in its backward pass.
  bool recomputesBlocks = false;

  /// Bytes as well: bf16 weights, activations of bf16; adapters of rank 16 on
  /// each block with `lora`.
  bool bytes = false, lora = false;

  ModelCosts model() const;
  double blockForward() const;
  double headForward() const { return 1.5570 * length; }

  /// `ranks` devices of one GFLOP/s without limits, links that cost nothing.
  static Cluster cluster(int ranks);
};

} // namespace mgq::planner

#endif // MGQ_TEST_PLANNER_MINIGPT4QWEN_H
