//===- MinCut.h - Minimum cut of a flow network -----------------*- C++ -*-===//
#ifndef MGQ_PASSES_NN_MINCUT_H
#define MGQ_PASSES_NN_MINCUT_H

#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <limits>

namespace mgq::nn {

/// A flow network. Nodes are numbers; edges have capacities.
class FlowNetwork {
public:
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

  /// Adds a node and gives its number.
  unsigned addNode();
  void addEdge(unsigned from, unsigned to, int64_t capacity);
  /// Pushes the largest flow (Dinic's algorithm), then gives the nodes that
  /// still reach the sink: the sink's side of the minimum cut nearest to it.
  llvm::BitVector cut(unsigned source, unsigned sink);

private:
  struct Edge {
    unsigned to;
    int64_t room;
  };
  /// Numbers nodes by distance from the source; false if the sink is cut off.
  bool findLevels(unsigned source, unsigned sink);
  /// Sends up to `limit` along one path of rising levels.
  int64_t push(unsigned node, unsigned sink, int64_t limit);

  /// Edge 2i and its reverse 2i + 1 stand together.
  llvm::SmallVector<Edge> edges;
  llvm::SmallVector<llvm::SmallVector<unsigned, 4>> outgoing;
  llvm::SmallVector<int> level;
  llvm::SmallVector<unsigned> next;
};

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_MINCUT_H
