//===- MinCut.cpp - Minimum cut of a flow network -------------------------===//
//
// Dinic's algorithm: E. A. Dinic, Soviet Math. Doklady 11 (1970). A path is
// pushed recursively, so its depth is the longest chain of a layer function.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/MinCut.h"

#include <algorithm>

using namespace mgq::nn;

unsigned FlowNetwork::addNode() {
  outgoing.emplace_back();
  return outgoing.size() - 1;
}

void FlowNetwork::addEdge(unsigned from, unsigned to, int64_t capacity) {
  outgoing[from].push_back(edges.size());
  edges.push_back({to, capacity});
  outgoing[to].push_back(edges.size());
  edges.push_back({from, 0});
}

bool FlowNetwork::findLevels(unsigned source, unsigned sink) {
  level.assign(outgoing.size(), -1);
  level[source] = 0;
  llvm::SmallVector<unsigned> queue{source};
  for (size_t i = 0; i < queue.size(); ++i)
    for (unsigned id : outgoing[queue[i]])
      if (edges[id].room > 0 && level[edges[id].to] < 0) {
        level[edges[id].to] = level[queue[i]] + 1;
        queue.push_back(edges[id].to);
      }
  return level[sink] >= 0;
}

int64_t FlowNetwork::push(unsigned node, unsigned sink, int64_t limit) {
  if (node == sink)
    return limit;
  for (unsigned &i = next[node]; i < outgoing[node].size(); ++i) {
    Edge &edge = edges[outgoing[node][i]];
    if (edge.room <= 0 || level[edge.to] != level[node] + 1)
      continue;
    int64_t sent = push(edge.to, sink, std::min(limit, edge.room));
    if (sent == 0)
      continue;
    edge.room -= sent;
    edges[outgoing[node][i] ^ 1].room += sent;
    return sent;
  }
  return 0;
}

llvm::BitVector FlowNetwork::cut(unsigned source, unsigned sink) {
  while (findLevels(source, sink)) {
    next.assign(outgoing.size(), 0);
    while (push(source, sink, kInfinite) > 0) {
    }
  }
  llvm::BitVector reaches(outgoing.size());
  reaches.set(sink);
  llvm::SmallVector<unsigned> queue{sink};
  for (size_t i = 0; i < queue.size(); ++i)
    for (unsigned id : outgoing[queue[i]]) {
      unsigned from = edges[id].to;
      if (edges[id ^ 1].room > 0 && !reaches.test(from)) {
        reaches.set(from);
        queue.push_back(from);
      }
    }
  return reaches;
}
