//===- Graphs.h - Work that a GPU gets at once ------------------*- C++ -*-===//
//
// What is enqueued again and again is recorded as CUDA graphs: one call of the
// driver gives the GPU all of it. Graphs are made while the GPU has nothing to
// do, since making one may wait for it, which may wait for other ranks.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_CUDA_GRAPHS_H
#define MGQ_RUNTIME_CUDA_GRAPHS_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/cuda/Driver.h"
#include <unordered_map>

namespace mgq::rt {

class Graphs {
public:
  /// Of work on `stream`. The same thread records and launches.
  explicit Graphs(CUstream stream) : stream(stream) {}

  /// Records what `work` enqueues, unless the key is known; few kernels are not
  /// worth it. Throws what `work` throws. Returns the library's text if the
  /// work cannot be recorded, else "".
  std::string record(const WorkKey &key, const std::function<void()> &work);
  /// Enqueues what was recorded with the key; false: nothing was.
  bool launch(const WorkKey &key);
  /// Whether work is being recorded.
  bool isRecording() const { return recording; }
  void clear();

private:
  /// An executable graph.
  class Graph {
  public:
    explicit Graph(CUgraphExec handle) : handle(handle) {}
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;
    ~Graph() { cuGiveBack(cuGraphExecDestroy, handle); }
    operator CUgraphExec() const { return handle; }

  private:
    CUgraphExec handle;
  };
  struct Hash {
    size_t operator()(const WorkKey &key) const;
  };
  CUresult capture(const std::function<void()> &work, CUgraph &graph);
  std::string keep(const WorkKey &key, CUgraph graph);

  CUstream stream;
  bool recording = false;
  std::unordered_map<WorkKey, Graph, Hash> graphs;
  size_t nodes = 0; ///< Of all graphs.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_GRAPHS_H
