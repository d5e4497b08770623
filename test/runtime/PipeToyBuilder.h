//===- PipeToyBuilder.h - How the pipeline's tables are made ----*- C++ -*-===//
#ifndef MGQ_TEST_RUNTIME_PIPETOYBUILDER_H
#define MGQ_TEST_RUNTIME_PIPETOYBUILDER_H

#include "test/runtime/PipeToy.h"
#include <deque>
#include <vector>

namespace pipetoy {
constexpr int64_t actBytes = batch * width * 4;
constexpr int64_t weightCount = width * width;

/// Keeps what tables point to.
template <typename T>
const T *keep(std::vector<T> list) {
  static std::deque<std::vector<T>> kept;
  kept.push_back(std::move(list));
  return kept.back().data();
}

/// Builds one stage.
struct Stage {
  Stage(const Plan &plan, int index) : plan(plan), index(index) {}

  const Plan &plan;
  int index;
  int64_t arena = 0;
  mgq_rank rank = {};
  std::vector<mgq_place> places;
  std::vector<mgq_use> uses;
  std::vector<mgq_chunk> chunks;
  std::vector<std::vector<mgq_grad>> grads;
  std::vector<mgq_op> ops, evaluateOps;
  int64_t gradsBegin = 0, gradsEnd = 0;
  int64_t headAccumulator = -1; ///< Of tied's use in the head, here.

  int64_t take(int64_t bytes) {
    int64_t at = arena;
    arena += (bytes + 63) / 64 * 64;
    return at;
  }
};

struct Builder {
  explicit Builder(const Plan &plan) : plan(plan) {}

  mgq_program build();

  int chunkCount() const { return plan.stages * plan.chunks; }
  int stageOf(int chunk) const { return chunk % plan.stages; }
  int localOf(int chunk) const { return chunk / plan.stages; }
  int firstLayer(int chunk) const { return chunk * layers / chunkCount(); }
  int layerCount(int chunk) const {
    return firstLayer(chunk + 1) - firstLayer(chunk);
  }
  bool isLast(int chunk) const { return chunk == chunkCount() - 1; }
  /// Activation, or its gradient, before the chunk's layer `i`.
  mgq_ref act(int chunk, int i) const {
    return {MGQ_SPACE_SLOT, localOf(chunk), i * actBytes};
  }
  mgq_ref grad(int chunk, int i) const {
    return {MGQ_SPACE_SLOT, localOf(chunk),
            (layerCount(chunk) + 1 + i) * actBytes};
  }
  mgq_ref probabilities(int chunk) const {
    return grad(chunk, layerCount(chunk) + 1);
  }
  /// Where a split chunk leaves a weight gradient.
  mgq_ref slotDelta(int chunk, int i) const {
    return {MGQ_SPACE_SLOT, localOf(chunk),
            (2 * layerCount(chunk) + 3 + 4 * i) * actBytes};
  }
  int64_t slotBytes(int chunk) const {
    return (2 * layerCount(chunk) + 3 + 4 * layerCount(chunk)) * actBytes;
  }

  void addParams();
  void placeParams(Stage &stage);
  mgq_ref value(const Stage &stage, int param) const;
  void addChunk(Stage &stage, int chunk);
  void addTail(std::vector<Stage> &all);
  void schedule(std::vector<Stage> &all);

  const Plan &plan;
  std::vector<mgq_param> params; ///< tied, then w and b of each layer.
  std::vector<int64_t> packed;   ///< Of each stage and layer: w transposed.
  int64_t seed = -1, loss = -1, accuracy = -1, labels = -1, x = -1;
};

inline mgq_ref at(int64_t offset) { return {MGQ_SPACE_ARENA, 0, offset}; }
} // namespace pipetoy

#endif // MGQ_TEST_RUNTIME_PIPETOYBUILDER_H
